"""What `_jax` and `phases.py` assume about JAX: a release that differs fails here, by name."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import core, effects, pjit, shard_map, source_info_util, traceback_util
from jax._src.interpreters import ad, partial_eval as pe, remat
from jax._src.random.threefry2x32 import _threefry2x32_lowering
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import primitives
from jax.interpreters import batching, mlir

from jitscope import _jax
from jitscope.staged.executables import ONE_GPU_OPTIONS


def equations(fun, *args):
    return _jax.equations(jax.make_jaxpr(fun)(*args))


def every_equation(jaxpr) -> Iterator:
    for eqn in _jax.equations(jaxpr):
        yield eqn
        for sub in _jax.sub_jaxprs(eqn):
            yield from every_equation(sub)


# --- one door -------------------------------------------------------------------------------------

INTERNAL = re.compile(r"jax\.(_src|extend|interpreters|version|__version\w*)\b|jaxlib\b")


def internals_named_in(source: str) -> set[str]:
    """Internals of JAX and versions of it that a module's code imports or looks up."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node).startswith("hasattr(jax,"):
            found.add("jax.__version__, by a name that only some versions have")
    return {name for name in found if INTERNAL.match(name)}


@pytest.mark.parametrize(
    "source",
    [
        "import jax._src.core",
        "from jax import _src",
        "from jax._src.core import trace_ctx",
        "from jax.extend.core import Jaxpr",
        "from jax.interpreters import mlir",
        "import jax; jax.extend.core.Jaxpr",
        "import jax; jax.__version_info__ > (0, 11)",
        "from jax import __version__",
        "import jax; hasattr(jax, 'Inline')",
    ],
)
def test_internals_are_found_however_they_are_named(source):
    assert internals_named_in(source)
    assert not internals_named_in(
        "import jax; jax.jit; from ._jax import VERSION; import jax.numpy"
    )


def test_only_the_door_names_internals_or_a_version_of_jax():
    door = Path(_jax.__file__).parent
    found = {path: internals_named_in(path.read_text()) for path in door.parent.rglob("*.py")}
    outside = {path: names for path, names in found.items() if names and door not in path.parents}
    assert outside == {}
    assert found[door / "lowering.py"] and found[door / "runtime.py"]


# --- private names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (core, "trace_ctx trace_state_clean get_axis_env join_effects DebugInfo ShapedArray"),
        (effects, "JaxprInputEffect ordered_effects"),
        (pjit, "_pjit_lowering"),
        (shard_map, "shard_map_p"),
        (source_info_util, "user_frames user_context"),
        (traceback_util, "register_exclusion"),
        (
            ad,
            "primitive_jvps primitive_linearizations fancy_transposes",
        ),
        (
            pe,
            "DynamicJaxprTrace DynamicJaxprTracer custom_partial_eval_rules dce_jaxpr"
            " partial_eval_jaxpr_custom_rules",
        ),
        (remat, "rules"),
        (batching, "fancy_primitive_batchers"),
        (mlir, "register_lowering SPMDAxisContext LoweringRuleContext"),
        (jax.extend.source_info_util, "register_exclusion current summarize new_name_stack"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_private_names_exist(module, names):
    assert [name for name in names.split() if not hasattr(module, name)] == []


def test_inline_enumeration_has_early_and_late():
    if _jax.HAS_INLINE_ENUM:
        assert {"JAX_EARLY", "XLA_LATE"} <= set(dir(jax.Inline))
    else:
        params = equations(jax.jit(lambda x: x + 1), 0.0)[0].params
        assert params["inline"] is False


# --- primitives and their parameters --------------------------------------------------------------


@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x)


with_jvp.defjvp(lambda primals, tangents: (jnp.sin(*primals), 3 * tangents[0]))


@jax.custom_vjp
def with_vjp(x):
    return jnp.sin(x)


with_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (3 * ct,))


def manual(x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    return jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)(x)


X = np.ones(3, np.float32)
EXAMPLES = {
    _jax.jit_p: jax.jit(jnp.sin),
    primitives.scan_p: lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0],
    primitives.while_p: lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x),
    primitives.cond_p: lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    primitives.custom_jvp_call_p: with_jvp,
    primitives.custom_vjp_call_p: with_vjp,
    primitives.remat_p: jax.checkpoint(jnp.sin),
    shard_map.shard_map_p: manual,
}


@jax.custom_jvp
def with_other_jvp(x):
    return jnp.sin(x)


