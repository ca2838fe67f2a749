"""The census against a recount that knows nothing of it."""

from __future__ import annotations

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from programs import PROGRAMS

from jitscope import _jax
from jitscope.ir.constants import hoisted
from jitscope.ir.fingerprint import fingerprint
from jitscope.ir.program import capture
from jitscope.names import SubroutineName
from jitscope.structuring.counting import take_census
from jitscope.structuring.rows import _longest_row
from jitscope.structuring.variants import find_variants

X = np.ones(4, np.float32)


def census_of(fun, *args):
    return take_census(hoisted(capture(fun, args or (X,), {}, {})))


def body_named(census, name):
    (found,) = [body for body in census.bodies if body.name == name]
    return found


def named(name, fun):
    fun.__name__ = fun.__qualname__ = name
    return jax.jit(fun)


def step(name="step"):
    return named(name, lambda x: jnp.sin(x) * 2 + jnp.cos(x))


# --- counts ---------------------------------------------------------------------------------------


def test_program_without_calls_has_no_bodies():
    census = census_of(lambda x: jnp.sin(x) + 1)
    assert census.bodies == ()
    assert census.n_calls == 0
    assert census.n_equations == 2


def test_calls_of_one_body_are_its_uses():
    f = step()
    body = body_named(census_of(lambda x: f(f(f(x)))), "step")
    assert (body.n_uses, body.n_executions, body.n_paths) == (3, 3, 3)
    assert body.n_equations == 4


def test_equal_bodies_traced_apart_are_one_body():
    f, g = step("f"), step("g")
    census = census_of(lambda x: g(f(x)))
    assert [(body.name, body.n_uses) for body in census.bodies] == [("f", 2)]


def test_bodies_are_listed_in_the_order_of_their_first_calls():
    f, g = step("f"), named("g", jnp.tan.__wrapped__)
    assert [b.name for b in census_of(lambda x: f(g(f(x)))).bodies] == ["f", "g"]


def test_calls_in_a_shared_body_count_once():
    inner = step("inner")
    outer = named("outer", lambda x: inner(inner(inner(inner(x)))) + 1)

    def net(x):
        for _ in range(6):
            x = outer(x)
        return x

    census = census_of(net)
    assert body_named(census, "outer").n_uses == 6
    assert body_named(census, "inner").n_uses == 4
    assert body_named(census, "inner").n_executions == 24
    assert body_named(census, "inner").n_paths == 24
    assert census.n_calls == 10


def test_loop_multiplies_executions_and_not_uses():
    f = step()

    def net(x):
        x = lax.scan(lambda c, _: (f(f(c)), None), x, length=10)[0]
        return f(x)

    body = body_named(census_of(net), "step")
    assert (body.n_uses, body.n_executions, body.n_paths) == (3, 21, 3)


def test_nested_loops_multiply():
    f = step()

    def inner(x):
        return lax.scan(lambda c, _: (f(c), None), x, length=3)[0]

    def outer(x):
        return lax.scan(lambda c, _: (inner(c), None), x, length=5)[0]

    assert body_named(census_of(outer), "step").n_executions == 15


def test_executions_of_a_loop_in_a_shared_body_multiply():
    f = step()
    outer = named("outer", lambda x: lax.scan(lambda c, _: (f(c), None), x, length=3)[0])
    body = body_named(census_of(lambda x: outer(outer(x))), "step")
    assert (body.n_uses, body.n_executions) == (1, 6)


def with_jvp(f):
    g = jax.custom_jvp(lambda x: f(x))
    g.defjvp(lambda primals, tangents: (g(*primals), tangents[0]))
    return g


def with_vjp(f):
    g = jax.custom_vjp(lambda x: f(x))
    g.defvjp(lambda x: (g(x), None), lambda _, ct: (ct,))
    return g


def around(kind, f, x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("i")
    return {
        "scan": lambda: lax.scan(lambda c, _: (f(c), None), x, length=1)[0],
        "while": lambda: lax.while_loop(lambda c: f(c)[0] < 9, lambda c: c + 1, x),
        "cond": lambda: lax.cond(x[0] > 0, f, jnp.sin, x),
        "checkpoint": lambda: jax.checkpoint(f)(x),
        "custom_jvp": lambda: with_jvp(f)(x),
        "custom_vjp": lambda: with_vjp(f)(x),
        "shard_map": lambda: jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)(x),
    }[kind]()


