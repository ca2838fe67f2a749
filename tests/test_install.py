import contextlib
import functools
import gc
import inspect
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import kept_calls, share_all_policy

import jitscope
from jitscope.reuse.records import registering
from jitscope.settings import disabled


class Original:
    """Where install does not find it: among the globals of this module, it would."""

    jit = staticmethod(jax.jit)


@pytest.fixture(autouse=True)
def puts_everything_back() -> Iterator[None]:
    yield
    jitscope.uninstall()
    assert jax.jit is Original.jit


def module_with(source: str, name: str = "somebodys_module") -> types.ModuleType:
    """A module as if imported: the source is run in it, and it is in `sys.modules`."""
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    sys.modules[name] = module
    return module


@pytest.fixture
def somebodys_module() -> Iterator[types.ModuleType]:
    yield module_with(
        "import functools, jax\n"
        "from jax import jit\n"
        "static_jit = functools.partial(jit, static_argnames='n')\n"
    )
    del sys.modules["somebodys_module"]


def layers(x, ws):
    layer = jax.jit(lambda x, w: jnp.tanh(x @ w) + jnp.sin(x))
    for w in ws:
        x = layer(x, w)
    return x.sum()


def n_kept_calls(fun):
    return sum(kept_calls(fun.lower(*operands()).compile().as_text()).values())


def operands():
    return jnp.ones((4, 8)), [jnp.full((8, 8), 0.01 * i) for i in range(6)]


# --- what install changes -------------------------------------------------------------------------


def test_jit_acts_as_outermost_jit_while_installed():
    expected = jax.jit(layers)(*operands())
    jitscope.install(policy=share_all_policy())
    fun = jax.jit(layers)
    np.testing.assert_allclose(fun(*operands()), expected, rtol=1e-5)
    assert [body.n_uses for body in fun.reuse().census.bodies] == [6]
    assert n_kept_calls(fun) == 6


def test_decorators_with_options_are_reached():
    jitscope.install()

    @jax.jit(static_argnames="n", donate_argnums=0)
    def first(x, n):
        return x * n

    @functools.partial(jax.jit, static_argnums=1)
    def second(x, n):
        return x * n

    assert first(jnp.ones(2), n=3).tolist() == second(jnp.ones(2), 3).tolist() == [3, 3]
    assert first.reuse().census.program == "first"
    assert second.reuse().census.program == "second"


def test_options_given_as_an_iterator_are_read_once():
    jitscope.install()
    fun = jax.jit(lambda x, n: x * n, static_argnames=iter(["n"]))
    assert fun(2.0, n=3) == 6
    assert fun.reuse().census.n_equations == 1


def test_names_of_jit_in_imported_modules_are_reached(somebodys_module):
    jitscope.install()
    assert somebodys_module.jit(lambda x: x + 1)(1.0) == 2
    static = somebodys_module.static_jit(lambda x, n: x + n)
    assert static(1.0, n=2) == 3
    assert static.reuse().census.n_equations == 1


def test_jax_itself_keeps_its_jit():
    jitscope.install()
    assert sys.modules["jax._src.api"].jit is Original.jit
    source = Path(jax.__file__).parent / "experimental" / "somewhere.py"
    internal = {"jax": jax}
    exec(compile("fun = jax.jit(lambda x: x)", source, "exec"), internal)
    assert type(internal["fun"]) is type(Original.jit(lambda x: x))


def test_installed_jit_looks_like_the_original():
    jitscope.install()
    assert inspect.signature(jax.jit) == inspect.signature(Original.jit)
    assert jax.jit.__name__ == "jit"
    assert jax.jit.__doc__ == Original.jit.__doc__


@pytest.mark.parametrize(
    "call",
    [
        lambda: jax.jit(3),
        lambda: jax.jit(len, nonsense=1),
        lambda: jax.jit(nonsense=1),
        lambda: jax.jit(len, (0,)),
        lambda: jax.jit(lambda x: x, static_argnums="a"),
    ],
)
def test_errors_are_those_of_the_original(call):
    with pytest.raises(Exception) as plain:
        call()
    jitscope.install()
    with pytest.raises(type(plain.value)) as installed:
        call()
    assert str(installed.value) == str(plain.value)


