"""ROLLED: a program with chains of calls in loops gives what jax.jit gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    EAGER_LIMITS,
    assert_same,
    build_annotated,
    build_plain,
    cases,
    fresh,
    gradient,
    plain_gradient,
    plain_result,
    run_python,
)
from jax import lax
from programs import PROGRAMS

import jitscope

EAGER = EAGER_LIMITS | {"min_saved_per_copy": 1}
N_LAYERS, WIDTH = 6, 8


def rolled(fun, *, outline=True, limits=None, **options):
    policy = jitscope.Policy(rolled=True, **(EAGER | (limits or {})))
    return jitscope.outermost_jit(fun, policy=policy, outline=outline, **options)


def block(p, x):
    deviation = x - x.mean(-1, keepdims=True)
    x = x + jnp.tanh(deviation @ p["w"] + p["b"]) @ p["w"].T
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1)


def net(params, x):
    for p in params:
        x = block(p, x)
    return x


def loss(params, x):
    return (net(params, x * params[0]["b"]) ** 2).mean()


def arguments(n_layers=N_LAYERS):
    normal = np.random.default_rng(0).standard_normal
    params = [
        {
            "w": jnp.asarray(normal((WIDTH, WIDTH)) * 0.3, jnp.float32),
            "b": jnp.asarray(normal(WIDTH), jnp.float32),
        }
        for _ in range(n_layers)
    ]
    return params, jnp.asarray(normal((16, WIDTH)), jnp.float32)


def equations(jaxpr):
    """Those of a program and of its calls, but not of its loops."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        if eqn.primitive.name != "scan" and "jaxpr" in eqn.params:
            yield from equations(eqn.params["jaxpr"])


def loops(function, *args):
    """Trip count and direction of the loops of a program that has none of its own."""
    return [
        (eqn.params["length"], eqn.params["reverse"])
        for eqn in equations(function.trace(*args).jaxpr)
        if eqn.primitive.name == "scan"
    ]


def count(function, args, primitive):
    return sum(eqn.primitive.name == primitive for eqn in equations(function.trace(*args).jaxpr))


def reasons(function):
    return [
        decision.reason
        for decision in function.reuse().plan.decisions.values()
        if "rolled" in decision.reason
    ]


# --- values ---------------------------------------------------------------------------------------


ALL = PROGRAMS.values()


@pytest.mark.parametrize(
    ("build", "program"),
    [
        *(
            pytest.param(build_plain, *case.values, marks=case.marks, id=f"plain-{case.id}")
            for case in cases(ALL)
        ),
        *(pytest.param(build_annotated, p, id=f"annotated-{p}") for p in ALL if p.core),
    ],
)
def test_rolled_catalogue_equals_plain_jit(build, program):
    with jax.enable_x64(program.x64):
        fun, args = build(program)
        function = rolled(fun, donate_argnums=program.donate)
        for _ in range(2):
            assert_same(function(*fresh(args)), plain_result(program.name))


DIFFERENTIABLE = [p for p in ALL if "grad" in p.transforms and not p.donate]


@pytest.mark.parametrize(
    ("build", "program"),
    [
        *(
            pytest.param(build_plain, *case.values, marks=case.marks, id=f"plain-{case.id}")
            for case in cases(DIFFERENTIABLE)
        ),
        *(pytest.param(build_annotated, p, id=f"annotated-{p}") for p in DIFFERENTIABLE if p.core),
    ],
)
def test_rolled_gradients_of_the_catalogue_equal_plain_jit(program, build):
    with jax.enable_x64(program.x64):
        fun, args = build(program)
        result = rolled(gradient(fun))(*args)
        assert_same(result, plain_gradient(program.name), tolerance_factor=10)


# --- structure ------------------------------------------------------------------------------------


def test_layers_are_one_loop_and_those_of_the_gradient_one_that_runs_backwards():
    args = arguments()
    assert loops(rolled(net), *args) == [(N_LAYERS, False)]
    function = rolled(jax.value_and_grad(loss))
    assert loops(function, *args) == [(N_LAYERS, False), (N_LAYERS, True)]
    assert_same(function(*args), jax.jit(jax.value_and_grad(loss))(*args))


