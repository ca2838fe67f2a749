"""The name of a subroutine, which carries what its user asked for.

JAX's transformation rules pass the ``name`` parameter of a nested ``jit`` through
unchanged, so a name that is a ``str`` with attributes reaches the captured program under
``grad``, ``vmap`` and the rest, where nothing else of the decorator does.
"""

from __future__ import annotations

from typing import Self


class SubroutineName(str):
    """Name of a shared subroutine.

    Attributes:
      structure: the structure its user asked for, or None to leave it to the policy.
      source: ``file:line`` where the subroutine is defined.
    """

    __slots__ = ("source", "structure")

    structure: str | None
    source: str

    def __new__(cls, name: str, structure: str | None = None, source: str = "") -> Self:
        self = super().__new__(cls, name)
        self.structure = structure
        self.source = source
        return self


class OutlinedName(SubroutineName):
    """Name of a body that was found in a program rather than marked by its user.

    Attributes:
      function: name of the user's function around it.
      is_backward: it is of the backward pass of a gradient. The name says so too, for profiles.
    """

    __slots__ = ("function", "is_backward")

    function: str
    is_backward: bool

    def __new__(cls, function: str, source: str = "", *, is_backward: bool = False) -> Self:
        name = f"{function}_gradient" if is_backward else function
        self = super().__new__(cls, name, None, source)
        self.function, self.is_backward = function, is_backward
        return self


def is_outlined(name: str) -> bool:
    """Whether a call site is one that outlining made."""
    return isinstance(name, OutlinedName)


def structure_of(name: str) -> str | None:
    """The structure that a call site's name asks for, if any."""
    return getattr(name, "structure", None)