with_other_jvp.defjvp(lambda primals, tangents: (jnp.sin(*primals), tangents[0]))


@jax.custom_vjp
def with_other_vjp(x):
    return jnp.sin(x)


with_other_vjp.defvjp(lambda x: (jnp.sin(x), None), lambda _, ct: (ct,))

OTHER_RULES = {
    primitives.custom_jvp_call_p: with_other_jvp,
    primitives.custom_vjp_call_p: with_other_vjp,
    primitives.remat_p: jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.everything_saveable),
}


def example(primitive):
    (eqn,) = (e for e in equations(EXAMPLES[primitive], X) if e.primitive is primitive)
    return eqn


def by_name(primitive):
    return primitive.name


def test_each_primitive_with_subprograms_has_an_example_here():
    assert EXAMPLES.keys() == _jax.SUBPROGRAMS.keys()


@pytest.mark.parametrize("primitive", _jax.SUBPROGRAMS, ids=by_name)
def test_subprograms_are_all_jaxprs_of_the_equation(primitive):
    eqn = example(primitive)
    assert set(_jax.SUBPROGRAMS[primitive]) <= eqn.params.keys()
    found = []
    for name in _jax.SUBPROGRAMS[primitive]:
        value = eqn.params[name]
        found += value if isinstance(value, tuple) else [value]
    assert list(map(id, found)) == list(map(id, _jax.sub_jaxprs(eqn)))
    assert all(map(_jax.is_jaxpr, found))


@pytest.mark.parametrize(
    ("table", "primitive"),
    [(t, p) for t in ("DERIVATIVE_ONLY", "NAME_ONLY") for p in getattr(_jax, t)],
    ids=lambda value: getattr(value, "name", value),
)
def test_ignored_parameters_exist(table, primitive):
    assert getattr(_jax, table)[primitive] <= example(primitive).params.keys()


@pytest.mark.parametrize("primitive", _jax.DERIVATIVE_ONLY, ids=by_name)
def test_lowering_does_not_read_parameters_of_derivatives(primitive):
    """Or bodies that differ in them alone could not be lowered as one."""
    jaxpr, other = (jax.make_jaxpr(table[primitive])(X) for table in (EXAMPLES, OTHER_RULES))
    (foreign,) = (e for e in _jax.equations(other) if e.primitive is primitive)
    exchanged = {name: foreign.params[name] for name in _jax.DERIVATIVE_ONLY[primitive]}
    mixed = _jax.rebuilt(jaxpr, eqns=[
        eqn.replace(params=eqn.params | exchanged) if eqn.primitive is primitive else eqn
        for eqn in _jax.equations(jaxpr)
    ])  # fmt: skip

    def text(jaxpr):
        return jax.jit(lambda x: _jax.emit(jaxpr, [x], "f")).lower(X).as_text()

    assert text(mixed) == text(jaxpr)


def test_parameters_of_a_nested_jit_are_known():
    """One that is new may change what a call computes: it belongs in a table or in `jit_params`."""
    assert set(example(_jax.jit_p).params) == {
        "jaxpr", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars",
        "ctx_mesh", "name", "keep_unused", "inline", "compiler_options_kvs",
    }  # fmt: skip


@pytest.mark.parametrize(
    "key", ["in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars"]
)
def test_per_value_parameters_of_a_nested_jit_are_tuples(key):
    assert isinstance(example(_jax.jit_p).params[key], tuple)
    assert len(example(_jax.jit_p).params[key]) == 1


def test_scan_has_a_trip_count():
    assert _jax.trip_count(example(primitives.scan_p)) == 3


def test_options_of_a_nested_jit_show_in_its_parameters():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    (plain,) = equations(jax.jit(jnp.sin), X)
    (with_in,) = equations(jax.jit(jnp.sin, in_shardings=sharding), X)
    (with_out,) = equations(jax.jit(jnp.sin, out_shardings=sharding), X)
    assert not _jax.has_options(plain)
    assert _jax.has_options(with_in)
    assert _jax.has_options(with_out)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("jvp", ad.primitive_jvps),
        ("linearize", ad.primitive_linearizations),
        ("transpose", ad.fancy_transposes),
        ("batch", batching.fancy_primitive_batchers),
        ("partial_eval", pe.custom_partial_eval_rules),
        ("partial_eval_jaxpr", pe.partial_eval_jaxpr_custom_rules),
        ("remat", remat.rules),
    ],
)
def test_nested_jit_has_a_rule_for(name, rules):
    del name
    assert callable(rules[_jax.jit_p])


