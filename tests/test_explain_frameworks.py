"""`explain` on models of other libraries, against an independent count over the jaxpr."""

import jax
import jax.numpy as jnp
import pytest
from test_evidence import count

import jitscope
from jitscope import _jax
from jitscope.reuse.programs import _MAX_SITES

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(240)]


def haiku_resnet():
    haiku = pytest.importorskip("haiku")
    model = haiku.transform_with_state(lambda x: haiku.nets.ResNet18(10)(x, True))
    x = jnp.ones((2, 32, 32, 3))
    params, state = jax.jit(model.init)(jax.random.key(0), x)
    return lambda params, state, x: model.apply(params, state, None, x), (params, state, x)


def flax_transformer():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
            return x + nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(12):
                x = Block()(x)
            return x

    x = jnp.ones((2, 16, 64))
    params = jax.jit(Net().init)(jax.random.key(0), x)
    return jax.value_and_grad(lambda params, x: Net().apply(params, x).sum()), (params, x)


def mjx_step():
    mujoco = pytest.importorskip("mujoco")
    mjx = pytest.importorskip("mujoco.mjx")
    model = mujoco.MjModel.from_xml_string("""
        <mujoco><worldbody><geom type="plane" size="1 1 1"/>
          <body pos="0 0 1"><freejoint/><geom size=".1"/>
            <body pos="0 0 .3"><joint/><geom type="capsule" size=".05 .1"/></body>
          </body></worldbody></mujoco>""")
    device_model = mjx.put_model(model)
    return lambda data: mjx.step(device_model, data), (mjx.put_data(model, mujoco.MjData(model)),)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make", [haiku_resnet, flax_transformer, mjx_step], ids=lambda make: make.__name__
)
def test_counts_are_true(make):
    fun, args = make()
    (program,) = jitscope.explain(fun, *args).programs
    traced = jax.jit(fun).trace(*args).jaxpr
    # Outlining does work that two repeats share once: 3 of the 5,244 equations of the MJX step.
    assert 0 <= count(_jax.without_hijax(traced)) - program.n_equations <= 3
    assert sum(line.n_before for line in program.lines) == program.n_equations
    assert sum(line.n_after for line in program.lines) == program.n_compiled
    # JAX drops calls that compute nothing anybody uses when it lowers.
    assert 0 <= program.n_shared_calls - program.compiled.n_kept_calls <= 1
    assert program.compiled.n_kept_bodies == len(program.shared)
    for body in program.bodies:
        assert (
            len(body.sites) == _MAX_SITES or sum(site.n_calls for site in body.sites) == body.n_uses
        )


def test_bodies_are_placed_at_lines_of_the_user_not_of_the_library():
    fun, args = flax_transformer()
    traced = jitscope.outermost_jit(fun)
    traced.trace(*args)
    assert {body.name for body in traced.reuse().census.bodies} >= {"Block", "Block_gradient"}
    for body in traced.reuse().census.bodies:
        if body.outlined:
            assert body.source.startswith(__file__), body