def test_a_chain_is_found_in_marked_calls_as_in_code_that_marks_none():
    shared = jitscope.shared_subroutine(block)

    def marked(params, x):
        for p in params:
            x = shared(p, x)
        return x

    args = arguments()
    function = rolled(marked, outline=False)
    assert loops(function, *args) == [(N_LAYERS, False)]
    assert_same(function(*args), jax.jit(net)(*args))


def test_only_parameters_are_stacked_and_only_gradients_unstacked():
    """The backward loop reads residuals where the forward loop wrote them."""
    args = arguments()
    function = rolled(jax.grad(loss))
    assert loops(function, *args) == [(N_LAYERS, False), (N_LAYERS, True)]
    assert count(function, args, "concatenate") == 2  # one for each leaf of a layer
    assert count(function, args, "squeeze") == 2 * N_LAYERS
    assert count(function, args, "rev") == 0


def test_first_layer_without_a_gradient_of_its_input_stays_outside_the_backward_loop():
    """Its residuals are read from the stacks of the forward loop, which are not copied."""

    def first_fixed(params, x):
        return (net(params, x) ** 2).mean()

    args = arguments()
    function = rolled(jax.grad(first_fixed))
    assert loops(function, *args) == [(N_LAYERS, False), (N_LAYERS - 1, True)]
    assert count(function, args, "concatenate") == 2
    assert_same(function(*args), jax.jit(jax.grad(first_fixed))(*args))


def test_default_policy_rolls_nothing():
    args = arguments(n_layers=24)
    assert loops(jitscope.outermost_jit(jax.grad(loss)), *args) == []
    assert jitscope.Policy().rolled is False


def test_chain_that_is_too_short_is_kept_and_the_plan_says_so():
    args = arguments()
    function = rolled(net, limits={"min_uses": N_LAYERS})
    assert loops(function, *args) == [(N_LAYERS, False)]
    two_chains = rolled(lambda p, x: (net(p[:3], x), net(p[3:], x)), limits={"min_uses": 4})
    assert loops(two_chains, *args) == []
    assert any("chain has 3 calls, loops pay from 4" in reason for reason in reasons(two_chains))
    assert_same(two_chains(*args), (net(args[0][:3], args[1]), net(args[0][3:], args[1])))


def test_two_chains_of_one_body_are_two_loops():
    args = arguments()

    def fun(params, x):
        return net(params[:3], x), net(params[3:], jnp.cos(x))

    shared = jitscope.shared_subroutine(block)

    def marked(params, x):
        first, second = x, jnp.cos(x)
        for p, q in zip(params[:3], params[3:], strict=True):  # side by side
            first, second = shared(p, first), shared(q, second)
        return first, second

    function = rolled(marked, outline=False)
    assert loops(function, *args) == [(3, False), (3, False)]
    assert_same(function(*args), jax.jit(fun)(*args))


def test_what_is_made_between_calls_moves_before_the_loop_or_behind_it():
    shared = jitscope.shared_subroutine(block)

    def fun(params, x):
        seen = []
        for i, p in enumerate(params):
            x = shared({"w": p["w"] * (i + 1), "b": p["b"]}, x)
            seen.append(jnp.max(x))
        return x, seen

    args = arguments()
    function = rolled(fun, outline=False)
    assert loops(function, *args) == [(N_LAYERS, False)]
    assert_same(function(*args), jax.jit(fun)(*args))


def test_calls_that_feed_each_other_through_equal_code_are_a_chain_with_it():
    layer = lambda p, x: jnp.tanh((x - x.mean(-1, keepdims=True)) @ p["w"] + p["b"])

    def residual(layer):
        def loss(params, x):
            x = x * params[0]["b"]
            for p in params:
                x = x + layer(p, x)
            return (x * x).mean()

        return jax.grad(loss)

    args = arguments()
    function = rolled(residual(jitscope.shared_subroutine(layer)), outline=False)
    assert loops(function, *args) == [(N_LAYERS, False), (N_LAYERS, True)]
    assert_same(function(*args), jax.jit(residual(layer))(*args))