def test_every_heavy_primitive_is_one():
    assert all(isinstance(p, _jax.Primitive) for p in _jax.HEAVY)


def test_fused_primitives_are_those_that_this_jax_has():
    names = {primitive.name for primitive in _jax.FUSED}
    assert {"add", "tanh", "select_n", "broadcast_in_dim", "convert_element_type"} <= names
    assert {"reduce_sum", "reduce_max", "reduce_min"} == {p.name for p in _jax.REDUCTIONS}
    assert not _jax.FUSED & (_jax.HEAVY | _jax.SUBPROGRAMS.keys())


def test_no_two_primitives_of_jax_share_a_name():
    """Fingerprints tell primitives apart by name."""
    found = [value for value in vars(primitives).values() if isinstance(value, _jax.Primitive)]
    names = {primitive: primitive.name for primitive in found}
    assert len(set(names.values())) == len(names)


# --- jaxprs ---------------------------------------------------------------------------------------


def test_jaxprs_are_compared_by_identity_and_can_be_held_weakly():
    import weakref

    first, second = (jax.make_jaxpr(lambda x: x + 1)(0.0) for _ in range(2))
    assert first != second
    for jaxpr in (first, _jax.opened(first)):
        assert weakref.ref(jaxpr)() is jaxpr
        assert hash(jaxpr) == hash(jaxpr)


def test_context_of_an_equation_has_the_known_parts():
    (eqn,) = equations(jnp.sin, X)
    parts = set(type(eqn.ctx).__slots__) - {"__weakref__", "configs"}
    assert parts <= set(_jax.CONTEXT_PARTS)
    assert {part for part in _jax.CONTEXT_PARTS if hasattr(eqn.ctx, part)} == parts


def test_type_of_a_value_compares_all_that_matters():
    """Texts of types are remembered by the type."""
    types = [
        jax.typeof(x)
        for x in (X, X[:2], X.astype(np.int32), X.astype(jnp.bfloat16), jnp.float32(1), 1.0)
    ]
    assert len(set(types)) == len(types)
    assert jax.typeof(1.0).weak_type


def test_sharding_is_part_of_the_type_under_explicit_axes():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    spec = jax.sharding.PartitionSpec("i")
    sharded = jax.device_put(X, jax.sharding.NamedSharding(mesh, spec))
    assert jax.typeof(sharded) != jax.typeof(jnp.asarray(X))
    assert jax.typeof(sharded).sharding.spec == spec


def test_rebuilt_jaxpr_is_of_the_same_kind_and_valid():
    closed = jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.arange(3.0))(X)
    for jaxpr in (closed, _jax.opened(closed)):
        again = _jax.rebuilt(jaxpr, eqns=list(_jax.equations(jaxpr)))
        assert type(again) is type(jaxpr)
        core.check_jaxpr(_jax.opened(again))


def test_effect_of_a_ref_is_seen_whether_it_is_an_operand_or_local():
    def local(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] + 1
        return ref[...]

    def operand(ref):
        ref[...] = ref[...] + 1

    assert _jax.has_input_effects(jax.make_jaxpr(local)(X))
    assert _jax.has_input_effects(jax.make_jaxpr(operand)(jax.new_ref(X)))
    assert not _jax.has_input_effects(jax.make_jaxpr(jnp.sin)(X))


def test_ordered_effects_are_told_from_others():
    def printing(x):
        jax.debug.print("{}", x, ordered=True)

    def unordered(x):
        jax.debug.print("{}", x)

    assert _jax.has_ordered_effects(jax.make_jaxpr(printing)(X))
    assert not _jax.has_ordered_effects(jax.make_jaxpr(unordered)(X))


def test_literal_operands_are_scalars():
    eqns = equations(lambda x: x * 2.0, X)
    (literal,) = [a for eqn in eqns for a in eqn.invars if isinstance(a, _jax.Literal)]
    assert np.shape(literal.val) == ()


# --- tracing --------------------------------------------------------------------------------------


def test_trace_gives_back_what_it_closed_over():
    closed_over = []

    def outer(y):
        x = jnp.asarray(X)
        traced = _jax.trace(lambda x: x * y, (x,), {}, {})
        closed_over.extend(_jax.consts(traced.jaxpr))
        assert len(_jax.opened(traced.jaxpr).invars) == 1
        return _jax.emit(traced.jaxpr, [x], "f")[0] + (closed_over[0] is y)

    np.testing.assert_array_equal(jax.jit(outer)(X * 2), X * 3)


