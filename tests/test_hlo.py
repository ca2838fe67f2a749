"""What is read from optimised HLO.

The programs in `hlo/` are two calls of a body with a matrix product (a norm, a product, a tanh, a
residual), compiled by JAX 0.12.0.1 for CPU and for an H200, once with the calls marked to be kept
and once inlined; metadata and backend settings are left out.
"""

import pytest
from helpers import hlo_program as program, recorded_hlo as recorded

from jitscope.hlo import Kernels, look_into, n_equal_calls


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


def test_equal_calls_are_those_of_computations_with_equal_content():
    body = "\n%{} (a: f32[8,8]) -> f32[8,8] {{\n  ROOT %c = f32[8,8]{{0,1}} {}(%a)\n}}\n"
    computations = body.format("a", "copy") + body.format("b", "copy") + body.format("c", "negate")
    calls = [f"%{i} = f32[8,8]{{1,0}} call(%x), to_apply=%{i}" for i in "abc"]
    assert n_equal_calls(program(*calls, computations=computations)) == 2
    assert n_equal_calls(program(*calls[1:], computations=computations)) == 1
    assert n_equal_calls(recorded("cpu_inlined")) == 0
