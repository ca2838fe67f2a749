"""Programs that no one here wrote: equal results, and their repeats found without a mark."""

import jax
import jax.numpy as jnp
import pytest
from framework_programs import FRAMEWORK_PROGRAMS, FrameworkProgram
from helpers import assert_same, body_uses, decisions, share_all_policy

import jitscope
from benchmarks.programs import PROGRAMS, agrees, digest
from benchmarks.programs.frameworks import PROGRAMS as BENCHMARKED

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(240),
    # The libraries warn about each other; jitscope must not have given up on any of them.
    pytest.mark.filterwarnings("ignore", "error:jitscope"),
]

each_program = pytest.mark.parametrize(
    "program", FRAMEWORK_PROGRAMS.values(), ids=FRAMEWORK_PROGRAMS
)


@each_program
def test_unannotated_program_gives_what_jit_gives(program: FrameworkProgram):
    fun = jitscope.outermost_jit(program.case.fun)
    actual = fun(*program.case.args)
    assert_same(actual, program.expected, tolerance_factor=program.tolerance_factor)
    finish, tolerance = program.case.finish, PROGRAMS[program.name].tolerance
    assert agrees(digest(finish(actual)), digest(finish(program.expected)), tolerance)


@each_program
def test_program_with_every_repeat_kept_gives_what_jit_gives(program: FrameworkProgram):
    fun = jitscope.outermost_jit(program.case.fun, policy=share_all_policy())
    assert_same(
        fun(*program.case.args), program.expected, tolerance_factor=program.tolerance_factor
    )
    assert fun.reuse().n_shared_calls > 0


@each_program
def test_repeats_are_found_and_named_after_their_functions(program: FrameworkProgram):
    fun = jitscope.outermost_jit(program.case.fun)
    fun.trace(*program.case.args)
    found = body_uses(fun)
    missing = {
        name: found.get(name)
        for name, n_uses in program.repeats.items()
        if found.get(name, (0,))[0] < n_uses
    }
    assert not missing, found
    kept = {
        name
        for name, decided in decisions(fun).items()
        if any(structure == "SHARED" for structure, _ in decided)
    }
    assert program.kept <= kept


@each_program
def test_structured_program_has_the_types_of_the_original(program: FrameworkProgram):
    structured = jitscope.outermost_jit(program.case.fun).trace(*program.case.args)
    plain = jax.jit(program.case.fun).trace(*program.case.args)
    assert structured.jaxpr.out_avals == plain.jaxpr.out_avals
    assert structured.jaxpr.effects == plain.jaxpr.effects


def test_every_benchmarked_program_is_tested():
    assert {program.name for program in BENCHMARKED} == set(FRAMEWORK_PROGRAMS)


def test_marked_nnx_layers_keep_their_statistics():
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.norm = nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)

        @jitscope.shared_subroutine
        def __call__(self, x):
            return x + jnp.tanh(self.norm(self.linear(x)))

    definition, state = nnx.split(nnx.List([Block(nnx.Rngs(i)) for i in range(4)]))

    def step(state, x):
        blocks = nnx.merge(definition, state)
        for block in blocks:
            x = block(x)
        return x, nnx.state(blocks)

    x = jnp.arange(12.0).reshape(3, 4)
    got = jitscope.outermost_jit(step)(state, x)
    with jitscope.disabled():
        want = jax.jit(step)(state, x)
    assert_same(got, want)
    assert "writes to its argument self" in str(Block.__call__.stats())
