"""Cores: the ``jax.jit`` objects behind shared subroutines, and which functions have one.

A *core* is one ordinary ``jax.jit`` object. Functions with equal code and equal captures
have one core. Its body wraps what JAX cannot carry, counts its traces, and is never used
again after it closed over a tracer that nobody saw.

This module neither binds arguments nor knows what a decorator is.
"""

from __future__ import annotations

import collections
import threading
import time
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..names import SubroutineName
from .captures import tracers_in
from .counters import Counters, Signature
from .functions import source_function
from .keys import text_of
from .reasons import Details, context
from .signature import Binder
from .static import Static, StaticResult, is_traceable, shown, unwrapped
from .writes import Contents

MAX_CORES = 1024
LARGE_CONSTANT_BYTES = 1 << 16
"""Captured arrays of this size become operands. JAX writes the others into the body, once
for each of its derivatives (8 MB were twice 16.8 MB of StableHLO text under ``grad``)."""

_HIDDEN = (
    "the function closed over a tracer that is hidden in an object or a global; pass it as "
    "an argument to share the trace"
)
CAPTURED_TRACER = (
    "it captured a tracer, so its trace serves only calls with that very tracer; "
    "pass it as an argument to share the trace"
)


class CannotShare(Exception):  # noqa: N818 - control flow, never seen by users
    """Raised while tracing: this function can only run as a plain call."""


class _NotHeldError(Exception):
    """Raised while tracing: JAX holds no trace."""


class Frame:
    """A call of a core under way in this thread."""

    __slots__ = ("core", "fun", "signature", "traced")

    def __init__(self, core: Core, fun: Callable[..., Any], signature: Signature | None) -> None:
        self.core, self.fun, self.signature = core, fun, signature
        self.traced = False


class _Running(threading.local):
    frame: Frame | None = None


_running = _Running()