def traced_again(fun, *args):
    jaxpr = _jax.trace(fun, args, {}, {}).jaxpr
    return jaxpr, jax.make_jaxpr(lambda *args: _jax.emit(jaxpr, args, "f"))(*args)


def scoped(x):
    with jax.named_scope("outer"):
        x = jnp.sin(x)
        with jax.named_scope("inner"):
            return x * 2


def test_emit_copies_equations_without_a_call():
    before, after = traced_again(scoped, X)
    assert [e.primitive for e in _jax.equations(after)] == [
        e.primitive for e in _jax.equations(before)
    ]


def test_emit_keeps_source_lines():
    before, after = traced_again(scoped, X)
    lines = [_jax.source_line(eqn) for eqn in _jax.equations(after)]
    assert lines == [_jax.source_line(eqn) for eqn in _jax.equations(before)]
    assert all("test_jax_contract.py" in line and "scoped" in line for line in lines)


def test_emit_keeps_name_scopes_and_adds_those_around():
    jaxpr = _jax.trace(scoped, (X,), {}, {}).jaxpr

    def around(x):
        with jax.named_scope("around"):
            return _jax.emit(jaxpr, [x], "f")

    stacks = [str(eqn.source_info.name_stack) for eqn in equations(around, X)]
    assert stacks == ["around/outer", "around/outer/inner"]


def test_emit_keeps_the_context_of_equations():
    def tagged(x):
        with set_xla_metadata(key="value"):
            return jnp.sin(x)

    before, after = traced_again(tagged, X)
    assert [e.ctx for e in _jax.equations(after)] == [e.ctx for e in _jax.equations(before)]
    assert _jax.equations(after)[0].ctx.xla_metadata


def test_emit_keeps_effects():
    def printing(x):
        jax.debug.print("{}", x, ordered=True)
        return x

    before, after = traced_again(printing, X)
    assert _jax.opened(after).effects == _jax.opened(before).effects != set()


@pytest.mark.parametrize(
    "fun", [lambda x: x, lambda x: 2.0, lambda x: (x, x, 1), lambda x: jnp.arange(3) + x]
)
def test_emit_returns_what_was_traced(fun):
    before, after = traced_again(fun, X)
    assert after.out_avals == before.out_avals
    core.check_jaxpr(_jax.opened(after))


def test_emit_evaluates_under_eager_transformations_too():
    jaxpr = _jax.trace(lambda x: x * x, (X,), {}, {}).jaxpr
    _, tangent = jax.jvp(lambda x: _jax.emit(jaxpr, [x], "f")[0], (X * 3,), (X,))
    np.testing.assert_array_equal(tangent, X * 6)


def test_emit_handles_refs():
    def add(ref, x):
        ref[...] = ref[...] + x
        return x

    ref = jax.new_ref(X)
    jaxpr = _jax.trace(add, (ref, X), {}, {}).jaxpr
    jax.jit(lambda ref, x: _jax.emit(jaxpr, [ref, x], "f"))(ref, X)
    np.testing.assert_array_equal(ref[...], X * 2)


def test_top_level_is_known():
    seen = []

    def look(x):
        seen.append(_jax.at_top_level() or _jax.TRACE_CONTEXT.trace is _jax.NO_TRACE)

    jax.jit(look)(X)
    jax.vmap(look)(X)
    assert seen == [False, False]
    assert _jax.at_top_level()
    assert _jax.TRACE_CONTEXT.trace is _jax.NO_TRACE


def test_functions_are_named_as_jit_names_them():
    import functools

    class Callable:
        def __call__(self, x):
            return x

    def named(y, x):
        return x + y

    for fun in (named, functools.partial(named, 1), Callable(), lambda x: x):
        wrapper = _jax.wraps(fun)(lambda *args, fun=fun: fun(*args))
        args = (X, X) if fun is named else (X,)
        names = [
            re.search(r"module @(\S+)", jax.jit(f).lower(*args).as_text())[1]
            for f in (fun, wrapper)
        ]
        assert names[0] == names[1]


# --- attributes of calls, on CPU ------------------------------------------------------------------


@jax.jit
def body(x):
    return jnp.sin(x) @ jnp.cos(x)


