"""Compiling for a GPU that is not there, and what is read from optimised HLO."""

import functools
import json
import types

import jax
import jax.numpy as jnp
import pytest

import jitscope
from benchmarks import gpu_target as command_line
from jitscope import _jax, gpu_target
from jitscope.gpu_target import find_target_text


def test_memory_of_stages_counts_what_lives_between_them():
    def fun(x):
        for _ in range(4):
            x = body(x)
        return x

    body = jitscope.shared_subroutine(lambda x: jnp.tanh(x @ x))
    policy = jitscope.Policy(
        min_uses=2, min_equations=1, min_equations_per_product=1, min_saved=1, min_uses_steady=2
    )
    x = jnp.ones((64, 64))
    staged = gpu_target.compile_abstract(
        lambda: jitscope.outermost_jit(fun, staged=True, policy=policy).lower(x)
    )
    assert staged.n_executables == 1
    assert staged.kernels.gemms + staged.kernels.dots == 4
    assert staged.peak_bytes == staged.temp_bytes + 2 * x.nbytes


# --- targets --------------------------------------------------------------------------------------


def library(*names):
    texts = [f'gpu_device_info {{\n}}\ndevice_description_str: "{name}"\n' for name in names]
    return b"\x7fELF\0" + b"\0\0".join(text.encode() for text in texts) + b"\0"


def test_target_text_is_found_in_the_plugin():
    found = find_target_text(library("NVIDIA B200 MIG 1g", "NVIDIA B200", "GFX"), "NVIDIA B200")
    assert found == 'gpu_device_info {\n}\ndevice_description_str: "NVIDIA B200"\n'


def test_longer_name_stands_in_for_a_target():
    assert "141GB" in find_target_text(library("NVIDIA H200 141GB HBM3e"), "NVIDIA H200")


def test_unknown_target_names_the_known_ones():
    with pytest.raises(ValueError, match="knows no 'NVIDIA H200'; it knows GFX, NVIDIA B200"):
        find_target_text(library("NVIDIA B200", "GFX"), "NVIDIA H200")


def has_plugin():
    try:
        gpu_target.device("h200")
    except gpu_target.PluginMissingError:
        return False
    return True


def test_missing_plugin_says_what_to_install():
    if has_plugin():
        pytest.skip("the CUDA plugin of JAX is installed here")
    with pytest.raises(ImportError, match=r"pip install jax-cuda13-plugin==.*nvjitlink"):
        gpu_target.device("h200")


def test_plugin_that_jax_left_out_says_what_to_do(monkeypatch):
    def left_out(*args, **kwargs):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", left_out)
    monkeypatch.setattr(gpu_target, "_library_text", lambda description: "")
    with pytest.raises(RuntimeError, match="'h200'.*JAX_PLATFORMS=cpu in the environment"):
        gpu_target.device("h200")


# --- explain(target=...) --------------------------------------------------------------------------


@pytest.fixture
def cpu_as_target(monkeypatch):
    """Compiles for another CPU device, so that it works without the plugin."""
    monkeypatch.setattr(gpu_target, "device", lambda target: jax.devices()[1])


def chain(x, n=6):
    for _ in range(n):
        x = jnp.tanh(x @ x) * 2 + x
    return x


X = jnp.full((16, 16), 0.01)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (chain, (X,)),
        (jitscope.outermost_jit(chain, static_argnums=1), (X, 6)),
        (jax.jit(chain, static_argnums=1), (X, 6)),
        (functools.partial(chain, n=6), (jax.ShapeDtypeStruct(X.shape, X.dtype),)),
    ],
    ids=["function", "outermost", "jitted", "partial"],
)
def test_explain_for_a_target_counts_what_was_compiled_for_it(fun, args, cpu_as_target):
    (program,) = jitscope.explain(fun, *args, target="h200").programs
    made = program.for_target
    assert (made.target, made.n_executables, made.n_products) == ("h200", 1, 6)
    assert made.n_fusions + made.n_others > 0 and made.peak_bytes >= X.nbytes
    assert program.compiled is None and program.platform == "cuda"


def test_explain_for_a_target_compiles_stages_where_these_were_asked_for(cpu_as_target):
    body = jitscope.shared_subroutine(lambda x: jnp.tanh(x @ x) * 2 + x)

    def fun(x):
        for _ in range(6):
            x = body(x)
        return x

    policy = jitscope.Policy(
        min_equations=1, min_equations_per_product=1, min_saved=1, min_uses_steady=4
    )
    function = jitscope.outermost_jit(fun, staged=True, policy=policy)
    report = jitscope.explain(function, X, target="h200")
    made = report.programs[0].for_target
    assert made.n_products == 6
    assert {body.structure for body in report.programs[0].bodies} == {"STAGED"}
    text = str(report)
    assert "compiled for h200" in text and "launches 6 matrix products" in text
    with pytest.raises(RuntimeError, match="traced no program"):
        function.reuse()  # the function itself stays what it was


def test_explain_for_a_target_takes_methods(cpu_as_target):
    class Model:
        scale = 2.0

        @functools.partial(jitscope.outermost_jit, static_argnums=0)
        def __call__(self, x):
            return chain(x) * self.scale

    (program,) = jitscope.explain(Model().__call__, X, target="h200").programs
    assert program.for_target.n_products == 6


def test_explain_for_a_target_without_arrays_says_what_to_pass():
    with pytest.raises(ValueError, match="none of its arguments is an array.*Pass one"):
        jitscope.explain(lambda x: x + 1, 2.0, target="h200")


def test_unknown_target_of_explain_names_the_known_ones():
    with pytest.raises(ValueError, match="no target 'tpu'; there are a100, b200, h100, h200"):
        jitscope.explain(chain, X, target="tpu")


def test_explain_says_what_to_install():
    if has_plugin():
        pytest.skip("the CUDA plugin of JAX is installed here")
    with pytest.raises(ImportError, match="extra gpu-target of jitscope.*pip install jax-cuda13"):
        jitscope.explain(chain, X, target="h200")


def test_devices_that_are_only_compiled_for_need_not_name_their_memories():
    def refuse():
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: DefaultMemory is not supported")

    device = types.SimpleNamespace(default_memory=refuse)
    assert _jax.is_default_memory(types.SimpleNamespace(memory_kind=None, device_set=(device,)))


# --- with the plugin ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", gpu_target.TARGETS)
def test_program_is_compiled_for_a_gpu_that_is_not_there(target):
    if not has_plugin():
        pytest.skip("needs the CUDA plugin of JAX, which compiles for a GPU without one")
    x = jnp.ones((256, 256))
    compilation = gpu_target.compile_for(target, jax.jit(lambda x: jnp.tanh(x @ x)), x)
    assert compilation.kernels.gemms == 1 and not compilation.kernels.loop_dots
    assert compilation.peak_bytes == compilation.temp_bytes + x.nbytes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_command_line_prints_one_record(capsys):
    if not has_plugin():
        pytest.skip("needs the CUDA plugin of JAX, which compiles for a GPU without one")
    sizes = ("layers=4 width=32 heads=2 feed_forward=32 vocabulary=16 batch=2 sequence=16").split()
    before = jax.config.jax_enable_compilation_cache
    products = []
    for contender in ("jit", "outermost_staged"):
        command_line.main(["transformer", contender, "--set", *sizes])
        record = json.loads(capsys.readouterr().out)
        products.append(record["kernels"]["gemms"] + record["kernels"]["dots"])
        assert record["versions"]["jax"] == jax.__version__
    jax.config.update("jax_enable_compilation_cache", before)
    assert record["n_executables"] > 2
    assert products[0] == products[1]