def test_policy_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="policy must be callable from Census to Plan"):
        jitscope.install(policy=3)  # type: ignore[arg-type]
    assert jax.jit is Original.jit


# --- what is returned passes for a jax.jit function -----------------------------------------------


def documented(x, y=1):
    """What it does."""
    return x + y


documented.tag = "kept"


def test_function_passes_for_a_jitted_one():
    jitscope.install()
    fun = jax.jit(documented)
    plain = Original.jit(documented)
    assert isinstance(fun, jax.stages.Wrapped)
    assert "PjitFunction" in str(type(fun))
    assert repr(fun) == repr(plain)
    assert inspect.signature(fun) == inspect.signature(plain)
    assert (fun.__name__, fun.__doc__, fun.__module__, fun.__wrapped__, fun.tag) == (
        "documented",
        "What it does.",
        __name__,
        documented,
        "kept",
    )
    assert weakref.ref(fun)() is fun
    assert hash(fun) is not None


def test_methods_of_a_jitted_function_work():
    jitscope.install()
    fun = jax.jit(documented)
    assert fun.lower(1.0).compile()(1.0) == 2
    assert fun.trace(1.0).jaxpr.eqns
    assert fun.eval_shape(1.0).shape == ()
    assert fun._cache_size() == 0
    fun(1.0)
    assert fun._cache_size() == 1
    fun.clear_cache()
    assert fun._cache_size() == 0


def test_names_of_partials_and_callable_objects_are_kept():
    class Callable:
        def __call__(self, x):
            return x

    def hlo_name(jit, fun):
        return jit(fun).lower(1.0).as_text().split()[1]

    jitscope.install()
    for fun in (functools.partial(documented, y=2), Callable(), lambda x: x):
        assert hlo_name(jax.jit, fun) == hlo_name(Original.jit, fun)


class Model:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, x):
        return self.scale * x


def test_jitted_method_binds_as_a_jitted_function_does():
    jitscope.install()

    class Jitted(Model):
        apply = jax.jit(Model.apply, static_argnums=0)

    model = Jitted(3)
    assert model.apply(2.0) == 6
    assert type(model.apply) is types.MethodType
    assert model.apply.lower(model, 2.0).compile()(2.0) == 6
    assert jax.jit(model.apply)(2.0) == 6
    assert jax.jit(Model(4).apply)(2.0) == 8


def test_function_works_under_transformations_and_inside_others():
    def f(x):
        return jnp.sin(x) * x

    x = jnp.arange(3.0)
    expected = jax.jit(jax.grad(lambda x: jax.vmap(f)(x).sum()))(x)
    jitscope.install()
    inner = jax.jit(f)
    for total in (lambda x: jax.vmap(inner)(x).sum(), jax.jit(lambda x: inner(x).sum())):
        np.testing.assert_allclose(jax.grad(total)(x), expected, rtol=1e-6)
    carry, _ = jax.lax.scan(lambda c, x: (inner(c) + x, None), 0.0, x)
    assert np.isfinite(carry)


def test_function_is_a_nested_jit_inside_an_outermost_function():
    jitscope.install()
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    outer = jax.jit(lambda x: inner(inner(x)))
    outer(1.0)
    assert [body.n_uses for body in outer.reuse().census.bodies] == [2]
    with pytest.raises(RuntimeError, match="has traced no program yet"):
        inner.reuse()


def test_jitting_a_function_again_does_not_trace_it_again():
    n_traces = 0

    def f(x):
        nonlocal n_traces
        n_traces += 1
        return x + 1

    jitscope.install()
    for _ in range(3):
        jax.jit(f)(1.0)
        jax.jit(f, donate_argnums=0)(jnp.ones(3))
    assert n_traces == 2


def test_installation_keeps_no_function_alive():
    jitscope.install()

    def use():
        fun = lambda x: x + 1
        jax.jit(fun)(1.0)
        return weakref.ref(fun)

    gone = use()
    gc.collect()
    assert gone() is None


def test_functions_that_compare_equal_outlive_each_other():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __eq__(self, other):
            return isinstance(other, Scale) and self.by == other.by

        def __hash__(self):
            return hash(self.by)

        def __call__(self, x):
            return x * self.by

    jitscope.install()
    first, second = jax.jit(Scale(2)), jax.jit(Scale(2))
    assert first(1.0) == 2
    del first
    gc.collect()
    assert second(jnp.ones(2)).tolist() == [2, 2]
    assert jax.jit(Scale(2))(jnp.ones(3)).tolist() == [2, 2, 2]


