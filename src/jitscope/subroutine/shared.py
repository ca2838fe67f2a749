"""A call of a shared subroutine, from its arguments to its core.

Each call under a trace is one nested ``jit`` equation, which an enclosing `outermost_jit`
counts and structures; every transformation is JAX's own. A call binds the arguments,
wraps what JAX cannot carry, and finds the core for what the function captured.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..names import SubroutineName
from ..settings import is_disabled
from ..trail import current_trail
from .captures import captures_of, code_of, globals_of
from .cores import CAPTURED_TRACER, CannotShare, Core, Frame, registry
from .counters import Counters, Signature, SubroutineStats
from .functions import name_of, source_of
from .keys import ByIdentity, Keys
from .signature import Binder
from .static import array_types, is_leaf, unwrapped

_context, _NO_TRACE = _jax.TRACE_CONTEXT, _jax.NO_TRACE
_FIXED = (int, float, bool, complex, str, bytes, type(None))  # compared by `is` on dispatch
_MAX_TRACED_CORES = 4


class _Last(NamedTuple):
    """The core of the last call, and what the closure cells held then; empty if that may change.

    One object, since another thread may read it at any time.
    """

    key: Hashable
    core: Core
    contents: tuple


class SharedSubroutine:
    """What `shared_subroutine` returns; see there, and there for what it refuses."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        name: str | None = None,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
        structure: str | None = None,
    ) -> None:
        self._prefix: tuple = ()
        self._is_method = False
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun = self._as_function(fun)
        source = source_of(fun)
        self.__name__ = name or name_of(self.__wrapped__)
        self._name = SubroutineName(self.__name__, structure, source)
        if self._prefix and static_argnums is not None:
            nums = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
            static_argnums = [num + 1 if num >= 0 else num for num in nums]
        self._binder = Binder(
            fun, name=self.__name__, static_argnums=static_argnums, static_argnames=static_argnames
        )
        self._code = code_of(fun)
        self._globals = globals_of(fun)
        self._counters = registry.counters(self._code, self.__name__)
        self._counters.decorated()
        self._traced_cores: collections.OrderedDict[Hashable, Core] = collections.OrderedDict()
        self._last: _Last | None = None
        self._direct: Core | None = None
        self._captures_nothing = (
            isinstance(fun, types.FunctionType) and not fun.__closure__ and not fun.__dict__
        )
        self._captures = (
            (lambda keys: {}) if self._captures_nothing else (lambda keys: captures_of(fun, keys))
        )
        has_cells = isinstance(fun, types.FunctionType) and fun.__closure__ and not fun.__dict__
        self._cells = fun.__closure__ if has_cells else None
        is_plain = (self._captures_nothing or has_cells) and not self._prefix
        self._n_plain = self._binder.n_plain if is_plain else -1

    def _as_function(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """The function to call, with a bound instance as its first argument."""
        if inspect.ismethod(fun) and isinstance(fun.__func__, types.FunctionType):
            self._prefix, self._is_method = (fun.__self__,), True
            return fun.__func__
        if not is_leaf(fun) and isinstance(type(fun).__call__, types.FunctionType):
            self._prefix, self._is_method = (fun,), True
            return type(fun).__call__
        return fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, compiled outside a trace and as a nested ``jit`` under one."""
        # This much is on every dispatch of a compiled call: about 1 us for five arrays.
        if (
            len(args) == self._n_plain
            and not kwargs
            and _context.trace is _NO_TRACE
            and not is_disabled()
            and (
                array_types.issuperset(map(type, args))
                or array_types.issuperset(map(type, jax.tree.leaves(args)))
            )
        ):
            core = self._direct or self._current_core()
            if core is not None and core.simple:
                try:
                    out = core.jitted(*args)
                except CannotShare:
                    return self._call(args, kwargs)
                return out if core.simple else unwrapped(out)
        return self._call(args, kwargs)

    def _current_core(self) -> Core | None:
        """The core of the last call, if what is captured now is plainly the same."""
        last = self._last
        if last is None:
            return None
        try:
            for cell, value in zip(self._cells or (), last.contents, strict=True):
                if cell.cell_contents is not value:
                    return None
        except ValueError:  # an empty cell, or no contents that can be compared this way
            return None
        return last.core

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        args = (*self._prefix, *args)
        bound = None
        if not is_disabled() and not jax.config.jax_disable_jit:
            bound = self._binder.bind(args, kwargs)
        if bound is None:  # also where arguments do not fit: Python says best which
            return self._fun(*args, **kwargs)
        keys = Keys(captured=True)
        bound = self._binder.wrap(*bound, keys, is_method=self._is_method)
        core = self._core(keys)
        try:
            if not core.plain_reason:
                return self._call_core(core, *bound, keys)
        except CannotShare as e:
            core.plain_reason, core.simple = str(e), False
        except Exception as e:
            self._counters.failed()
            if isinstance(e, (TypeError, IndexError)):
                self._explain(e, *bound)
            raise
        self._counters.plain(core.plain_reason)
        trail = current_trail()
        if trail is not None:
            trail.plain.setdefault(self._name, core.plain_reason)
        return self._fun(*args, **kwargs)

    def _call_core(self, core: Core, args: tuple, kwargs: dict[str, Any], keys: Keys) -> Any:
        if _jax.at_top_level():
            frame = Frame(core, self._fun, None)
            out = core.call(args, kwargs, frame)
        else:
            signature, leaves = core.signature(args, kwargs)
            frame = Frame(core, self._fun, signature)
            out = core.call_under_trace(args, kwargs, leaves, frame, keys.tracers)
            trail = current_trail()
            if trail is not None:
                traced = core.jitted.trace(*args, **kwargs)
                trail.note(self._name, signature, traced, self._held(core, args, kwargs, signature))
                return out if core.simple else unwrapped(out)
            self._counters.called(signature, traced=frame.traced)
        if core.poisoned:
            self._last = self._direct = None
            self._traced_cores.clear()
            registry.forget(core=core)
        elif frame.traced and core.captures:
            self._take_own_writes(core, keys)
        return out if core.simple else unwrapped(out)

    def _held(self, fresh: Core, args: tuple, kwargs: dict[str, Any], signature: Signature) -> Any:
        """The trace that this call would use if no trail were kept, or None."""
        key = self._key(dict(fresh.captures))
        last = self._last
        core = last.core if last is not None and last.key == key else registry.known(key)
        return core and core.held(args, kwargs, signature)

    def _take_own_writes(self, core: Core, keys: Keys) -> None:
        """Lets a function that wrote to what it captured while it was traced find its trace.

        Writes of the traced function are side effects, which happen once per signature; an
        appended log entry must not make the next call trace again.
        """
        now, contents = Keys(captured=True), self._fixed_contents()
        key = self._key(self._captures(now))
        if not now.tracers and not keys.tracers:
            self._remember(key, registry.core(key, lambda: core), contents)

    def _key(self, captures: dict[str, Hashable]) -> Hashable:
        return (
            (self._name, self._name.structure),
            self._code,
            self._globals,
            tuple(captures.items()),
        )

    def _fixed_contents(self) -> tuple:
        """What the closure cells hold, if it is equal later whenever it is the same."""
        try:
            contents = tuple(cell.cell_contents for cell in self._cells or ())
        except ValueError:  # an empty cell
            return ()
        fixed = all(type(c) in _FIXED or type(c) in array_types for c in contents)
        return contents if fixed else ()

    def _remember(self, key: Hashable, core: Core, contents: tuple) -> None:
        """Keeps the core of the last call, given what the cells held before the key was made."""
        # Another thread may have written to them since.
        now = self._fixed_contents()
        same = len(now) == len(contents) and all(map(operator.is_, now, contents))
        self._last = _Last(key, core, contents if same else ())
        self._direct = core if self._captures_nothing else None

    def _core(self, keys: Keys) -> Core:
        """The core for what the function captures now."""
        contents = self._fixed_contents()
        captures = self._captures(keys)
        if current_trail() is not None:  # each call is to be traced, and none to be counted
            self._counters.asked_about()
            return Core(self._name, self._fun, self._binder, captures, Counters(self.__name__))
        key = self._key(captures)
        make = functools.partial(
            Core, self._name, self._fun, self._binder, captures, self._counters
        )
        if keys.tracers:
            return self._traced_core(
                (key, *(ByIdentity(t, strong=True) for t in keys.tracers)),
                functools.partial(make, CAPTURED_TRACER),
            )
        last = self._last
        if last is not None and last.key == key:
            return last.core
        core = registry.core(key, make)
        self._remember(key, core, contents)
        return core

    def _traced_core(self, key: Hashable, make: Callable[[], Core]) -> Core:
        """The core of a function that captured tracers: of use for as long as they are."""
        found = self._traced_cores.get(key)
        if found is None:
            found = make()
            if not jax.config.jax_check_tracer_leaks:
                self._traced_cores[key] = found
            while len(self._traced_cores) > _MAX_TRACED_CORES:
                self._traced_cores.popitem(last=False)
        return found

    def _explain(self, error: Exception, args: tuple, kwargs: dict[str, Any]) -> None:
        """Adds to JAX's message which Python numbers were traced, if one may be to blame."""
        text = str(error)
        if not ("racer" in text or "oncrete" in text) or hasattr(error, "_jitscope_explained"):
            return
        numbers = [
            (label, jax.tree_util.keystr(path), leaf)
            for label, value in self._binder.labelled(args, kwargs)
            for path, leaf in jax.tree_util.tree_leaves_with_path(value)
            if type(leaf) in (bool, int, float, complex)
        ]
        if numbers:
            shown = [f"{label}{path}={value!r}" for label, path, value in numbers]
            more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            names = ", ".join(dict.fromkeys(repr(label) for label, path, _ in numbers if not path))
            cures = [f"declare it static: shared_subroutine(static_argnames=({names},))"] * bool(
                names
            )
            if any(path for _, path, _ in numbers):
                cures.append(
                    "of a field of a module make static data (eqx.field(static=True) in Equinox, "
                    "jax.tree_util.register_dataclass(meta_fields=...)), and of an entry of a "
                    "container an argument of its own"
                )
            error.add_note(
                f"jitscope: the shared subroutine {self.__name__!r} was called with "
                f"{', '.join(shown[:_SHOWN])}{more}. "
                "Python numbers are traced, so Python code cannot branch on them or use them as "
                f"a shape, an axis or a loop bound. If that is what failed, {'; '.join(cures)}."
            )
            error._jitscope_explained = True  # type: ignore[attr-defined]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds like a function, if it wraps one."""
        if instance is None or not hasattr(type(self._fun), "__get__") or self._prefix:
            return self
        self._is_method = True
        return types.MethodType(self, instance)

    def __reduce__(self) -> str:
        """Pickles and copies as a function does: by where it is found."""
        return self.__qualname__

    def __jitscope_parts__(self) -> tuple:
        """What another shared subroutine must equal to be the same captured value."""
        return (str(self._name), self._name.structure, self._prefix, self._fun)

    def __getattr__(self, name: str) -> Any:
        hints = {
            "reuse": ". What was done about it tells reuse() of the outermost_jit function around",
            "lower": ". To lower it on its own: jax.jit(layer).lower(...)",
        }
        raise AttributeError(
            f"a shared subroutine has no attribute {name!r}: it has stats() and "
            f"clear_cache(){hints.get(name, '')}."
        )

    def stats(self) -> SubroutineStats:
        """How often it was called under a trace, traced and reused, and why it was traced."""
        return self._counters.record(self.__name__)

    def clear_cache(self) -> None:
        """Forgets all traces and compiled code of functions with this code."""
        # The last one may be known to this wrapper alone, once it was forgotten before.
        last = [self._last.core] if self._last else []
        for core in [*registry.forget(self._code), *self._traced_cores.values(), *last]:
            core.clear()
        self._traced_cores.clear()

    def __repr__(self) -> str:
        return f"<shared subroutine {self.__name__} ({self._name.source})>"


_SHOWN = 5  # numbers that a message names
