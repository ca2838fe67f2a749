"""Which structure each body gets: Census -> Plan.

A policy decides and does nothing. Its decisions depend on the census and on the settings
below, never on timing in this process, so that every host of a program decides alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeAlias

from ..words import count
from .callgraph import CallGraph
from .census import Body, Census
from .checks import check_settings, check_value
from .plan import Decision, LoopLimits, Plan, Structure

# Of a found body whose calls are not kept: with 400 uses (AdamW) they are lowered and compiled in
# 0.87 of the time, with 9 and 11 (an ODE solver's steps) in 1.1 times the time of no calls.
_MIN_NESTED = 16
_HEAVY = "matrix products or the like"
"""In reasons: what a body's ``n_heavy`` counts."""
_OUTERMOST = (Structure.SHARED, Structure.ROLLED)
"""Calls within bodies of these structures are left to XLA to inline."""

PolicyLike: TypeAlias = Callable[[Census], Plan]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """The default policy, with its thresholds.

    What a kept call saves is counted in equations: ``(uses - 1) * equations``. It costs a
    compilation unit of its own, and fusion across the call.

    Attributes:
      min_uses: fewest uses for which calls are kept, and twice as many for a body with a
        convolution. Blocks of U-Net and ResNet-50 with 4 to 6 uses compile no faster kept and run
        0.88 to 1.07 times as long; with 13 and 22 uses 1.4 and 1.9 times faster.
      min_equations: smallest body whose calls are kept, and half as many again for one with a
        matrix product, convolution, loop or library call. Layers `x + gelu(x @ w)` (13 equations
        under a gradient) compile no faster kept and run 1.08 times as long; with a norm (26 and
        32) 2.4 times faster and 0.92.
      min_equations_per_product: equations of a body for each of these. Products with little between
        them leave nothing to fuse: a perceptron of 100 layers (5, and 3.5 in its gradient) compiles
        no faster kept and runs 1.07 times as long; with 7 and more (transformer, LSTM, ODE steps)
        compiling is up to 13 times faster. Not asked of bodies whose chains grow (`Body.grows`):
        pairs of attention and gated perceptron (5.9) compile 3 times faster kept and run 0.75 times
        as long.
      min_saved_light: equations to be saved by a body without matrix product, convolution,
        loop or library call. XLA:CPU, element-wise chains of 12, 48, 96 equations: cold
        0.73x, 0.78x, 1.4x with 4 uses and 1.5x, 3.2x, 5.4x with 16.
      min_equations_per_value: equations of such a body for each operand and result that is no
        residual (`Body.n_residuals`), and for each one of any body where it is known that no chain
        of calls would be fused into growing kernels. What crosses a kept call is not fused: with 2
        equations for each, element-wise chains run up to 4 times as long, the adjoint of an ODE
        step (112 equations, 65 values) 1.09 times, and train steps of Flax Linen and of a
        message-passing network 1.05 to 1.1 times; with 6 they run no longer.
      min_saved: equations to be saved by all other bodies of the program together. XLA:CPU
        compiles like kernels once anyway: transformer blocks, forward only, start 0.88x, 0.96x,
        1.2x as fast with 8, 16, 24 layers (672, 1440, 2208 equations).
      min_uses_steady: fewest uses for which calls of these bodies are kept. Train steps of Flax
        Linen (249 equations a layer) compile 0.8x, 0.9x, 1.1x as fast with 4, 8, 12 layers.
        With ``min_uses`` or less no difference is made between these and growing ones.
      min_saved_growing: ``min_saved`` where a chain of calls would be fused into ever larger
        kernels (`Body.grows`), and ``min_uses`` are enough: small residual layers start 1.8x,
        2.1x, 4.6x as fast with 438, 612, 960 equations.
      max_side_by_side: most uses of a body with a matrix product or the like that may run at
        the same time, on average: XLA:CPU runs what does not depend on one another on several
        cores, but kept calls one by one. 8 experts to a layer, kept, run 1.6 times as long on 2.
      min_uses_drawing: fewest uses for which calls of a written body are kept that draws random
        numbers by Threefry and is light otherwise, such as those of ``jax.random``. XLA:CPU
        compiles the loop of each draw anew: 32 draws of 1 to 16,384 numbers, kept, compile 4 to 5
        times faster and run 0.36 to 0.8 times as long. A train step of 16 Flax blocks with dropout
        starts in 6.5 s in place of 12.7, and runs as long.
      rolled: whether calls that would be kept become loops where they form chains of
        ``min_uses`` calls.
      min_saved_per_copy: equations that a loop has to save for each value that is copied into
        or out of a stack for it: a copy is two equations and, on a GPU, a kernel.
      max_stacked_bytes: what all loops together may copy into and out of stacks in one run,
        which also bounds the memory that they take.

    Raises:
      TypeError: a setting is unknown or given without its name; the message lists all of them.
      ValueError: a setting is no positive whole number, or ``rolled`` not True or False.
    """

    min_uses: int = 4
    min_equations: int = 12
    min_equations_per_product: int = 6
    min_saved_light: int = 180
    min_equations_per_value: int = 4
    min_saved: int = 1100
    min_uses_steady: int = 12
    min_saved_growing: int = 400
    max_side_by_side: int = 1
    min_uses_drawing: int = 4
    rolled: bool = False
    min_saved_per_copy: int = 4
    max_stacked_bytes: int = LoopLimits.max_stacked_bytes

    def __new__(cls, *nameless: Any, **settings: Any) -> Self:
        if cls is Policy:
            check_settings([field.name for field in dataclasses.fields(cls)], nameless, settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(Policy):  # a subclass has settings of its own
            is_switch = isinstance(field.default, bool)
            setting = f"Policy({field.name}=...)"
            check_value(setting, getattr(self, field.name), is_switch=is_switch)

    def __call__(self, census: Census) -> Plan:
        graph = CallGraph(census)
        heavy = self._heavy(census)
        decisions: dict[str, Decision] = {}
        kept: set[str] = set()
        in_layers: set[str] = set()
        is_layer_kept = False
        for body, n_uses in graph.with_uses(kept):
            if body.n_heavy or body.fingerprint.digest in in_layers:
                in_layers.update(callee for callee, _ in body.calls)
            is_in_layer = body.fingerprint.digest in in_layers
            drawing = self._drawing(body, n_uses)
            decision = (
                drawing
                or self._unfit(body, n_uses)
                or self._too_little(body, n_uses, heavy, is_in_layer)
                or self._better_within(body, graph, heavy)
                or Decision(
                    Structure.SHARED,
                    f"{n_uses} uses, saves {_saved(body, n_uses)} of "
                    f"{n_uses * body.n_equations} equations",
                )
            )
            if decision.structure in _OUTERMOST:
                kept.add(body.fingerprint.digest)
                is_layer_kept |= decision is not drawing
                if self.rolled and decision.structure is Structure.SHARED:
                    decision = Decision(Structure.ROLLED, decision.reason, Structure.SHARED)
            elif body.outlined and decision.structure is Structure.NESTED:
                decision = self._of_found(body, n_uses, is_in_layer, decision)
            decisions[body.fingerprint.digest] = decision
        if not is_layer_kept:
            decisions |= self._as_traced(census, decisions)
        limits = LoopLimits(self.min_uses, self.min_saved_per_copy, self.max_stacked_bytes)
        return Plan(decisions, limits)

    def _of_found(self, body: Body, n_uses: int, is_in_layer: bool, nested: Decision) -> Decision:
        """Back in line where no call of any kind pays; else lowering once is saved time too."""
        if is_in_layer:
            # XLA inlines nested calls in another order than that of the tracer: a Flax transformer
            # ran 1.04 times as long with its layer norms nested, and as long with its optimiser.
            reason = f"{nested.reason}; found in a body with {_HEAVY}"
            return Decision(Structure.INLINE, reason)
        if n_uses < _MIN_NESTED:
            least = f"{_MIN_NESTED} uses"
        elif _saved(body, n_uses) < self.min_saved_light:
            least = f"{self.min_saved_light} saved equations"
        else:
            return nested
        reason = f"{nested.reason}; found, and nested calls pay from {least}"
        return Decision(Structure.INLINE, reason)

    def _as_traced(self, census: Census, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
        """Found bodies back in line where nothing is kept.

        XLA then gets the program that ``jax.jit`` would give it, and makes the same of it. Nested
        calls it inlines in another order than that of the tracer: a NumPyro model of several such
        bodies starts no faster so and runs 1.04 times as long. A program that is little but one
        body (AdamW) keeps its order and starts 1.1 times faster.
        """
        nested = [
            body
            for body in census.bodies
            if body.outlined and decisions[body.fingerprint.digest].structure is Structure.NESTED
        ]
        most = max((_saved(body, body.n_uses) for body in nested), default=0)
        if 2 * most >= census.n_equations:
            return {}
        why = "found, and no layers are kept: nested ones pay where they save half of the program"
        return {
            body.fingerprint.digest: Decision(
                Structure.INLINE, f"{decisions[body.fingerprint.digest].reason}; {why}"
            )
            for body in nested
        }

    def _drawing(self, body: Body, n_uses: int) -> Decision | None:
        """Kept where it is little but random draws, however small it is."""
        is_free = not body.obstacle and body.forced is None
        is_light = body.n_draws and not body.n_heavy and not body.outlined
        if not (is_free and is_light) or n_uses < self.min_uses_drawing:
            return None
        reason = f"{n_uses} uses that draw random numbers, which XLA would compile anew for each"
        return Decision(Structure.SHARED, reason)

    def _unfit(self, body: Body, n_uses: int) -> Decision | None:
        """The decision for a body that no amount of equations makes worth a kept call."""
        if body.obstacle:
            return Decision(Structure.NESTED, body.obstacle)
        if n_uses == 0:
            became = "that become loops" if self.rolled else "whose calls are kept"
            return Decision(Structure.NESTED, f"called only within bodies {became}")
        if body.forced is not None:
            return Decision(Structure(body.forced), "asked for by its decorator")
        if body.n_uses == 1:
            return Decision(Structure.INLINE, "called once")
        enough, smallest = self.min_uses * (2 if body.n_convolutions else 1), self._smallest(body)
        if n_uses < enough:
            outside = " outside loops" if self.rolled else " outside kept bodies"
            where = outside if n_uses < body.n_uses else ""
            what = f"{self._call} with a convolution" if body.n_convolutions else self._call
            return Decision(
                Structure.NESTED,
                f"{count(n_uses, 'use')}{where}, {what} pays from {enough} uses",
            )
        if body.n_equations < smallest:
            return Decision(Structure.NESTED, self._few_equations(body, smallest))
        if body.n_done_before:
            return Decision(
                Structure.NESTED,
                f"the call before has done {body.n_done_before} of its {_HEAVY}, which XLA does "
                "once where calls are not kept",
            )
        if body.n_side_by_side > self.max_side_by_side:
            return Decision(
                Structure.NESTED,
                f"its calls may run {body.n_side_by_side} at a time, kept calls run one by one",
            )
        return None

    @property
    def _call(self) -> str:
        """What a body that pays would get, in a reason."""
        return "a loop" if self.rolled else "a kept call"

    def _few_equations(self, body: Body, smallest: int) -> str:
        each = self.min_equations_per_product
        if smallest == each * body.n_heavy:
            return (
                f"{body.n_equations} equations with {body.n_heavy} {_HEAVY}, {self._call} pays "
                f"from {smallest} equations ({each} for each)"
            )
        what = f"{self._call} with {_HEAVY}" if body.n_heavy else self._call
        return f"{body.n_equations} equations, {what} pays from {smallest} equations"

    def _heavy(self, census: Census) -> _Heavy:
        bodies = [
            body for body in census.bodies if body.n_heavy and not self._unfit(body, body.n_uses)
        ]
        growing = any(body.grows and body.is_in_a_row for body in bodies)
        steady = not growing and all(body.grows is False for body in bodies)
        enough = self.min_uses if growing or self.rolled else self.min_uses_steady
        return _Heavy(
            steady=steady and not self.rolled and self.min_uses < self.min_uses_steady,
            saved=sum(_saved(body, body.n_uses) for body in bodies if body.n_uses >= enough),
            needed=self.min_saved_growing if growing else self.min_saved,
            enough=enough,
        )

    def _smallest(self, body: Body) -> int:
        if not body.n_heavy:
            return self.min_equations
        each = 0 if body.grows else self.min_equations_per_product
        return max(self.min_equations * 3 // 2, each * body.n_heavy)

    def _too_little(
        self, body: Body, n_uses: int, heavy: _Heavy, is_in_layer: bool
    ) -> Decision | None:
        if not body.n_heavy and not body.is_chained:
            # XLA fuses a chain into one kernel that grows; the rest it compiles one by one.
            # Kept, AdamW over 400 leaves of 64 elements compiles 1.3x faster, runs 1.06x as long.
            return Decision(Structure.NESTED, "element-wise, and its calls do not feed each other")
        is_fused = not body.n_heavy or heavy.steady
        needed_equations = self.min_equations_per_value * _n_crossing(body, is_in_layer)
        if is_fused and body.n_equations < needed_equations:
            # Nested, layers are inlined in another order than that of the tracer, and may run
            # 1.05 times as long (message passing). Who marked them wants them traced once.
            structure = Structure.INLINE if body.n_heavy and body.outlined else Structure.NESTED
            what = "XLA fuses its calls layer by layer" if body.n_heavy else "element-wise"
            return Decision(
                structure,
                f"{what}, and {body.n_boundary} values cross each call: such calls pay from "
                f"{needed_equations} equations",
            )
        if body.n_heavy and n_uses < heavy.enough:
            return Decision(
                Structure.NESTED,
                f"{n_uses} uses that XLA fuses layer by layer, kept calls pay from {heavy.enough}",
            )
        saved = heavy.saved if body.n_heavy else _saved(body, n_uses)
        needed = heavy.needed if body.n_heavy else self.min_saved_light
        if saved >= needed:
            return None
        calls = "loops" if self.rolled else "kept calls"
        of_all = f" of all bodies with {_HEAVY}" if body.n_heavy else ""
        return Decision(
            Structure.NESTED,
            f"{calls}{of_all} would save {saved} equations, they pay from {needed} equations",
        )

    def _better_within(self, body: Body, graph: CallGraph, heavy: _Heavy) -> Decision | None:
        """Kept calls do not nest: what repeats within a body may save more than the body."""

        def wanted(inner: Body) -> bool:
            return not (
                self._unfit(inner, inner.n_uses)
                or self._too_little(inner, inner.n_uses, heavy, bool(body.n_heavy))
            )

        within = sum(
            _saved(inner, n_calls * body.n_paths)
            for inner, n_calls in graph.outermost_within(body, wanted)
        )
        saved = _saved(body, body.n_paths)
        if within <= saved:
            return None
        return Decision(
            Structure.NESTED,
            f"{'loops' if self.rolled else 'calls kept'} within it save {within} equations, its "
            f"own would save {saved}",
        )


class _Heavy(NamedTuple):
    """What all bodies with heavy equations save together, and from where that pays.

    Attributes:
      steady: whether none of their chains would be fused into growing kernels.
      saved: equations.
      needed: equations.
      enough: uses of each.
    """

    steady: bool
    saved: int
    needed: int
    enough: int


def _n_crossing(body: Body, is_in_layer: bool) -> int:
    """Values that cross a call and would not, were it fused into its neighbours.

    Residuals of element-wise steps cross from pass to pass in any case, or are made again and
    again: kept, gradients of 16 and 48 Runge-Kutta steps compile 35 and 120 times faster, and run
    faster; of plain steps on large arrays 1.3 times faster, and run 1.05 times as long. Between
    the products of a layer there is no such row of steps.
    """
    in_any_case = 0 if body.n_heavy or is_in_layer else body.n_residuals
    return body.n_boundary - in_any_case


def _saved(body: Body, n_uses: int) -> int:
    return (n_uses - 1) * body.n_equations