def test_disabled_functions_are_plain_ones():
    jitscope.install()
    fun = jax.jit(documented)
    with disabled():
        fun(1.0)
    with pytest.raises(RuntimeError, match="has traced no program yet"):
        fun.reuse()
    with jax.disable_jit():
        assert fun(1.0) == 2


# --- what uninstall leaves ------------------------------------------------------------------------


def held_by_modules() -> dict[tuple[str, str], int]:
    """Every global of every module that is, or may hide, a `jax.jit`."""
    return {
        (name, key): id(value)
        for name, module in list(sys.modules.items())
        if issubclass(type(module), types.ModuleType)
        for key, value in list(types.ModuleType.__getattribute__(module, "__dict__").items())
        if value is Original.jit or value is jax.jit or isinstance(value, functools.partial)
    }


def test_uninstall_leaves_every_module_as_it_was(somebodys_module):
    jitscope.install()
    jitscope.uninstall()
    before = held_by_modules()
    jitscope.install()
    assert somebodys_module.jit is jax.jit is not Original.jit
    assert held_by_modules() != before
    jitscope.uninstall()
    assert held_by_modules() == before


def test_installing_and_uninstalling_twice_is_as_once(somebodys_module):
    static_jit = somebodys_module.static_jit
    jitscope.uninstall()
    jitscope.install()
    jit, static = jax.jit, somebodys_module.static_jit
    fun = jax.jit(lambda x: x + 1)
    fun(1.0)
    jitscope.install()
    assert (jax.jit, somebodys_module.static_jit) == (jit, static)
    fun(1.0)
    assert fun._cache_size() == 1
    jitscope.uninstall()
    jitscope.uninstall()
    assert jax.jit is somebodys_module.jit is Original.jit
    assert somebodys_module.static_jit is static_jit


def test_modules_imported_in_between_get_the_original_back():
    jitscope.install()
    late = module_with(
        "import functools\nfrom jax import jit\n"
        "static_jit = functools.partial(jit, static_argnums=0)",
        "imported_late",
    )
    assert late.jit is not Original.jit
    jitscope.uninstall()
    del sys.modules["imported_late"]
    assert late.jit is late.static_jit.func is Original.jit


def test_jit_kept_out_of_sight_acts_as_the_original_after_uninstall():
    jitscope.install()
    kept = [jax.jit]
    jitscope.uninstall()
    assert type(kept[0](documented)) is type(Original.jit(documented))


def test_function_made_in_between_acts_as_a_plain_one_after_uninstall():
    with jitscope.installed(policy=share_all_policy()):
        fun = jax.jit(layers)
        assert n_kept_calls(fun) == 6
    text = fun.lower(*operands()).compile().as_text()
    assert text == Original.jit(layers).lower(*operands()).compile().as_text()
    with jitscope.installed(policy=share_all_policy()):
        assert n_kept_calls(fun) == 6


def test_wrapper_that_somebody_put_around_jit_stays():
    jitscope.install()
    installed = jax.jit

    def somebodys(fun):
        return installed(fun)

    jax.jit = somebodys
    try:
        jitscope.uninstall()
        assert jax.jit is somebodys
        assert jax.jit(documented)(1.0) == 2
        jitscope.install()
        assert jax.jit(documented)(1.0) == 2
    finally:
        jax.jit = Original.jit