def program_with_tagged_calls(**tags):
    """Calls are tagged while they are lowered, as `shared_call` does."""
    jaxpr = jax.make_jaxpr(body)(jnp.ones((8, 8)))
    (eqn,) = _jax.equations(jaxpr)
    call_p = _jax.structured_call_primitive("tagged_call", lambda target, unit: tags)
    n = tuple(range(1))
    params = dict(eqn.params, shared=eqn.params["jaxpr"], operands=n, results=n, unit="unit")

    def fun(x):
        for _ in range(3):
            (x,) = call_p.bind(x, **params)
        return x

    return jax.jit(fun).lower(jnp.ones((8, 8)))


def calls_in(text: str) -> list[str]:
    return re.findall(r".* call\(.*", text)


KEEP = {"inlineable": "false", "compilation_unit": "body_unit"}


def test_untagged_calls_are_inlined_by_xla():
    assert calls_in(program_with_tagged_calls().compile().as_text()) == []


def test_functions_of_jax_are_told_from_those_of_the_user():
    mine = jax.jit(lambda x: jnp.where(x > 0, x, 0.0))
    (eqn,) = _jax.equations(jax.make_jaxpr(mine)(X))
    assert not _jax.is_function_of_jax(eqn.params["jaxpr"])
    (inner,) = [e for e in _jax.equations(eqn.params["jaxpr"]) if e.primitive is _jax.jit_p]
    assert inner.params["name"] == "_where"
    assert _jax.is_function_of_jax(inner.params["jaxpr"])


@pytest.mark.parametrize("tags", [KEEP, {"inlineable": "false"}], ids=len)
def test_tagged_calls_stay_calls_in_the_optimised_program(tags):
    calls = calls_in(program_with_tagged_calls(**tags).compile().as_text())
    assert len(calls) == 3


def test_metadata_tags_the_calls_and_not_the_operations_of_the_body():
    text = program_with_tagged_calls(**KEEP).as_text()
    tagged = [line for line in text.splitlines() if "mhlo.frontend_attributes" in line]
    assert len(tagged) == 3
    assert all(re.search(r"\bcall @", line) for line in tagged)


def test_tagged_calls_are_calls_of_one_function():
    text = program_with_tagged_calls(**KEEP).as_text()
    assert len(re.findall(r"func\.func private", text)) == 1


def test_a_module_is_lowered_with_caches_and_rules_that_can_be_replaced():
    assert {"lowering_cache", "cached_primitive_lowerings", "lowering_parameters"} <= {
        field.name for field in dataclasses.fields(mlir.ModuleContext)
    }
    parameters = mlir.LoweringParameters(override_lowering_rules=())
    assert dataclasses.replace(parameters).override_lowering_rules == ()


@pytest.mark.parametrize("loop", [True, False])
def test_random_bits_can_be_made_with_and_without_a_loop(loop):
    bits = partial(_threefry2x32_lowering, use_rolled_loops=loop)
    jaxpr = jax.make_jaxpr(bits)(*np.zeros((4, 2), np.uint32))
    found = {eqn.primitive for eqn in every_equation(jaxpr)}
    assert bool(found & {primitives.while_p, primitives.scan_p}) == loop


def test_random_bits_in_two_halves_are_known_when_they_are_lowered():
    assert jax.config.jax_threefry_partitionable
    with jax.threefry_partitionable(False):
        assert not jax.config.jax_threefry_partitionable


def test_target_of_a_lowering_tells_platform_and_devices():
    targets = []

    def attributes(target, unit):
        targets.append(target)
        return {}

    call_p = _jax.structured_call_primitive("watched_call", attributes)

    def fun(x):
        (eqn,) = _jax.equations(jax.make_jaxpr(jax.jit(jnp.sin))(x))
        params = dict(eqn.params, shared=eqn.params["jaxpr"], operands=(0,), results=(0,))
        return call_p.bind(x, **params, unit="unit")[0]

    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    sharded = jax.device_put(jnp.ones(8), jax.sharding.NamedSharding(mesh, spec))

    manual = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)
    jax.jit(fun).lower(jnp.ones(8))
    jax.jit(fun).lower(sharded)
    jax.jit(fun).trace(jnp.ones(8)).lower(lowering_platforms=("cpu", "tpu"))
    jax.jit(manual).lower(jnp.ones(8))
    assert targets == [
        _jax.Target(("cpu",), 1, False),
        _jax.Target(("cpu",), 8, False),
        _jax.Target(("cpu", "tpu"), 1, False),
        _jax.Target(("cpu",), 8, True),
    ]


# --- source lines ---------------------------------------------------------------------------------


def test_user_functions_are_listed_outermost_first():
    def inner(x):
        return jnp.sin(x)

    def outer(x):
        return inner(x)

    (eqn,) = equations(outer, X)
    names = [name.rpartition(".")[2] for name in _jax.user_functions(eqn)]
    assert names[-2:] == ["outer", "inner"]


