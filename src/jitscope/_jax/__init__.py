"""The only door to JAX internals.

Every other module sees jaxprs, primitives and lowering through the names below, so
that a new JAX release is adapted to in this package alone. Each assumption made here has
a test in ``tests/test_jax_contract.py`` that fails first, by name.

Words: a *closed* jaxpr carries the values of its constvars; up to JAX 0.10 that is a
type of its own (``ClosedJaxpr``), from 0.11 every ``Jaxpr`` is one. ``equations``,
``consts`` and ``rebuilt`` hide the difference.
"""

from jax.extend.core import (
    DropVar as DropVar,
    Literal as Literal,
    Primitive as Primitive,
    Var as Var,
)

from .jaxprs import (
    AnyJaxpr as AnyJaxpr,
    can_stack as can_stack,
    closed_over as closed_over,
    constants_as_operands as constants_as_operands,
    consts as consts,
    equations as equations,
    has_input_effects as has_input_effects,
    has_ordered_effects as has_ordered_effects,
    holds as holds,
    is_array_type as is_array_type,
    is_inexact as is_inexact,
    is_jaxpr as is_jaxpr,
    is_movable as is_movable,
    literal_value as literal_value,
    n_bytes as n_bytes,
    new_equation as new_equation,
    new_jaxpr as new_jaxpr,
    opened as opened,
    rebuilt as rebuilt,
    sub_jaxprs as sub_jaxprs,
    trip_count as trip_count,
    variables as variables,
    with_subprograms as with_subprograms,
)
from .lowering import (
    Target as Target,
    structured_call_primitive as structured_call_primitive,
)
from .nested_jit import (
    UNSPECIFIED as UNSPECIFIED,
    has_options as has_options,
    jit as jit,
    jit_params as jit_params,
    with_leading_operands as with_leading_operands,
)
from .primitives import (
    BROADCASTS as BROADCASTS,
    CONTEXT_PARTS as CONTEXT_PARTS,
    CONVOLUTIONS as CONVOLUTIONS,
    DERIVATIVE_ONLY as DERIVATIVE_ONLY,
    DISCONTINUOUS as DISCONTINUOUS,
    FUSED as FUSED,
    FUSED_CALLS as FUSED_CALLS,
    HEAVY as HEAVY,
    LEAVES as LEAVES,
    NAME_ONLY as NAME_ONLY,
    PURE as PURE,
    REDUCTIONS as REDUCTIONS,
    SUBPROGRAMS as SUBPROGRAMS,
    device_put_p as device_put_p,
    is_draw as is_draw,
    jit_p as jit_p,
    prng_name as prng_name,
    sharding_constraint_p as sharding_constraint_p,
)
from .runtime import (
    HAS_INLINE_ENUM as HAS_INLINE_ENUM,
    JAXLIB as JAXLIB,
    VERSION as VERSION,
    UncheckedCall as UncheckedCall,
    check_operands as check_operands,
    checks_results as checks_results,
    direct_call as direct_call,
    has_default_layout as has_default_layout,
    is_compiling as is_compiling,
    is_default_memory as is_default_memory,
    lies_on as lies_on,
    placed as placed,
    placements as placements,
    unchecked_call as unchecked_call,
)
from .source import (
    current_source_line as current_source_line,
    function_name as function_name,
    is_function_of_jax as is_function_of_jax,
    is_transposed as is_transposed,
    source_line as source_line,
    source_line_of_call as source_line_of_call,
    stacklevel_of_user as stacklevel_of_user,
    user_functions as user_functions,
    user_stack as user_stack,
    within_call as within_call,
    without_name_scope as without_name_scope,
    wraps as wraps,
)
from .tracing import (
    NO_TRACE as NO_TRACE,
    TRACE_CONTEXT as TRACE_CONTEXT,
    Boundary as Boundary,
    Tracer as Tracer,
    at_top_level as at_top_level,
    bound_axes as bound_axes,
    call as call,
    call_traced as call_traced,
    closed_over_by as closed_over_by,
    emit as emit,
    trace as trace,
    traced_as as traced_as,
    without_hijax as without_hijax,
)