def test_code_behind_the_last_call_that_reads_more_of_it_stays_outside():
    shared = jitscope.shared_subroutine(lambda p, x: jnp.tanh(x @ p["w"]) + p["b"])

    def fun(params, x):
        for p in params[:-1]:
            x = shared(p, x) + x
        last = shared(params[-1], x)
        return last + jnp.sin(last)  # like the others, but its other operand depends on the call

    args = arguments()
    function = rolled(fun, outline=False)
    assert loops(function, *args) == [(N_LAYERS - 1, False)]
    assert_same(function(*args), jax.jit(fun)(*args))


def test_values_that_come_back_to_the_chain_in_different_ways_end_it():
    shared = jitscope.shared_subroutine(block)

    def fun(params, x):
        for i, p in enumerate(params):
            x = shared({"w": p["w"], "b": p["b"] + (x.mean() if i % 2 else x.max())}, x)
        return x

    args = arguments()
    function = rolled(fun, outline=False)
    assert loops(function, *args) == []
    assert any("depend on earlier calls in other ways" in reason for reason in reasons(function))
    assert_same(function(*args), jax.jit(fun)(*args))


def test_skip_connection_ends_a_chain_and_a_value_of_the_first_call_is_a_constant_of_the_others():
    shared = jitscope.shared_subroutine(lambda w, first, x: jnp.tanh(x @ w) + first)

    def fun(params, x):
        first = x = shared(params[0]["w"], x, x)
        for p in params[1:]:
            x = shared(p["w"], first, x)
        return x

    args = arguments()
    function = rolled(fun, outline=False)
    assert loops(function, *args) == [(N_LAYERS - 1, False)]
    assert_same(function(*args), jax.jit(fun)(*args))


def test_layers_that_return_constants_are_rolled():
    shared = jitscope.shared_subroutine(lambda p, x: (block(p, x), jnp.float32(2)))

    def fun(params, x):
        losses = []
        for p in params:
            x, loss = shared(p, x)
            losses.append(loss)
        return x, losses

    args = arguments()
    function = rolled(fun, outline=False)
    assert loops(function, *args) == [(N_LAYERS, False)]
    assert_same(function(*args), jax.jit(fun)(*args))


def test_effects_between_calls_keep_their_order(capfd):
    shared = jitscope.shared_subroutine(block)

    def fun(params, x):
        for i, p in enumerate(params):
            jax.debug.print("before {i}", i=i, ordered=True)
            x = shared(p, x)
            jax.debug.print("after {i} {x}", i=i, x=x[0, 0] > 100, ordered=True)
        return x

    args = arguments()
    function = rolled(fun, outline=False)
    assert loops(function, *args) == [(N_LAYERS, False)]
    capfd.readouterr()
    jax.block_until_ready(jax.jit(fun)(*args))
    jax.effects_barrier()
    expected = capfd.readouterr().out
    assert_same(function(*args), jax.jit(net)(*args))
    jax.effects_barrier()
    assert capfd.readouterr().out == expected
    assert expected.count("before") == N_LAYERS


def test_body_with_effects_is_not_rolled():
    @jitscope.shared_subroutine(structure="rolled")
    def noisy(p, x):
        jax.debug.print("{}", x.sum())
        return block(p, x)

    def fun(params, x):
        for p in params:
            x = noisy(p, x)
        return x

    args = arguments()
    function = rolled(fun)
    assert loops(function, *args) == []
    (decision,) = [
        function.reuse().plan[body.fingerprint.digest]
        for body in function.reuse().census.bodies
        if body.name == "noisy"
    ]
    assert "side effects" in decision.reason
    assert_same(function(*args), jax.jit(net)(*args))


@pytest.mark.slow
def test_values_of_odd_types_are_right_in_loops():
    @jitscope.shared_subroutine
    def noisy(key, width, x):
        return x + jax.random.normal(key, x.shape, x.dtype) * (width.sum() + 1).astype(x.dtype)

    def fun(keys, widths, x):
        for key, width in zip(keys, widths, strict=True):
            x = noisy(key, width, x)
        return x, keys[0]

    keys = list(jax.random.split(jax.random.key(3), N_LAYERS))
    widths = [jnp.ones((0, 3)) for _ in keys]
    function = rolled(fun)
    args = keys, widths, jnp.ones((4, 4), jnp.bfloat16)
    assert (N_LAYERS, False) in loops(function, *args)
    assert_same(function(*args), jax.jit(fun)(*args))


