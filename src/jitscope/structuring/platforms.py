"""Where calls are kept: what was measured of each platform, and a probe for what was not.

A call that a platform does not keep is worth nothing; one that it keeps badly is a trap. So calls
are marked only where the table says that they gain. Of a compiler newer than the measurements
behind a row that says no, the *probe* asks again: it compiles two calls of a body with a matrix
product, marked and unmarked, once per process, and compares what comes out. That costs two
small compilations, of programs that have calls worth keeping.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from .. import _jax


@dataclasses.dataclass(frozen=True)
class Platform:
    """What is known of a platform.

    Attributes:
      keeps_calls: whether a program gains from marked calls.
      measured_with: the newest jaxlib for which that is known.
      because: the measurement.
    """

    keeps_calls: bool
    measured_with: tuple[int, ...]
    because: str


PLATFORMS: Mapping[str, Platform] = {
    "cpu": Platform(
        True,
        (0, 12, 0),
        "48-layer train step, cold: 134.8 s plain, 13.0 s not inlined, 3.25 s as separate units",
    ),
    "cuda": Platform(
        False,
        (0, 12, 0),
        "H200, 36 layers: each call gets a copy of its own, in which 648 of 651 matrix products "
        "become loops and 38 kernels a layer become 177",
    ),
    "rocm": Platform(False, (0, 12, 0), "not measured; the same compiler as for CUDA"),
    "tpu": Platform(False, (0, 12, 0), "not measured; the compiler is known to inline such calls"),
}
"""By the names that lowering rules see. Calls are plain on every other platform."""


def tags(unit: str) -> dict[str, str]:
    """Frontend attributes of a call that is kept; the body is compiled once under this name."""
    return {"inlineable": "false", "compilation_unit": unit}


def keeps_calls(platform: str) -> bool:
    """Whether programs for one device of a platform gain from calls that are kept."""
    known = PLATFORMS.get(platform)
    if known is None:
        return False
    if known.keeps_calls or known.measured_with >= _jax.JAXLIB:
        return known.keeps_calls
    return probed(platform).gains


# --- the probe ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a platform gains from calls that are kept.

    Attributes:
      calls_stay: two calls of equal computations are left.
      same_kernels: the body compiles to the kinds of kernels that it has when inlined.
      reason: in words.
    """

    calls_stay: bool
    same_kernels: bool
    reason: str

    @property
    def gains(self) -> bool:
        return self.calls_stay and self.same_kernels


_MOST_KERNELS = 1.5  # kept calls fuse less at their boundary; the trap makes 4.7 times as many
_LONGEST_S = 60.0
_SIZE = 256

CompileProbe = Callable[[str, bool], str]
"""Platform, and whether calls are marked, to optimised HLO."""

_verdicts: dict[str, Verdict] = {}
_lock = threading.Lock()


def probed(platform: str, compile_probe: CompileProbe | None = None) -> Verdict:
    """The verdict on a platform, asked for once per process.

    Whatever goes wrong is a no: the program is right without kept calls. Of several processes each
    would have to come to the same verdict, which nothing ensures, so there it is a no, too.

    Args:
      platform: one that this process has devices of.
      compile_probe: in place of the compiler.
    """
    with _lock:
        if platform not in _verdicts:
            try:
                _verdicts[platform] = _probe(platform, compile_probe or _compiled_in_a_thread)
            except Exception as error:  # noqa: BLE001 - see above
                reason = f"the probe failed: {type(error).__name__}: {error}"
                _verdicts[platform] = Verdict(False, False, reason)
        return _verdicts[platform]


def _probe(platform: str, compile_probe: CompileProbe) -> Verdict:
    if jax.process_count() > 1:
        return Verdict(False, False, "several processes have to decide alike")
    return judge_probe(compile_probe(platform, True), compile_probe(platform, False))


def judge_probe(kept: str, inlined: str) -> Verdict:
    """Judges a platform by two calls of a body with a matrix product.

    The text does not say whether a computation was compiled once: XLA:CPU stitches one that was
    back in as a copy for each call, XLA:GPU copies first and compiles each. What it shows is
    whether the calls are still there, and whether the passes that make good kernels reached them.

    Args:
      kept: optimised HLO of the program with its calls marked to be kept.
      inlined: the same without the marks.
    """
    from ..hlo import look_into, n_equal_calls  # the probe alone reads what was compiled

    calls_stay = n_equal_calls(kept) >= 2
    ours, theirs = look_into(kept), look_into(inlined)
    same_products = ours.products == theirs.products
    same_kernels = same_products and ours.n_kernels <= _MOST_KERNELS * theirs.n_kernels
    reasons = [] if calls_stay else ["no two calls of one body are left"]
    if not same_products:
        reasons.append(
            f"matrix products (gemm, dot, loop) {ours.products} against {theirs.products} inlined"
        )
    elif not same_kernels:
        reasons.append(f"{ours.n_kernels} kernels against {theirs.n_kernels} inlined")
    return Verdict(calls_stay, same_kernels, "; ".join(reasons) or "calls stay, kernels alike")


_probe_call_p = _jax.structured_call_primitive(
    "probe_call", lambda target, unit: tags(unit) if unit else {}
)


def _body(x: jax.Array, weights: jax.Array) -> jax.Array:
    deviation = x - x.mean(-1, keepdims=True)
    scaled = deviation * jax.lax.rsqrt((deviation * deviation).mean(-1, keepdims=True) + 1e-6)
    return x + jnp.tanh(scaled @ weights)


def _compiled(platform: str, kept: bool) -> str:
    """Optimised HLO of two calls, for the first device of a platform."""
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices(backend=platform)[0])
    array = jax.ShapeDtypeStruct((_SIZE, _SIZE), jnp.float32, sharding=sharding)
    body = jax.make_jaxpr(_body)(array, array)
    params = dict(
        _jax.jit_params(body, "probe"),
        shared=body,
        unit="jitscope_probe" if kept else "",
        operands=(0, 1),
        results=(0,),
    )

    def jitscope_probe(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        for weights in (first, second):
            (x,) = _probe_call_p.bind(x, weights, **params)
        return x

    return _jax.jit(jitscope_probe).lower(array, array, array).compile().as_text() or ""


def _compiled_in_a_thread(platform: str, kept: bool) -> str:
    """As `_compiled`, away from the settings of this thread and from the lowering under way."""
    found: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put(_compiled(platform, kept))
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            found.put(error)

    threading.Thread(target=run, name="jitscope probe", daemon=True).start()
    result = found.get(timeout=_LONGEST_S)
    if isinstance(result, Exception):
        raise result
    return result