def test_equations_of_a_backward_pass_are_known():
    eqns = equations(jax.grad(lambda x: jnp.sin(x).sum()), X)
    assert {_jax.is_transposed(eqn) for eqn in eqns} == {False, True}


def test_context_of_its_own_makes_an_equation_immovable():
    def tagged(x):
        with set_xla_metadata(key="value"):
            return jnp.sin(x)

    assert not _jax.is_movable(equations(tagged, X)[0])
    assert _jax.is_movable(equations(jnp.sin, X)[0])


# --- monitoring -----------------------------------------------------------------------------------


def test_monitoring_reports_each_phase_with_the_name_of_the_function():
    from jitscope.phases import _EVENTS

    heard = []

    def listen(event, duration_secs, **details):
        heard.append((event, details.get("fun_name")))

    def contract_phases(x):
        return jnp.sin(x) + 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(contract_phases).lower(X).compile()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    for event, (_, pattern) in _EVENTS.items():
        assert (event, pattern.format("contract_phases")) in heard


def test_options_of_jit_are_its_parameters():
    """`outermost_jit` refuses what is not among them."""
    parameters = inspect.signature(jax.jit).parameters
    assert {
        "static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "in_shardings",
        "out_shardings", "keep_unused", "device", "backend", "inline", "compiler_options",
    } <= parameters.keys()  # fmt: skip
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def test_jit_name_of_a_call_passes_through_transformations_unchanged():
    """`names.SubroutineName` relies on it."""

    class Name(str):
        __slots__ = ()

    def fun(x):
        return jnp.sin(x) * x

    fun.__name__ = fun.__qualname__ = Name("fun")
    inner = jax.jit(fun)
    cases = [
        jax.make_jaxpr(inner)(X),
        jax.make_jaxpr(jax.grad(lambda x: inner(x).sum()))(X),
        jax.make_jaxpr(jax.vmap(inner))(X),
        jax.make_jaxpr(lambda x: jax.jvp(inner, (x,), (x,)))(X),
    ]
    for jaxpr in cases:
        names = [
            e.params["name"]
            for e in every_equation(jaxpr)
            if e.primitive is _jax.jit_p and str(e.params["name"]) == "fun"
        ]
        assert names
        assert all(type(name) is Name for name in names)


def test_fields_of_a_target_are_what_the_attributes_depend_on():
    assert _jax.Target._fields == ("platforms", "n_devices", "manual")
    assert not dataclasses.is_dataclass(_jax.Target)


def test_what_nobody_reads_is_dropped_in_nested_jits_and_operands_stay():
    nested = jax.jit(lambda x, y: (jnp.sin(x), jnp.cos(y)))
    jaxpr = jax.make_jaxpr(lambda x, y: nested(x, y)[0])(1.0, 2.0)
    live, _ = pe.dce_jaxpr(_jax.opened(jaxpr), True, True)
    assert len(live.invars) == 2
    assert [len(_jax.equations(sub)) for eqn in live.eqns for sub in _jax.sub_jaxprs(eqn)] == [1]


# --- compiled programs ----------------------------------------------------------------------------


def compiled(fun, *args):
    return jax.jit(fun).lower(*args).compile()


def test_direct_call_of_a_compiled_program_is_that_call():
    x = jnp.arange(3.0)
    program = compiled(lambda x: {"a": x + 1, "b": jnp.sum(x)}, x)
    direct = _jax.direct_call(program)
    assert direct is not program
    for _ in range(2):  # the first call is not the fast one
        found = direct(x)
        assert found.keys() == {"a", "b"}
        np.testing.assert_array_equal(found["a"], program(x)["a"])
    with pytest.raises(TypeError, match="called with"):
        direct(jnp.arange(4.0))
    assert direct(np.arange(3, dtype=np.float32))["b"] == 3


def test_options_for_stages_on_one_gpu_are_known_to_the_compiler():
    assert jax.jit(lambda x: x + 1, compiler_options=ONE_GPU_OPTIONS)(1) == 2
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_gpu_no_such": False})(1)


def test_program_with_a_callback_is_called_as_it_is():
    seen = []
    program = compiled(lambda x: [jax.debug.callback(seen.append, x), x][1], jnp.float32(1))
    assert _jax.direct_call(program) is program
    jitted = jax.jit(lambda x: x)
    assert _jax.direct_call(jitted) is jitted
