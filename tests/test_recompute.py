"""A stage makes cheap values again instead of reading them, and nothing else changes."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER_LIMITS, assert_same
from jax import lax

import jitscope
from jitscope import _jax
from jitscope.staged import stages as stages_module
from jitscope.staged.recompute import with_recomputation
from jitscope.staged.schedule import live_bytes
from jitscope.staged.stages import can_cross

EAGER = jitscope.Policy(**EAGER_LIMITS)
N_LAYERS, BATCH, WIDTH = 5, 64, 128


def norm(x):
    deviation = x - x.mean(-1, keepdims=True)
    return deviation * lax.rsqrt((deviation * deviation).mean(-1, keepdims=True) + 1e-6)


def layer(p, x):
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def step(params, x):
    def loss(params):
        out = x
        for p in params:
            out = layer(p, out)
        return (out * out).mean()

    return jax.value_and_grad(loss)(params)


def arguments():
    normal = np.random.default_rng(0).standard_normal
    shapes = {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    params = [
        {name: jnp.asarray(normal(shape) * 0.05, jnp.float32) for name, shape in shapes.items()}
        for _ in range(N_LAYERS)
    ]
    return params, jnp.asarray(normal((BATCH, WIDTH)), jnp.float32)


def staged(fun, **options):
    return jitscope.outermost_jit(fun, staged=True, policy=EAGER, **options)


def stages_of(fun, *args, **options):
    return staged(fun, **options)._jitted._signature.eval_shape(*args).staged._stages


def stages_as_they_were(monkeypatch, fun, *args, **options):
    with monkeypatch.context() as patch:
        patch.setattr(stages_module, "with_recomputation", lambda *_: None)
        return stages_of(fun, *args, **options)


def n_passed(stages):
    """Values from one step to another, and their bytes at the worst moment."""
    first = stages.steps[0].results[0]
    read = {slot for step in stages.steps for slot in step.operands if slot >= first}
    return len(read), max(live_bytes(stages.steps, stages.avals, first))


def counts(stages):
    """How often one run of the program runs each primitive."""
    found = collections.Counter()

    def count(jaxpr, times):
        for eqn in _jax.equations(jaxpr):
            found[eqn.primitive.name] += times
            for sub in _jax.sub_jaxprs(eqn):
                count(sub, times)

    for step in stages.steps:
        count(stages.stages[step.stage].jaxpr, 1)
    return found


def assert_consistent(stages):
    """Every stage reads and writes what its steps say, and only what is there."""
    written = stages.steps[0].results[0]
    for step in stages.steps:
        stage = _jax.opened(stages.stages[step.stage].jaxpr)
        assert [v.aval for v in stage.invars] == [stages.avals[slot] for slot in step.operands]
        assert [v.aval for v in stage.outvars] == list(stages.avals[slice(*step.results)])
        assert step.results[0] == written and all(slot < written for slot in step.operands)
        written = step.results[1]
        known = {*stage.invars}
        for eqn in stage.eqns:
            assert known.issuperset(a for a in eqn.invars if not isinstance(a, _jax.Literal))
            known.update(eqn.outvars)
        assert known.issuperset(a for a in stage.outvars if not isinstance(a, _jax.Literal))
    assert written == len(stages.avals)
    assert all(slot < written for slot in stages.results)


def test_gradient_reads_fewer_and_lighter_values(monkeypatch):
    n_before, before = n_passed(stages_as_they_were(monkeypatch, step, *arguments()))
    stages = stages_of(step, *arguments())
    assert_consistent(stages)
    n_after, after = n_passed(stages)
    assert n_after < 0.4 * n_before
    assert after < 0.7 * before


def test_results_are_those_of_jit():
    args = arguments()
    assert_same(staged(step)(*args), jax.jit(step)(*args))


def test_matrix_products_run_as_often_as_before(monkeypatch):
    before = counts(stages_as_they_were(monkeypatch, step, *arguments()))
    after = counts(stages_of(step, *arguments()))
    assert after["dot_general"] == before["dot_general"] == counts_of_jit(step)["dot_general"]
    assert after["tanh"] > before["tanh"]


def counts_of_jit(fun):
    found = collections.Counter()
    for eqn in _jax.equations(jax.make_jaxpr(fun)(*arguments())):
        found[eqn.primitive.name] += 1
    return found


def test_what_was_rewritten_is_not_rewritten_again():
    stages = stages_of(step, *arguments())
    jaxprs = [stage.jaxpr for stage in stages.stages]
    first = stages.steps[0].results[0]
    again = with_recomputation(jaxprs, stages.steps, stages.avals, first, stages.results, can_cross)
    assert again is None


def test_random_bits_are_drawn_as_often_as_before(monkeypatch):
    def fun(params, key, x):
        def loss(params):
            out = x
            for i, p in enumerate(params):
                kept = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, out.shape)
                out = jnp.where(kept, layer(p, out), 0.0)
            return (out * out).mean()

        return jax.value_and_grad(loss)(params)

    params, x = arguments()
    args = params, jax.random.key(0), x
    before = counts(stages_as_they_were(monkeypatch, fun, *args))
    assert counts(stages_of(fun, *args))["random_bits"] == before["random_bits"] > 0
    assert_same(staged(fun)(*args), jax.jit(fun)(*args))


def crossing_dtypes(stages):
    first = stages.steps[0].results[0]
    return {
        stages.avals[slot].dtype.name
        for step in stages.steps
        for slot in step.operands
        if slot >= first and stages.avals[slot].size >= BATCH * WIDTH
    }


def chained(first, second):
    """Pairs of bodies: what the second ones read are results of the first ones."""
    first, second = map(jitscope.shared_subroutine, (first, second))

    def fun(params, x):
        kept = []
        for p in params:
            x, *others = first(p["up"][:, :WIDTH], x)
            kept.append(others)
        return [second(*others) for others in kept], x

    return fun


def test_value_that_is_lighter_than_what_makes_it_is_passed():
    def first(w, x):
        product = x @ w
        return jnp.tanh(product), product > 0, product.astype(jnp.bfloat16)

    fun = chained(first, lambda mask, half: jnp.where(mask, half, half * 2).sum())
    stages = stages_of(fun, *arguments(), outline=False)
    assert crossing_dtypes(stages) == {"bool", "bfloat16", "float32"}  # float32: the chain itself
    assert_same(staged(fun)(*arguments()), jax.jit(fun)(*arguments()))


def test_values_made_from_nothing_are_not_passed(monkeypatch):
    def first(w, x):
        return jnp.tanh(x @ w), lax.broadcasted_iota(jnp.int32, x.shape, 0), jnp.zeros_like(x)

    fun = chained(first, lambda rows, zeros: (rows + zeros).sum())
    assert "int32" in crossing_dtypes(
        stages_as_they_were(monkeypatch, fun, *arguments(), outline=False)
    )
    stages = stages_of(fun, *arguments(), outline=False)
    assert_consistent(stages)
    assert "int32" not in crossing_dtypes(stages)
    assert_same(staged(fun)(*arguments()), jax.jit(fun)(*arguments()))


@pytest.mark.parametrize("width", [WIDTH, 1 << 14])
def test_only_short_rows_are_reduced_again(width):
    def first(w, x):
        wide = jnp.broadcast_to((x @ w)[:, :1], (BATCH, width))
        return jnp.tanh(x @ w), jnp.sin(wide).max(-1)

    fun = chained(first, lambda most: most * 2)
    reductions = counts(stages_of(fun, *arguments(), outline=False))["reduce_max"]
    assert reductions == N_LAYERS  # one number a row is lighter to pass than to make
    assert_same(staged(fun)(*arguments()), jax.jit(fun)(*arguments()))


def test_64_bit_values_within_a_body_are_not_passed():
    def first(w, x):
        with jax.enable_x64(True):
            wide = lax.convert_element_type(x @ w, np.float64)
            narrow = [lax.convert_element_type(wide * i, np.float32) for i in (1, 2, 3)]
        return jnp.tanh(x @ w), *narrow

    fun = chained(first, lambda *values: sum(v.sum() for v in values))
    stages = stages_of(fun, *arguments(), outline=False)
    assert "float64" not in crossing_dtypes(stages)
    assert_same(staged(fun)(*arguments()), jax.jit(fun)(*arguments()))


def test_donated_arguments_are_given_up_after_the_gradient_has_read_them():
    params, x = arguments()
    function = staged(step, donate_argnums=0)
    expected = jax.jit(step)(params, x)
    actual = function(params, x)
    assert_same(actual, expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_layers_read_narrow_weights_and_widen_them_themselves():
    shared = jitscope.shared_subroutine(lambda w, x: jnp.tanh(x @ w))

    def fun(weights, x):
        for w in weights:
            x = shared(w.astype(jnp.float32), x)
        return x

    weights = [jnp.full((WIDTH, WIDTH), 0.01, jnp.bfloat16)] * N_LAYERS
    args = weights, arguments()[1]
    stages = stages_of(fun, *args, outline=False)
    assert_consistent(stages)
    assert [stages.stages[step.stage].is_body for step in stages.steps] == [True] * N_LAYERS
    assert_same(staged(fun)(*args), jax.jit(fun)(*args))


def test_first_and_last_layers_that_are_other_code_are_compared_with_the_rest(monkeypatch):
    stages = stages_of(step, *arguments())
    kept = [step for step in stages.steps if stages.stages[step.stage].is_body]
    assert len({step.stage for step in kept}) == 2 and len(kept) == 2 * (N_LAYERS - 1)
    gradient = max(step.stage for step in kept)
    reads = [step.operands for step in stages.steps if step.stage == gradient]
    makers = [
        {
            other.stage
            for other in stages.steps
            for slot in operands
            if slot in range(*other.results)
        }
        for operands in reads
    ]
    assert makers[-1] != makers[0]  # other code makes what the last of them reads
    n_products = 1  # a layer keeps the first of its two products; its input is there already
    layers = next(step for step in kept if step.stage != gradient)
    assert layers.results[1] - layers.results[0] == n_products + 1


def test_step_that_reads_something_else_keeps_reading_it():
    first = jitscope.shared_subroutine(lambda w, x: (jnp.tanh(x @ w), jnp.sin(x @ w) * 2))
    second = jitscope.shared_subroutine(lambda value: (value * value).sum())

    def fun(params, x):
        kept = [x * 3]
        for p in params:
            x, other = first(p["up"][:, :WIDTH], x)
            kept.append(other)
        return [second(value) for value in kept], x

    stages = stages_of(fun, *arguments(), outline=False)
    assert_consistent(stages)
    assert_same(staged(fun)(*arguments()), jax.jit(fun)(*arguments()))