# --- what the user decides --------------------------------------------------------------------------


def test_decorator_asks_for_a_loop_of_as_few_as_two_calls():
    shared = jitscope.shared_subroutine(block, structure="rolled")

    def fun(params, x):
        return shared(params[1], shared(params[0], x))

    args = arguments()
    function = jitscope.outermost_jit(fun)
    assert loops(function, *args) == [(2, False)]
    assert_same(function(*args), jax.jit(lambda ps, x: net(ps[:2], x))(*args))


def test_users_policy_rolls_and_what_cannot_be_rolled_gets_its_other_structure():
    @jitscope.shared_subroutine
    def start(x):
        return jnp.sin(x) * 2

    shared = jitscope.shared_subroutine(block)

    def fun(params, x):
        y = start(x) + start(jnp.cos(x))
        for p in params:
            y = shared(p, y)
        return y

    def policy(census):
        return jitscope.Plan(
            {
                body.fingerprint.digest: jitscope.Decision(
                    jitscope.Structure.ROLLED, "wanted", jitscope.Structure.INLINE
                )
                for body in census.bodies
            }
        )

    args = arguments()
    function = jitscope.outermost_jit(fun, policy=policy, outline=False)
    assert loops(function, *args) == [(N_LAYERS, False)]
    plan, census = function.reuse().plan, function.reuse().census
    found = {b.name: plan[b.fingerprint.digest] for b in census.bodies}
    assert found["block"].structure is jitscope.Structure.ROLLED
    assert found["start"].structure is jitscope.Structure.INLINE
    assert "not rolled: its calls do not feed each other" in found["start"].reason
    assert_same(function(*args), jax.jit(fun)(*args))


def test_what_was_to_be_rolled_in_any_case_stays_nested_where_it_cannot_be():
    body = jitscope.shared_subroutine(lambda x: jnp.sin(x) * 2)

    def policy(census):
        rolled = jitscope.Structure.ROLLED
        decision = jitscope.Decision(rolled, "wanted", rolled)
        return jitscope.Plan({one.fingerprint.digest: decision for one in census.bodies})

    function = jitscope.outermost_jit(lambda x: body(x) + body(x + 1), policy=policy, outline=False)
    assert_same(function(1.0), jax.jit(lambda x: jnp.sin(x) * 2 + jnp.sin(x + 1) * 2)(1.0))
    (decision,) = function.reuse().plan.decisions.values()
    assert decision.structure is jitscope.Structure.NESTED


def test_stacking_past_the_budget_is_refused_and_the_reason_says_how_much_it_is():
    args = arguments()
    gradient = jax.value_and_grad(loss)
    layer_bytes = 4 * (WIDTH * WIDTH + WIDTH)
    needed = 2 * N_LAYERS * layer_bytes  # parameters into stacks, gradients out of them
    assert len(loops(rolled(gradient, limits={"max_stacked_bytes": needed}), *args)) == 2
    function = rolled(gradient, limits={"max_stacked_bytes": needed - 1})
    assert loops(function, *args) == []
    assert any("stacking would copy 3.46 kB a run" in reason for reason in reasons(function))
    assert_same(function(*args), jax.jit(gradient)(*args))


def test_policy_checks_what_it_is_given():
    with pytest.raises(ValueError, match="rolled=.*must be True or False"):
        jitscope.Policy(rolled=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="max_stacked_bytes=.*positive"):
        jitscope.Policy(max_stacked_bytes=0)


