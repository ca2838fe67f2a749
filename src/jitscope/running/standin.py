"""What ``jax.jit`` returns while jitscope is installed.

A *stand-in* holds two functions: the plain one, made by ``jax.jit`` itself, and a *core*,
which structures (or observes) and is made when it is first needed. Which of them a call
goes to is decided call by call, so that a stand-in that outlives the installation, in a
cache of some library, is a plain ``jax.jit`` function again.

JAX compiles once for a function and its options, however many ``jax.jit(f)`` are made of
it. Cores are therefore kept per function and options, for as long as the function lives.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from .. import _jax
from ..ir.program import Program
from ..outermost.jit import OutermostJit, _active
from ..phases import Phases, claim_phases
from ..reuse import records
from ..reuse.reuse import Reuse
from ..settings import is_disabled, strict
from ..structuring.policy import PolicyLike


class Installation:
    """Options of one installation, and the cores made under it.

    Attributes:
      policy: callable from ``Census`` to ``Plan``.
      observe: only look; compile as ``jax.jit`` does.
    """

    def __init__(self, policy: PolicyLike, observe: bool) -> None:
        self.policy = policy
        self.observe = observe
        self._cores: weakref.WeakKeyDictionary[Any, dict[Any, OutermostJit]]
        self._cores = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def core(self, plain: Any, options: Mapping[str, Any]) -> OutermostJit:
        """The core for what ``jax.jit(fun, **options)`` returned."""
        leaves, tree = jax.tree.flatten(dict(options))
        try:
            with self._lock:
                cores = self._cores.setdefault(plain.__wrapped__, {})
                key = (tuple(leaves), tree)
                if key not in cores or not cores[key]._fun.is_alive:
                    cores[key] = self._new_core(plain, options)
                return cores[key]
        except TypeError:  # not hashable: jax.jit, too, would compile anew
            return self._new_core(plain, options)

    def _new_core(self, plain: Any, options: Mapping[str, Any]) -> OutermostJit:
        kind = _Observer if self.observe else OutermostJit
        return kind(_Weakly(plain), self.policy, dict(options))


class _Weakly:
    """Calls a function without keeping it alive, under the names ``jax.jit`` gave it."""

    def __init__(self, plain: Any) -> None:
        self._reference = weakref.ref(plain.__wrapped__)
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(plain, name):
                setattr(self, name, getattr(plain, name))

    @property
    def is_alive(self) -> bool:
        """Whether the function still exists."""
        return self._reference() is not None

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function; whoever calls a core holds it."""
        fun = self._reference()
        assert fun is not None
        return fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


class InstalledPjitFunction(OutermostJit):
    """Passes for a ``jax.jit`` function and acts as ``outermost_jit``.

    The name ends as that of JAX's class does, because libraries look for it in ``type(f)``
    to say that a function was jitted too early.
    """

    current: Installation | None = None
    """The installation that holds now, or None."""

    def __init__(self, plain: Any, options: Mapping[str, Any]) -> None:
        # Attributes and names that jax.jit copies from the function, __wrapped__ included.
        self.__dict__.update(plain.__dict__)
        self._fun = plain.__wrapped__
        self._options = dict(options)
        self._plain = plain
        self._installation: Installation | None = None
        self._core: OutermostJit | None = None
        self._jitted = plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._chosen(*args, **kwargs)
        if _thread.noticed is not None:
            _look(self._core, args, kwargs)
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # As a jax.jit function: `obj.method.lower` takes the instance as its first argument.
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self._plain)

    @property
    def _chosen(self) -> Any:
        installation = InstalledPjitFunction.current
        if installation is None or _active.depth or is_disabled():
            return self._plain
        if not (installation.observe or _jax.at_top_level()):
            return self._plain  # as `OutermostJit._chosen`; looking harms no rule of others
        if installation is not self._installation:
            self._core = installation.core(self._plain, self._options)
            # Equal functions share a core, which holds neither of them.
            self._held = self._core._fun.__wrapped__
            self._jitted, self._installation = self._core._jitted, installation
        return self._jitted

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).lower``."""
        return self._looking(self._chosen.lower, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).trace``."""
        return self._looking(self._chosen.trace, args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).eval_shape``."""
        return self._looking(self._chosen.eval_shape, args, kwargs)

    def _looking(self, method: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        result = method(*args, **kwargs)
        if _thread.noticed is not None:
            _look(self._core, args, kwargs)
        return result

    def _cache_size(self) -> int:
        return self._chosen._cache_size()

    def _clear_cache(self) -> None:
        self.clear_cache()

    def reuse(self) -> Reuse:
        """What repeats in the latest program of the function under this installation.

        Raises:
          RuntimeError: nothing has been traced yet.
        """
        if self._core is None:
            self._latest = None
        else:
            self._latest = self._core._latest
            self._why_no_program = self._core._why_no_program
        return super().reuse()


# --- observing ---------------------------------------------------------------------------


class _Thread(threading.local):
    """What the cores of one thread have noticed.

    Attributes:
      depth: how many observed functions are being traced.
      noticed: the core that was traced last and has not been looked at, with its seconds.
      looking: whether a trace under way would be a second one.
    """

    depth = 0
    noticed: tuple[OutermostJit, Phases] | None = None
    looking = False


_thread = _Thread()


class _TracedAgainError(Exception):
    """JAX does not remember the trace; a second one would repeat its side effects."""


class _Observer(OutermostJit):
    """Compiles as ``jax.jit`` does and notices when that traces.

    The program is looked at after the call, when JAX hands out the trace it remembers: the
    function itself runs no more often than it would.
    """

    _is_applied = False

    def _structured(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fun)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if _thread.looking:
                raise _TracedAgainError(
                    "JAX no longer holds the trace of this call, so it could not be looked at"
                )
            if _thread.depth or jax.config.jax_disable_jit:
                return fun(*args, **kwargs)
            phases = claim_phases(self.__name__)
            with _noticing():
                result = fun(*args, **kwargs)
            _thread.noticed = (self, phases)
            return result

        return observed


@contextmanager
def _noticing() -> Iterator[None]:
    """While this holds, observed functions are part of the program being traced."""
    _thread.depth += 1
    try:
        yield
    finally:
        _thread.depth -= 1


def _look(core: OutermostJit | None, args: tuple, kwargs: dict) -> None:
    """Counts and plans the program just traced, and changes nothing."""
    noticed, _thread.noticed = _thread.noticed, None
    if noticed is None or noticed[0] is not core or _thread.depth:
        return
    observer, phases = noticed
    try:
        program = _remembered(observer, args, kwargs)
        observer._pipeline(program, phases)
    except Exception as error:
        if strict() and not isinstance(error, _TracedAgainError):
            raise
        records.note_failure(observer.__name__, error)


def _remembered(observer: OutermostJit, args: tuple, kwargs: dict) -> Program:
    _thread.looking = True
    try:
        traced = observer._jitted.trace(*args, **kwargs)
    finally:
        _thread.looking = False
    return Program(observer.__name__, traced.jaxpr, traced.out_tree)
