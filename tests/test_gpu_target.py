"""Compiling for a GPU that is not there, and what is read from optimised HLO.

The programs in `hlo/` are two calls of a body with a matrix product (a norm, a product, a tanh, a
residual), compiled by JAX 0.12.0.1 for CPU and for an H200, once with the calls marked to be kept
and once inlined; metadata and backend settings are left out.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jitscope
from benchmarks import gpu_target
from benchmarks.gpu_target import Kernels, find_target_text, judge_probe, look_into

HLO = Path(__file__).parent / "hlo"


def recorded(name):
    return (HLO / f"{name}.txt").read_text()


# --- counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("h200_inlined", Kernels(gemms=2, fusions=3)),
        ("h200_kept", Kernels(loop_dots=2, fusions=8)),
        ("cpu_inlined", Kernels(gemms=2, fusions=6)),
        ("cpu_kept", Kernels(gemms=2, fusions=6)),
    ],
)
def test_kernels_of_recorded_programs(name, kernels):
    assert look_into(recorded(name)) == kernels


def program(*instructions, computations=""):
    lines = "\n".join(f"  {line}" for line in instructions)
    return f"HloModule m\n{computations}\nENTRY %main (x: f32[8,8]) -> f32[8,8] {{\n{lines}\n}}\n"


@pytest.mark.parametrize(
    ("instruction", "kernels"),
    [
        ("%p = f32[8,8]{1,0} parameter(0)", Kernels()),
        ("%t = (f32[8]{0}, /*index=1*/f32[8]{0}) tuple(%a, %b)", Kernels()),
        ("%b = f32[64]{0} bitcast(%a)", Kernels()),
        ("%c = f32[8,8]{0,1} copy(%a)", Kernels(others=1)),
        (
            "%s = (f32[8]{0}, s32[8]{0}) sort(%a, %b), dimensions={0}, to_apply=%less",
            Kernels(others=1),
        ),
        ("ROOT %d = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}", Kernels(dots=1)),
        (
            '%g = (f32[8,8]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm"',
            Kernels(gemms=1),
        ),
        (
            '%g = (f32[8,8]{1,0}, s8[0]{0}) custom-call(%a), custom_call_target="__cublas$lt$matmul"',
            Kernels(gemms=1),
        ),
        ('%k = f32[8]{0} custom-call(%a), custom_call_target="cusolver_potrf"', Kernels(others=1)),
        (
            "%g = f32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%product, "
            'backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}',
            Kernels(gemms=1),
        ),
        ("%w = f32[8,8]{1,0} fusion(%a, %b), kind=kLoop, calls=%product", Kernels(loop_dots=1)),
        (
            '%t = f32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%sum, backend_config={"kind":"__triton"}',
            Kernels(fusions=1),
        ),
    ],
    ids=lambda value: None if isinstance(value, Kernels) else value.split(", calls")[0][:40],
)
def test_kind_of_kernel(instruction, kernels):
    computations = (
        "\n%product (a: f32[8,8]) -> f32[8,8] {\n"
        "  ROOT %d = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}\n}\n"
        "\n%sum (a: f32[8,8]) -> f32[8,8] {\n"
        "  ROOT %s = f32[8,8]{1,0} add(%a, %a)\n}\n"
    )
    assert look_into(program(instruction, computations=computations)) == kernels


def test_called_computations_count_once_for_each_call():
    twice = "\n%inner (a: f32[8,8]) -> f32[8,8] {\n  ROOT %d = f32[8,8]{1,0} dot(%a, %a)\n}\n"
    hlo = program(
        "%a = f32[8,8]{1,0} call(%x), to_apply=%inner",
        "%b = f32[8,8]{1,0} call(%a), to_apply=%inner",
        "%w = (s32[], f32[8,8]{1,0}) while(%b), condition=%c, body=%inner",
        "%i = f32[8,8]{1,0} conditional(%w), branch_computations={%inner, %inner}",
        computations=twice,
    )
    assert look_into(hlo) == Kernels(dots=5)


def test_kernels_add_and_multiply():
    assert Kernels(gemms=1) * 3 + Kernels(fusions=2) == Kernels(gemms=3, fusions=2)
    assert (Kernels(gemms=1) * 3 + Kernels(fusions=2)).n_kernels == 5


# --- the guard against kept calls where they lose -------------------------------------------------


def test_kept_calls_on_cpu_pass_the_probe():
    verdict = judge_probe(recorded("cpu_kept"), recorded("cpu_inlined"))
    assert verdict.gains, verdict.reason


def test_kept_calls_on_a_gpu_fail_the_probe_for_their_kernels():
    verdict = judge_probe(recorded("h200_kept"), recorded("h200_inlined"))
    assert verdict.calls_stay and not verdict.same_kernels and not verdict.gains
    assert verdict.reason == "matrix products (gemm, dot, loop) (0, 0, 2) against (2, 0, 0) inlined"


@pytest.mark.parametrize("platform", ["cpu", "h200"])
def test_calls_that_are_inlined_all_the_same_fail_the_probe(platform):
    inlined = recorded(f"{platform}_inlined")
    verdict = judge_probe(inlined, inlined)
    assert verdict.same_kernels and not verdict.gains
    assert "no two calls" in verdict.reason


def test_calls_that_multiply_the_kernels_fail_the_probe():
    body = (
        "\n%body (a: f32[8,8]) -> f32[8,8] {\n"
        + "".join(f"  %c{i} = f32[8,8]{{0,1}} copy(%a)\n" for i in range(4))
        + "}\n"
    )
    kept = program(
        *(f"%{i} = f32[8,8]{{1,0}} call(%x), to_apply=%body" for i in "ab"), computations=body
    )
    inlined = program("%c = f32[8,8]{0,1} copy(%x)")
    assert judge_probe(kept, inlined).reason == "8 kernels against 1 inlined"


def test_memory_of_stages_counts_what_lives_between_them():
    def fun(x):
        for _ in range(4):
            x = body(x)
        return x

    body = jitscope.shared_subroutine(lambda x: jnp.tanh(x @ x))
    policy = jitscope.Policy(min_uses=2, min_equations=1, min_saved=1)
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
    with pytest.raises(ImportError, match=r"pip install --no-deps jax-cuda13-pjrt==.*nvjitlink"):
        gpu_target.device("h200")


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
        gpu_target.main(["transformer", contender, "--set", *sizes])
        record = json.loads(capsys.readouterr().out)
        products.append(record["kernels"]["gemms"] + record["kernels"]["dots"])
        assert record["versions"]["jax"] == jax.__version__
    jax.config.update("jax_enable_compilation_cache", before)
    assert record["n_executables"] > 2
    assert products[0] == products[1]