def test_module_that_loads_itself_when_used_is_not_woken():
    class Sleeping(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    sys.modules["sleeping"] = Sleeping("sleeping")
    sys.modules["no_module"] = object()  # type: ignore[assignment]
    try:
        with jitscope.installed():
            pass
    finally:
        del sys.modules["sleeping"], sys.modules["no_module"]


def test_installed_holds_for_its_block_only():
    with jitscope.installed():
        assert jax.jit is not Original.jit
        with jitscope.installed(observe=True):
            pass
        fun = jax.jit(documented)
        fun(1.0)
        assert fun.reuse().census.n_equations == 1
    assert jax.jit is Original.jit
    with pytest.raises(ZeroDivisionError), jitscope.installed():
        1 / 0
    assert jax.jit is Original.jit


# --- observing ------------------------------------------------------------------------------------


def test_observing_compiles_the_same_program():
    texts = []
    for context in (contextlib.nullcontext(), jitscope.installed(observe=True)):
        jax.clear_caches()
        with context:
            lowered = jax.jit(layers).lower(*operands())
            texts.append([lowered.as_text(debug_info=True), lowered.compile().as_text()])
    assert texts[0] == texts[1]


def test_observing_records_what_repeats():
    with registering() as register, jitscope.installed(observe=True, policy=share_all_policy()):
        fun = jax.jit(layers)
        fun(*operands())
        fun(*operands())
    (reuse,) = register.programs
    assert [body.n_uses for body in reuse.census.bodies] == [6]
    assert reuse.phases.seconds.compile_s > 0
    assert not register.failures


def test_observing_runs_a_function_no_more_often():
    n_runs = 0

    def f(x, tree, n=1):
        nonlocal n_runs
        n_runs += 1
        return jnp.sin(x) * n, tree

    x = jnp.ones(3)
    with registering() as register, jitscope.installed(observe=True):
        fun = jax.jit(f, static_argnames="n", donate_argnums=0)
        fun(x + 0, {"a": 1}, n=2)
        jax.grad(lambda x: fun(x, ())[0].sum())(x + 0)
        jax.vmap(lambda x: fun(x, ())[0])(x + 0)
        jax.lax.scan(lambda c, x: (c, fun(x, ())[0]), 0.0, x + 0)
        fun.lower(x, 1)
        fun.eval_shape(x, (1, 2))
        jax.jit(lambda x: fun(x, None)[0])(x)
    # The scalar of vmap and that of scan share a trace.
    assert n_runs == 6
    assert len(register.programs) == 6
    assert [reuse.census.program for reuse in register.programs] == ["f"] * 5 + ["<lambda>"]
    assert not register.failures


def test_observing_says_which_program_it_could_not_look_at():
    def forgetful(x):
        jax.clear_caches()
        return x

    with registering() as register, jitscope.installed(observe=True):
        assert jax.jit(forgetful)(1.0) == 1
    assert [failure.program for failure in register.failures] == ["forgetful"]


# --- frameworks -----------------------------------------------------------------------------------


@pytest.mark.frameworks
def test_equinox_filter_jit_is_reached():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(4, 4, 16, 8, key=jax.random.key(0))

    def loss(mlp, x):
        return jax.vmap(mlp)(x).sum()

    expected = eqx.filter_jit(eqx.filter_grad(loss))(mlp, jnp.ones((3, 4)))
    with registering() as register, jitscope.installed():
        eqx.clear_caches()
        actual = eqx.filter_jit(eqx.filter_grad(loss))(mlp, jnp.ones((3, 4)))
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if eqx.is_array(want):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    assert register.programs


@pytest.mark.frameworks
def test_nnx_jit_is_reached():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    def train(jit):
        net = nnx.Sequential(*[nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(5)])
        optimizer = nnx.Optimizer(net, optax.adamw(1e-2), wrt=nnx.Param)

        @jit
        def step(net, optimizer, x):
            value, grads = nnx.value_and_grad(lambda net: (net(x) ** 2).sum())(net)
            optimizer.update(net, grads)
            return value

        return [float(step(net, optimizer, jnp.ones((2, 4)))) for _ in range(3)]

    expected = train(nnx.jit)
    with registering() as register, jitscope.installed():
        assert train(nnx.jit) == pytest.approx(expected, rel=1e-4)
    assert "step" in {reuse.census.program for reuse in register.programs}


@pytest.mark.frameworks
def test_haiku_still_says_that_a_function_was_jitted_too_early():
    hk = pytest.importorskip("haiku")
    jitscope.install()
    with pytest.raises(ValueError, match="already jit"):
        hk.transform(jax.jit(documented))
    apply = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 4])(x)))
    params = jax.jit(apply.init)(jax.random.PRNGKey(0), jnp.ones((2, 4)))
    assert jax.jit(apply.apply)(params, jnp.ones((2, 4))).shape == (2, 4)
