"""Calls are kept where that was measured to gain, or where a probe shows it."""

import threading

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, hlo_program as program, recorded_hlo as recorded

import jitscope
from jitscope import _jax
from jitscope.structuring import platforms
from jitscope.structuring.platforms import PLATFORMS, Platform, judge_probe, keeps_calls, probed
from jitscope.structuring.shared_call import attributes

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


# --- the table ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    monkeypatch.setattr(platforms, "_verdicts", {})


@pytest.fixture
def compiled(monkeypatch):
    """Notes what the probe compiles; answers with what XLA makes of it for the CPU."""
    asked = []

    def compile_probe(platform, kept):
        asked.append((platform, kept))
        return recorded(f"cpu_{'kept' if kept else 'inlined'}")

    monkeypatch.setattr(platforms, "_compiled_in_a_thread", compile_probe)
    return asked


def newer_compiler(monkeypatch):
    newest = max(known.measured_with for known in PLATFORMS.values())
    monkeypatch.setattr(_jax, "JAXLIB", (newest[0] + 1, 0, 0))


def on(platform, n_devices=1, manual=False):
    return attributes(_jax.Target((platform,), n_devices, manual), "body_0123")


def test_every_row_has_a_reason():
    assert {"cpu", "cuda", "rocm", "tpu"} == PLATFORMS.keys()
    assert all(known.because for known in PLATFORMS.values())


@pytest.mark.parametrize("platform", [*PLATFORMS, "of another kind"])
def test_with_the_compilers_that_were_measured_nothing_is_probed(platform, compiled):
    assert bool(on(platform)) == (platform == "cpu")
    assert compiled == []


def test_on_cpu_and_on_unknown_platforms_nothing_is_ever_probed(compiled, monkeypatch):
    newer_compiler(monkeypatch)
    assert on("cpu") == {"inlineable": "false", "compilation_unit": "body_0123"}
    assert on("of another kind") == {}
    assert compiled == []


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_newer_compiler_that_keeps_calls_well_gets_them_after_one_probe(
    platform, compiled, monkeypatch
):
    newer_compiler(monkeypatch)
    for _ in range(3):
        assert on(platform) == on("cpu") != {}
    assert compiled == [(platform, True), (platform, False)]


def test_several_devices_are_not_probed_for(compiled, monkeypatch):
    newer_compiler(monkeypatch)
    assert on("cuda", n_devices=8) == {} and on("cuda", manual=True) == {}
    assert attributes(_jax.Target(("cuda", "cpu"), 1, False), "body_0123") == {}
    assert attributes(_jax.Target(("cuda",), 1, False), "") == {}
    assert compiled == []


def test_newer_compiler_that_clones_calls_gets_none(monkeypatch):
    newer_compiler(monkeypatch)
    monkeypatch.setattr(
        platforms,
        "_compiled_in_a_thread",
        lambda platform, kept: recorded(f"h200_{'kept' if kept else 'inlined'}"),
    )
    assert not keeps_calls("cuda")
    assert "matrix products" in platforms._verdicts["cuda"].reason


def test_several_processes_do_not_decide_by_a_probe(compiled, monkeypatch):
    newer_compiler(monkeypatch)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert not keeps_calls("cuda")
    assert compiled == []


def test_probe_that_fails_is_a_no_and_is_not_repeated(monkeypatch):
    failures = []

    def fail(platform, kept):
        failures.append(platform)
        raise RuntimeError("out of memory")

    assert not probed("cuda", fail).gains
    assert probed("cuda", fail).reason == "the probe failed: RuntimeError: out of memory"
    assert failures == ["cuda"]


def test_platform_without_devices_here_is_a_no(monkeypatch):
    newer_compiler(monkeypatch)
    assert not keeps_calls("rocm")
    assert "the probe failed" in platforms._verdicts["rocm"].reason


def test_probe_that_never_ends_is_a_no(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(platforms, "_LONGEST_S", 0.01)
    monkeypatch.setattr(platforms, "_compiled", lambda platform, kept: ended.wait(30) or "")
    assert not probed("cpu").gains
    ended.set()


def test_probe_of_this_machine_while_a_program_is_lowered(monkeypatch):
    newer_compiler(monkeypatch)
    monkeypatch.setattr(
        platforms, "PLATFORMS", {"cpu": Platform(False, (0,), "not measured: in this test")}
    )

    @jitscope.shared_subroutine(structure="shared")
    def body(x):
        return jnp.tanh(x @ x) * 2

    def fun(x):
        for _ in range(6):
            x = body(x)
        return x

    x = jnp.full((4, 4), 0.1)
    with jax.default_matmul_precision("highest"):
        function = jitscope.outermost_jit(fun)
        assert 'compilation_unit = "body_' in function.lower(x).as_text()
        assert_same(function(x), jax.jit(fun)(x))
    assert platforms._verdicts["cpu"].gains