class Core:
    """One ``jax.jit`` object, for all functions with equal code and captures.

    Attributes:
      jitted: the ``jax.jit`` object.
      simple: whether its results need no unwrapping and it may be dispatched to directly.
      plain_reason: why calls must run the plain function; empty if they need not.
      poisoned: whether JAX caches for it a trace that must not be used again.
      has_large: whether a trace closed over a large array.
      checked: signatures whose trace is known to close over no hidden tracer.
    """

    def __init__(
        self,
        name: SubroutineName,
        fun: Callable[..., Any],
        binder: Binder,
        captures: dict[str, Hashable],
        counters: Counters,
        again: str = "",
    ) -> None:
        self.simple, self.plain_reason, self.poisoned, self.has_large = True, "", False, False
        self.checked: set[Signature] = set()
        self.captures, self._again = tuple(captures.items()), again
        self._fun = None if captures else fun
        self._binder, self._counters = binder, counters
        self._lifted: dict[int, tuple[Any, Any]] = {}
        self.jitted = _jax.jit(self._body(name, fun))

    def _body(self, name: SubroutineName, fun: Callable[..., Any]) -> Callable[..., Any]:
        """The function that JAX traces. It must not keep the user's function alive."""

        def body(*args: Any, **kwargs: Any) -> Any:
            return self._traced(args, kwargs)

        body.__name__ = body.__qualname__ = name
        code = getattr(source_function(fun), "__code__", None)
        if code is not None:  # where JAX finds the line to show in its messages
            body.__wrapped__ = types.SimpleNamespace(__name__=str(name), __code__=code)
        signature = self._binder.without_defaults()
        if signature is not None:  # where it finds the names of arguments
            body.__signature__ = signature
        return body

    def _traced(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        frame = _running.frame
        fun, signature = self._fun, None
        if frame is not None and frame.core is self:
            fun, signature, frame.traced = frame.fun, frame.signature, True
        if fun is not None and jax.config.jax_disable_jit:
            return fun(*unwrapped(args), **unwrapped(kwargs))
        if fun is None:  # dispatched to without a frame, which never happens with a trace at hand
            raise CannotShare("")
        details = self._details(args, kwargs)
        if signature is None:
            signature = self.signature(args, kwargs)[0]
        args, kwargs = unwrapped(args), unwrapped(kwargs)
        contents = Contents(self._binder.labelled(args, kwargs))
        start = time.perf_counter()
        result = self._result(fun(*args, **kwargs))
        if written := contents.written_to():
            raise CannotShare(
                f"it writes to its argument{'s' * (len(written) > 1)} {', '.join(written)}; return "
                "the new value to share the trace"
            )
        self._counters.traced(signature, details, self._again, time.perf_counter() - start)
        return result

    def _result(self, result: Any) -> Any:
        leaves = jax.tree_util.tree_leaves_with_path(result)
        if all(isinstance(leaf, jax.Array) for _, leaf in leaves):
            return result
        for path, leaf in leaves:
            if not _is_array_result(leaf) and tracers_in(leaf):
                raise CannotShare(
                    f"result{jax.tree_util.keystr(path)} is {shown(leaf)}, which "
                    "holds values of the call it comes from"
                )
        self.simple = self.simple and all(_is_array_result(leaf) for _, leaf in leaves)
        return jax.tree.map(lambda x: x if _is_array_result(x) else StaticResult(x), result)

    def signature(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Signature, list[Any]]:
        """The signature of bound and wrapped arguments, and their traced leaves."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        return Signature(tree, tuple(map(jax.typeof, leaves)), self.captures), leaves

    def _details(self, args: tuple, kwargs: dict[str, Any]) -> Details:
        avals: dict[str, Any] = {}
        static: dict[str, tuple[Hashable, str]] = {}
        for label, value in self._binder.labelled(args, kwargs):
            for path, leaf in jax.tree_util.tree_leaves_with_path(
                value, is_leaf=lambda x: isinstance(x, Static)
            ):
                where = label + jax.tree_util.keystr(path)
                if isinstance(leaf, Static):
                    static[where] = (leaf.key, shown(leaf.value))
                else:
                    avals[where] = jax.typeof(leaf)
        captures = {name: (key, text_of(key)) for name, key in self.captures}
        return Details(avals, static, captures, context())

    def clear(self) -> None:
        """Forgets all traces and compiled code."""
        self.jitted.clear_cache()
        self.checked.clear()
        self._lifted.clear()

    def call(self, args: tuple, kwargs: dict[str, Any], frame: Frame) -> Any:
        """One call, outside any trace."""
        with _Entered(frame):
            return self.jitted(*args, **kwargs)

    def call_under_trace(
        self,
        args: tuple,
        kwargs: dict[str, Any],
        leaves: list[Any],
        frame: Frame,
        known_tracers: Sequence[Any],
    ) -> Any:
        """One call under a trace: a nested ``jit`` equation."""
        with _Entered(frame):
            traced = None
            if self.has_large or frame.signature not in self.checked:
                traced = self.jitted.trace(*args, **kwargs)
            if traced is not None and self._closes_over_large(traced):
                out = self._call_lifted(traced, leaves)
            else:
                out = self.jitted(*args, **kwargs)
            if frame.traced and traced is None:  # for another context than the checked trace
                traced = self.jitted.trace(*args, **kwargs)
            if traced is not None:
                self._check(traced, frame, known_tracers)
        return out

    def held(self, args: tuple, kwargs: dict[str, Any], signature: Signature) -> Any:
        """The trace that JAX holds for these arguments; None, and no trace is made, if none."""

        def refuse(*_: Any, **__: Any) -> Any:
            raise _NotHeldError

        try:
            with _Entered(Frame(self, refuse, signature)):
                return self.jitted.trace(*args, **kwargs)
        except _NotHeldError:
            return None

    def _closes_over_large(self, traced: Any) -> bool:
        arrays, _ = _jax.closed_over_by(traced)
        is_so = any(map(_is_large, arrays)) and not _jax.has_input_effects(traced.jaxpr)
        self.has_large = self.has_large or is_so
        return is_so

    def _call_lifted(self, traced: Any, leaves: list[Any]) -> Any:
        """The call with constants as operands."""
        jaxpr = traced.jaxpr
        # By the object: JAX's later caches need the very same jaxpr for every call site.
        _, lifted = self._lifted.setdefault(id(jaxpr), (jaxpr, _jax.constants_as_operands(jaxpr)))
        return jax.tree.unflatten(traced.out_tree, _jax.call_traced(traced, lifted, leaves))

    def _check(self, traced: Any, frame: Frame, known_tracers: Sequence[Any]) -> None:
        """Makes sure that no trace is used again that closed over an unknown tracer."""
        _, tracers = _jax.closed_over_by(traced)
        known = set(map(id, known_tracers))
        if all(id(tracer) in known for tracer in tracers):
            self.checked.add(frame.signature)  # type: ignore[arg-type]
        else:
            self.poisoned, self.simple = True, False
            self._counters.always_retraced = _HIDDEN


class _Entered:
    """Hands a frame to the body of its core while JAX may trace it."""

    __slots__ = ("_before", "_frame")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __enter__(self) -> None:
        self._before, _running.frame = _running.frame, self._frame

    def __exit__(self, *_: object) -> None:
        _running.frame = self._before


# --- which functions have one core --------------------------------------------------------


class Registry:
    """The cores and counters of this process, the most recently used of them.

    A wrapper holds the core that it used last, so one that is forgotten here is only lost to
    functions that are yet to be made. Locks are never held while user code is traced.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._cores: collections.OrderedDict[Hashable, Core] = collections.OrderedDict()
        self._counters: collections.OrderedDict[Hashable, Counters] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._cores)

    def core(self, key: Hashable, make: Callable[[], Core]) -> Core:
        """The core of a key, made if there is none."""
        with self._lock:
            found = self._cores.get(key)
            if found is None:
                found = self._cores[key] = make()
            self._cores.move_to_end(key)
            _drop_oldest(self._cores)
            return found

    def known(self, key: Hashable) -> Core | None:
        """The core of a key, if there is one."""
        return self._cores.get(key)

    def counters(self, code: Hashable, name: str) -> Counters:
        """The counters of all functions with one code."""
        with self._lock:
            found = self._counters.get(code)
            if found is None:
                found = self._counters[code] = Counters(name)
            self._counters.move_to_end(code)
            _drop_oldest(self._counters)
            return found

    def all_counters(self) -> list[tuple[Hashable, Counters]]:
        """Code and counters of all functions, the least recently decorated first."""
        with self._lock:
            return list(self._counters.items())

    def forget(self, of_code: Hashable = None, *, core: Core | None = None) -> list[Core]:
        """Removes a core, or all cores of functions with one code, and returns them."""
        with self._lock:
            keys = [key for key, found in self._cores.items() if found is core or key[1] == of_code]  # type: ignore[index]
            return [self._cores.pop(key) for key in keys]


def _drop_oldest(entries: collections.OrderedDict[Hashable, Any]) -> None:
    while len(entries) > MAX_CORES:
        entries.popitem(last=False)


registry = Registry()


def _is_array_result(leaf: Any) -> bool:
    """Whether JAX carries this result, rather than Python."""
    if isinstance(leaf, jax.Array):
        return True
    return not isinstance(
        leaf, (bool, int, float, complex, np.ndarray, np.generic)
    ) and is_traceable(leaf)


def _is_large(array: Any) -> bool:
    return getattr(array, "nbytes", 0) >= LARGE_CONSTANT_BYTES