@pytest.mark.parametrize(
    "kind", ["scan", "while", "cond", "checkpoint", "custom_jvp", "custom_vjp", "shard_map"]
)
def test_calls_are_found_within(kind):
    f = step()
    census = census_of(lambda x: around(kind, f, x))
    assert body_named(census, "step").n_uses == 1


def fibonacci(n):
    """Calls within calls: each body calls the two before it."""

    @functools.cache
    def fib(n):
        if n < 2:
            return named(f"fib{n}", lambda x: jnp.sin(x) + n)
        before, last = fib(n - 2), fib(n - 1)
        return named(f"fib{n}", lambda x: before(x) + last(x))

    return fib(n)


def test_paths_of_a_recursive_fibonacci_are_fibonacci_numbers():
    census = census_of(fibonacci(12))
    paths = {body.name: body.n_paths for body in census.bodies}
    numbers = [1, 1]
    while len(numbers) < 14:
        numbers.append(numbers[-1] + numbers[-2])
    assert paths == {f"fib{n}": numbers[12 - n] for n in range(1, 13)} | {"fib0": numbers[10]}
    assert all(body.n_uses <= 2 for body in census.bodies)


def test_deep_call_graphs_are_counted_without_expanding_them():
    fun = step("f0")
    for i in range(60):
        fun = named(f"f{i + 1}", lambda x, fun=fun: fun(fun(x)))
    census = census_of(fun)
    assert body_named(census, "f0").n_paths == 2**60


# --- the same by another way ----------------------------------------------------------------------


def recount(jaxpr):
    """Uses, executions and equations, by walking the whole tree of calls."""
    uses: dict[str, set] = {}
    executions: Counter[str] = Counter()

    def visit(jaxpr, trips, inside):
        total = 0
        for i, eqn in enumerate(_jax.equations(jaxpr)):
            subs = list(_jax.sub_jaxprs(eqn)) if eqn.primitive in _jax.SUBPROGRAMS else []
            here = inside + ((i, len(subs)),)
            n = trips * (eqn.params["length"] if "length" in eqn.params else 1)
            if eqn.primitive is _jax.jit_p:
                digest = fingerprint(eqn.params["jaxpr"]).digest
                uses.setdefault(digest, set()).add(here)
                executions[digest] += n
                here = (digest,)
            total += sum(visit(s, n, (*here, k)) for k, s in enumerate(subs)) or 1
        return total

    n_equations = visit(jaxpr, 1, ())
    return {digest: len(sites) for digest, sites in uses.items()}, dict(executions), n_equations


@pytest.mark.parametrize(
    "name",
    [
        "residual_mlp", "nested_subroutines", "lstm", "mixture_of_experts", "dropout_with_keys",
        "single_use_beside_repeats", "scan_in_body", "while_loop_in_body", "cond_in_body",
        "vmap_in_body", "scan_around_bodies", "checkpoint_of_shared", "custom_vjp_inside",
    ],
)  # fmt: skip
@pytest.mark.parametrize("differentiated", [False, True], ids=["value", "grad"])
def test_counts_equal_an_independent_recount(name, differentiated):
    fun, args = PROGRAMS[name].build(jax.jit)
    if differentiated:
        if "grad" not in PROGRAMS[name].transforms:
            pytest.skip("not differentiable")
        fun = jax.grad(functools.partial(total, fun), allow_int=True)
    program = hoisted(capture(fun, args, {}, {}))
    census = take_census(program)
    uses, executions, n_equations = recount(program.jaxpr)
    assert {b.fingerprint.digest: b.n_uses for b in census.bodies} == uses
    assert {b.fingerprint.digest: b.n_executions for b in census.bodies} == executions
    assert census.n_equations == n_equations


def total(fun, *args):
    leaves = map(jnp.asarray, jax.tree.leaves(fun(*args)))
    return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in leaves)