def test_donated_parameters_are_given_up():
    def step(params, x):
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    params, x = arguments()
    expected = jax.jit(step)(params, x)
    function = rolled(step, donate_argnums=0)
    assert (N_LAYERS, True) in loops(function, params, x)
    assert_same(function(params, x), expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_report_says_what_was_rolled():
    function = rolled(net)
    function(*arguments())
    assert "ROLLED" in str(function.reuse())
    assert f"{N_LAYERS} calls are a loop, stacking copies" in str(function.reuse().plan)


@pytest.mark.slow
def test_processes_lower_to_the_same_module_with_loops():
    first, second = (run_python([__file__], {"PYTHONHASHSEED": seed}) for seed in "12")
    assert first == second
    assert "while" in first


def test_failure_leaves_the_program_as_jax_jit_compiles_it(monkeypatch):
    def fail(*_):
        raise RuntimeError("of the test")

    monkeypatch.setattr("jitscope.rolled.roll.find_chains", fail)
    monkeypatch.setattr("jitscope.outermost.jit.strict", lambda: False)
    args = arguments()
    function = rolled(net)
    with pytest.warns(RuntimeWarning, match="could not structure.*of the test"):
        assert_same(function(*args), jax.jit(net)(*args))


def test_staged_programs_have_no_loops():
    policy = jitscope.Policy(rolled=True, **EAGER)
    function = jitscope.outermost_jit(net, staged=True, policy=policy)
    args = arguments()
    assert_same(function(*args), jax.jit(net)(*args))
    assert loops(function, *args) == []
    assert "STAGED" in str(function.reuse())


# --- residuals ------------------------------------------------------------------------------------


def forward_stacks(function, *args):
    (forward,) = [
        eqn
        for eqn in equations(function.trace(*args).jaxpr)
        if eqn.primitive.name == "scan" and not eqn.params["reverse"]
    ]
    return [var.aval.shape for var in forward.outvars if var.aval.shape[:1] == (N_LAYERS,)]


def test_what_follows_from_stored_residuals_is_computed_again():
    """Of the factors of an activation's derivative one is stored, its argument."""

    @jitscope.shared_subroutine
    def layer(p, x):
        return x + jax.nn.gelu(x @ p["w"]) @ p["w"].T

    def fun(params, x):
        x = x * params[0]["b"]
        for p in params:
            x = layer(p, x)
        return (x * x).mean()

    params, x = arguments()
    function = rolled(jax.grad(fun), outline=False)
    assert loops(function, params, x) == [(N_LAYERS, False), (N_LAYERS, True)]
    # Its input and the argument of the activation, of seven values that the gradient reads.
    assert forward_stacks(function, params, x) == 2 * [(N_LAYERS, *x.shape)]
    assert_same(function(params, x), jax.jit(jax.grad(fun))(params, x))


def test_forward_pass_is_not_rolled_where_the_backward_pass_is_not():
    """All its residuals would be copied out of their stacks, one by one."""

    def policy(census):
        plan = jitscope.Policy(rolled=True, **EAGER)(census)
        backward = {
            body.fingerprint.digest: jitscope.Decision(jitscope.Structure.NESTED, "for the test")
            for body in census.bodies
            if body.name.endswith("_gradient")
        }
        limits = jitscope.LoopLimits(min_saved_per_copy=4)
        return jitscope.Plan({**plan.decisions, **backward}, limits)

    args = arguments()
    function = jitscope.outermost_jit(jax.grad(loss), policy=policy)
    assert loops(function, *args) == []
    assert any("values into and out of stacks" in reason for reason in reasons(function))
    assert_same(function(*args), jax.jit(jax.grad(loss))(*args))


def test_comparisons_of_real_numbers_are_not_made_again():
    """Rounded otherwise they could choose otherwise than the forward pass did."""

    def fun(params, x):
        for p in params:
            y = x @ p["w"]
            x = x + jnp.where(y * 3 > 1, jnp.sin(y), y * p["b"]) @ p["w"].T
        return (x * x).mean()

    def gradient(params, x):
        return jax.grad(fun)(params, x * params[0]["b"])

    args = arguments()
    stacked = [
        var.aval.dtype
        for eqn in equations(rolled(gradient).trace(*args).jaxpr)
        if eqn.primitive.name == "scan" and not eqn.params["reverse"]
        for var in eqn.outvars
    ]
    assert jnp.bool_ in stacked
    assert_same(rolled(gradient)(*args), jax.jit(gradient)(*args))


if __name__ == "__main__":
    print(rolled(jax.grad(loss)).lower(*arguments()).as_text())
