"""What the user wrote: names of functions, source lines and name scopes of equations."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax._src import source_info_util as _source_info, traceback_util as _traceback_util
from jax._src.util import fun_name as function_name
from jax.extend import source_info_util
from jax.extend.core import JaxprEqn

from ..settings import PACKAGE
from .jaxprs import AnyJaxpr, equations, opened, sub_jaxprs

# As for JAX's own files: lowered programs and filtered tracebacks name the user's lines only.
source_info_util.register_exclusion(PACKAGE)
_traceback_util.register_exclusion(PACKAGE)
# A program started by `python -m jitscope run` names the source lines that it has without.
source_info_util.register_exclusion("<frozen runpy>")


F = TypeVar("F", bound=Callable[..., Any])


def wraps(fun: Callable[..., Any]) -> Callable[[F], F]:
    """``functools.wraps`` that names partials and callable objects too, as ``jax.jit`` does."""

    def wrapped(wrapper: F) -> F:
        functools.update_wrapper(wrapper, fun)
        wrapper.__name__ = function_name(fun)
        return wrapper

    return wrapped


def source_line(eqn: JaxprEqn) -> str:
    """``file:line (function)`` of the user's code behind an equation.

    The innermost line that is no installed package's; of those if there is no other, and empty if
    JAX knows none.
    """
    innermost = None
    for frame in _source_info.user_frames(eqn.source_info.traceback):
        innermost = innermost or frame
        if not _IN_A_PACKAGE.search(frame.file_name):
            return _line(frame)
    return _line(innermost) if innermost else ""


def source_line_of_call(eqn: JaxprEqn) -> str:
    """As `source_line`; where JAX knows none of the call, the first line within what it calls.

    ``jax.checkpoint`` drops the lines of calls, and keeps those of the equations in them.
    """
    inner = (within for body in sub_jaxprs(eqn) for within in equations(body))
    return source_line(eqn) or next(filter(None, map(source_line, inner)), "")


_IN_A_PACKAGE = re.compile(r"[/\\](site|dist)-packages[/\\]")


def _line(frame: Any) -> str:
    column = f":{frame.start_column}" if frame.start_column else ""
    return f"{frame.file_name}:{frame.start_line}{column} ({frame.function_name})"


def current_source_line() -> str:
    """``file:line (function)`` of the user's code that runs now."""
    return source_info_util.summarize(source_info_util.current())


def stacklevel_of_user() -> int:
    """The ``stacklevel`` with which a warning of the caller points at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    return level


_NOT_THE_USERS = (
    PACKAGE,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    contextlib.__file__,  # JAX decorates functions with context managers
)


def user_functions(eqn: JaxprEqn) -> list[str]:
    """Qualified names of the user's functions around an equation, outermost first."""
    frames = _source_info.user_frames(eqn.source_info.traceback)
    return [frame.function_name for frame in frames][::-1]


def user_stack(traceback: Any) -> tuple[str, ...]:
    """``file:line (function)`` of the user's functions in a traceback of JAX, outermost first."""
    frames = _source_info.user_frames(traceback)
    return tuple(
        f"{frame.file_name}:{frame.start_line} ({frame.function_name})" for frame in frames
    )[::-1]


def is_function_of_jax(jaxpr: AnyJaxpr) -> bool:
    """Whether what was traced is a function of JAX itself, such as the ``_where`` of ``jnp.where``.

    By where the function is defined, which JAX keeps for its messages.
    """
    return _AT_JAX in (opened(jaxpr).debug_info.func_src_info or "")


_AT_JAX = f" at {os.path.dirname(os.path.abspath(jax.__file__))}{os.sep}"


def is_transposed(eqn: JaxprEqn) -> bool:
    """Whether an equation belongs to the backward pass of a gradient."""
    return "transpose(" in str(eqn.source_info.name_stack)


def within_call(inner: JaxprEqn, call: JaxprEqn) -> Any:
    """Source information of ``inner`` after it was spliced in place of ``call``."""
    stack = call.source_info.name_stack.extend(f"jit({call.params['name']})")
    return inner.source_info.replace(name_stack=stack + inner.source_info.name_stack)


def without_name_scope(eqn: JaxprEqn) -> JaxprEqn:
    """For a call whose body's equations carry all of their name scope themselves."""
    info = eqn.source_info.replace(name_stack=source_info_util.new_name_stack())
    return eqn.replace(source_info=info)