# --- what else is recorded about a body -----------------------------------------------------------


def test_sizes_of_operands_and_results():
    f = named("f", lambda x, y: (x @ y, jnp.zeros((2, 2), jnp.bfloat16)))
    body = body_named(census_of(f, np.ones((4, 8), "f4"), np.ones((8, 2), "f4")), "f")
    assert body.operand_bytes == 4 * (4 * 8 + 8 * 2)
    assert body.result_bytes == 4 * 4 * 2 + 2 * 4


def test_keys_have_a_size():
    f = named("f", lambda key: jax.random.bits(key))
    assert body_named(census_of(f, jax.random.key(0)), "f").operand_bytes > 0


def test_heavy_equations_are_counted_through_nested_calls():
    def g(x):
        return jax.jit(lambda x: x @ x)(x) + jnp.sort(x)

    f = named("f", lambda x: lax.cond(x[0, 0] > 0, g, jnp.sin, g(x)))
    assert body_named(census_of(f, np.ones((4, 4), "f4")), "f").n_heavy == 4


def test_calls_that_feed_each_other_are_counted():
    f = step()
    chain = census_of(lambda x: f(f(f(x))))
    apart = census_of(lambda x: (f(x), f(x + 1), f(x + 2)))
    assert body_named(chain, "step").n_chained == 2
    assert body_named(apart, "step").n_chained == 0


def repeated(fun):
    def of_some_size(*args):
        x, *others = args
        for _ in range(5):
            x = fun(x, *others)
        return x

    return of_some_size


def test_calls_that_feed_each_other_through_a_sum_are_counted():
    f = named("step", repeated(lambda x: jnp.sin(x) * 2 + jnp.cos(x)))

    def between(glue, x):
        for _ in range(4):
            x = glue(f(x))
        return x

    def with_call(x):
        return jax.jit(lambda x: x * 2)(x) + 1

    def n_chained(glue):
        found = census_of(lambda x: between(glue, x))
        return body_named(found, "step").n_chained

    assert n_chained(lambda x: x + 1) == n_chained(with_call) == 3
    assert n_chained(lambda x: jnp.sort(x)) == n_chained(jnp.cumsum) == 0
    assert n_chained(lambda x: jnp.ones_like(x)) == 0
    f = step()
    assert n_chained(lambda x: x + 1) == 0  # too small to be looked at


def test_gradient_of_steps_with_a_loss_each_is_a_chain():
    f = named("f", repeated(lambda x, a: jnp.sin(x * a) * jnp.cos(x)))

    def loss(x, a):
        total = 0.0
        for _ in range(6):
            x = f(x, a)
            total = total + (x * x).sum()
        return total

    found = census_of(jax.grad(loss), 1.0, 2.0)
    chained = [b for b in found.bodies if b.name == "f" and b.n_uses > 3]
    assert len(chained) == 2 and all(b.is_chained for b in chained)
    assert all(b.n_residuals > 0 for b in chained)


def expert():
    return named("expert", lambda x, w: jnp.tanh(x @ w))


def test_calls_that_may_run_side_by_side_are_counted():
    f = expert()

    def mixture(x, w):
        for _ in range(3):
            x = jnp.sin(sum(f(x + i, w) for i in range(4)))
        return x

    body = body_named(census_of(mixture, np.ones((4, 4), "f4"), np.ones((4, 4), "f4")), "expert")
    assert (body.n_uses, body.n_successive, body.n_side_by_side) == (12, 3, 4)


def test_calls_that_wait_for_one_another_through_other_code_are_no_side_by_side():
    f = expert()

    def net(x, w):
        for _ in range(4):
            x = jnp.sin(f(x, w))
        return x

    body = body_named(census_of(net, np.ones((4, 4), "f4"), np.ones((4, 4), "f4")), "expert")
    assert (body.n_chained, body.n_successive, body.n_side_by_side) == (0, 4, 1)


