"""Tables of JAX primitives: which hold programs, which parameters matter, which are heavy."""

from __future__ import annotations

from typing import Any

from jax._src import shard_map as _shard_map
from jax._src.lax import lax as _lax
from jax.extend import random as jex_random
from jax.extend.core import Primitive, primitives

custom_lin_p: Primitive = primitives.custom_lin_p
jit_p: Primitive = primitives.jit_p
sharding_constraint_p: Primitive = primitives.sharding_constraint_p
device_put_p: Primitive = primitives.device_put_p

SUBPROGRAMS: dict[Primitive, tuple[str, ...]] = {
    jit_p: ("jaxpr",),
    primitives.scan_p: ("jaxpr",),
    primitives.while_p: ("cond_jaxpr", "body_jaxpr"),
    primitives.cond_p: ("branches",),
    primitives.custom_jvp_call_p: ("call_jaxpr",),
    primitives.custom_vjp_call_p: ("call_jaxpr",),
    primitives.remat_p: ("jaxpr",),
    _shard_map.shard_map_p: ("jaxpr",),
}
"""Primitives whose sub-jaxprs may be replaced by equivalent ones, and the parameters
that hold them. A primitive that is not listed is never looked into for rewriting."""

DERIVATIVE_ONLY: dict[Primitive, frozenset[str]] = {
    primitives.custom_jvp_call_p: frozenset({"jvp_jaxpr_fun"}),
    primitives.custom_vjp_call_p: frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees"}),
    primitives.remat_p: frozenset({"policy"}),
}
"""Parameters that matter only when the equation is differentiated, never to lowering."""

NAME_ONLY: dict[Primitive, frozenset[str]] = {
    jit_p: frozenset(
        {"name", "inline", "keep_unused", "donated_invars", "ctx_mesh", "compiler_options_kvs"}
    ),
}
"""Parameters that do not change what a nested equation computes. Donation, options and
``keep_unused`` of a *nested* jit are ignored by JAX itself."""

HEAVY: frozenset[Primitive] = frozenset(
    {
        primitives.dot_general_p,
        primitives.conv_general_dilated_p,
        primitives.scan_p,
        primitives.while_p,
        primitives.cholesky_p,
        primitives.eigh_p,
        primitives.lu_p,
        primitives.qr_p,
        primitives.svd_p,
        primitives.triangular_solve_p,
        primitives.fft_p,
        primitives.sort_p,
    }
)
"""Equations that XLA compiles on their own, whatever surrounds them."""

CONVOLUTIONS: frozenset[Primitive] = frozenset({primitives.conv_general_dilated_p})

PURE: frozenset[Primitive] = frozenset(
    value for value in vars(primitives).values() if isinstance(value, Primitive)
) - {
    primitives.after_all_p,
    primitives.call_p,
    primitives.closed_call_p,
    primitives.create_token_p,
    custom_lin_p,
    primitives.empty2_p,
    primitives.linear_solve_p,
    primitives.remat_p,  # makes values again on purpose
    primitives.rng_uniform_p,  # another number each time
}
"""Equations that, without effects, give equal results for equal operands, if all that is nested in
them does so too. Barriers and callbacks are not among JAX's public primitives."""


def _named(names: str) -> frozenset[Primitive]:
    """Those of this JAX: some are new in 0.11 and 0.12, some are not among the public ones."""
    found = (getattr(primitives, f"{n}_p", getattr(_lax, f"{n}_p", None)) for n in names.split())
    return frozenset(primitive for primitive in found if primitive is not None)


FUSED: frozenset[Primitive] = _named(
    "abs acos acosh add add_jaxvals and asin asinh atan atan2 atanh cbrt ceil clamp complex conj "
    "convert_element_type copy cos cosh div eq erf erf_inv exp exp2 expm1 floor ge gt imag "
    "integer_pow is_finite le log log1p log2 logistic lt max min mul name ne neg not "
    "one_minus_square or polynomial pow real reduce_precision rem round rsqrt select_n shift_left "
    "shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan "
    "tanh xor "
    "broadcast_in_dim iota reshape slice split squeeze transpose unstack"
)
"""Element by element, or nothing but other indices: compilers fuse them into what reads them."""

BROADCASTS: frozenset[Primitive] = _named("broadcast_in_dim iota")
"""Equations that make a large value of a small one, or of none."""

REDUCTIONS: frozenset[Primitive] = _named("reduce_sum reduce_max reduce_min")
"""Reductions over ``axes``."""

LEAVES: frozenset[Primitive] = FUSED | REDUCTIONS | CONVOLUTIONS | {primitives.dot_general_p}
"""The most frequent of those that hold no programs."""

DISCONTINUOUS: frozenset[Primitive] = _named(
    "ceil eq floor ge gt is_finite le lt ne nextafter rem round sign"
)
"""Those that give quite another result where real operands are rounded otherwise."""

FUSED_CALLS: frozenset[Primitive] = frozenset({jit_p, primitives.custom_jvp_call_p})
"""Calls that are nothing more than what they call."""

CONTEXT_PARTS = (
    "compute_type",
    "threefry_partitionable",
    "cur_abstract_mesh",
    "xla_metadata",
    "remove_size_one_mesh_axis",
    "cur_layout_mode",
    "no_collectives",
)
"""Parts of an equation's context, all of which reach the lowered program. The last two are
new in JAX 0.11 and 0.12."""

_PRNG_NAMES = {
    id(impl): impl.name
    for impl in (
        jex_random.threefry_prng_impl,
        jex_random.rbg_prng_impl,
        jex_random.unsafe_rbg_prng_impl,
    )
}


def is_draw(eqn: Any) -> bool:
    """Whether an equation draws random bits that JAX lowers, for the CPU, to a loop.

    Units have no such loop, see `lowering`.
    """
    if eqn.primitive is not primitives.random_bits_p or not eqn.ctx.threefry_partitionable:
        return False
    generator = getattr(eqn.invars[0].aval.dtype, "_impl", None)
    return generator is jex_random.threefry_prng_impl


def prng_name(value: Any) -> str | None:
    """The name of one of JAX's own random number generators, or None for anything else."""
    return _PRNG_NAMES.get(id(value))