def test_calls_in_loops_and_in_other_bodies_wait_for_one_another_where_they_are():
    f = expert()
    pair = named("pair", lambda x, w: f(x, w) + f(x + 1, w))

    def net(x, w):
        x = jnp.sin(pair(x, w)) + jnp.sin(f(x, w))
        return lax.fori_loop(0, 3, lambda _, x: jnp.sin(f(x, w)), x)

    body = body_named(census_of(net, np.ones((4, 4), "f4"), np.ones((4, 4), "f4")), "expert")
    assert (body.n_uses, body.n_successive, body.n_side_by_side) == (4, 3, 1)


def test_calls_that_wait_for_one_another_are_looked_for_where_there_are_several(monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        "jitscope.structuring.rows._longest_row",
        lambda *args: [looked_at.append(args), _longest_row(*args)][1],
    )
    bodies = [named(f"f{i}", lambda x, w, i=i: jnp.tanh(x @ w) * i) for i in range(8)]
    callers = [named("once", lambda x, w, f=f: f(x, w) - 1) for f in bodies]

    def net(x, w):
        several = sum(bodies[0](x + i, w) for i in range(3))
        return several + sum(caller(x, w) for caller in callers)

    counted = census_of(net, np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))
    found = {body.name: (body.n_uses, body.n_successive) for body in counted.bodies}
    assert (found["f0"], found["f1"]) == ((4, 2), (1, 1))
    assert len(looked_at) == 1


def test_source_is_the_line_of_the_first_call():
    f = step()

    def net(x):
        return f(f(x))

    source = body_named(census_of(net), "step").source
    assert "test_census.py" in source
    assert "net" in source


def test_structure_that_the_user_asked_for_is_recorded():
    f = step(SubroutineName("f", structure="inline"))
    assert body_named(census_of(f), "f").forced == "inline"
    assert body_named(census_of(step()), "step").forced is None


def test_side_effects_are_an_obstacle():
    def printing(x):
        jax.debug.print("{}", x)
        return x

    assert "side effects" in body_named(census_of(named("f", printing)), "f").obstacle


def test_shardings_of_its_own_are_an_obstacle():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    f = jax.jit(jnp.sin, out_shardings=sharding)
    (body,) = [b for b in census_of(lambda x: f(x) + 1).bodies if b.obstacle]
    assert "shardings" in body.obstacle


def test_identity_that_holds_in_one_process_only_is_an_obstacle():
    def f(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4,), "f4"), x)

    obstacle = body_named(census_of(named("f", f)), "f").obstacle
    assert "no process-stable identity" in obstacle
    assert "callback" in obstacle


def test_pure_bodies_have_no_obstacle():
    assert body_named(census_of(step()), "step").obstacle == ""


# --- variants -------------------------------------------------------------------------------------


def long_chain(x, n=14):
    for i in range(n):
        x = jnp.sin(x) + i
    return x


def test_calls_of_a_covered_body_count_for_the_body_that_covers_it():
    both = named("chain", lambda x: (long_chain(x), 2 * x))
    one = named("chain", lambda x: (long_chain(x),))
    program = hoisted(capture(lambda x: (both(x), both(x), one(x)), (X,), {}, {}))
    separate = take_census(program)
    assert [body.n_uses for body in separate.bodies] == [2, 1]
    merged = take_census(program, find_variants(program))
    assert [body.n_uses for body in merged.bodies] == [3]


# --- printing -------------------------------------------------------------------------------------


def test_census_prints_its_bodies():
    f = step()
    text = str(census_of(lambda x: f(f(x))))
    assert "2 calls of 1 bodies, 8 equations" in text
    assert "step" in text


def test_residuals_are_what_no_neighbour_in_a_chain_gives_or_takes():
    @jax.jit
    def step(x, table):
        return jnp.sin(x * table) * 0.1 + jnp.cos(x)

    def loss(x, table):
        for _ in range(4):
            x = step(x, table)
        return x.sum()

    (forward,) = census_of(loss, X, X).bodies
    assert (forward.n_boundary, forward.n_residuals) == (3, 0)
    census = census_of(jax.grad(loss), X, X)
    forward, backward = [body for body in census.bodies if body.n_uses > 2]
    assert forward.n_residuals == forward.n_boundary - 3 > 0  # all but x, the table and the next x
    assert backward.n_residuals == backward.n_boundary - 2  # all but the cotangent and the next one
