"""What is refused as a policy, or as a setting of one, with what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_policy(policy: Any) -> None:
    """Refuses what is no policy.

    Raises:
      TypeError: `policy` is not callable, or a class.
    """
    if isinstance(policy, type):
        raise TypeError(
            f"policy must be an object, got the class {policy.__name__}. "
            f"Did you mean {policy.__name__}()?"
        )
    if not callable(policy):
        raise TypeError(
            "policy must be callable from Census to Plan, such as jitscope.Policy(min_uses=2), "
            f"got {policy!r}. To decide for one body, decorate its function with "
            "jitscope.shared_subroutine(structure='shared')."
        )


def check_settings(
    names: Sequence[str], nameless: Sequence[Any], settings: Mapping[str, Any]
) -> None:
    """Refuses arguments of ``Policy()`` that are none of its settings.

    Args:
      names: of all settings.
      nameless: positional arguments.
      settings: keyword arguments.

    Raises:
      TypeError: there are positional arguments, or unknown names.
    """
    if nameless:
        raise TypeError(
            f"Policy() takes its settings by name, got {nameless[0]!r} without one. Write, for "
            "example, Policy(min_uses=4); help(jitscope.Policy) says what each does."
        )
    if unknown := sorted(settings.keys() - set(names)):
        raise TypeError(
            f"Policy() got unknown setting(s) {', '.join(unknown)}. It takes "
            f"{', '.join(names)}; help(jitscope.Policy) says what each does."
        )


def check_value(setting: str, value: Any, *, is_switch: bool = False) -> None:
    """Refuses what a setting cannot be.

    Args:
      setting: as it is written.
      value: given for it.
      is_switch: whether it is on or off, else a positive whole number.

    Raises:
      ValueError: it is something else.
    """
    if is_switch:
        if not isinstance(value, bool):
            raise ValueError(f"{setting} must be True or False, got {value!r}.")
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{setting} must be a positive whole number, got {value!r}.")


def check_decisions(decisions: Any, kind: type) -> None:
    """Refuses what is no mapping from digests to decisions.

    Args:
      decisions: of a ``Plan``.
      kind: the class of a decision.

    Raises:
      TypeError: it is something else.
    """
    wrong = "" if isinstance(decisions, Mapping) else repr(decisions)
    for digest, decision in () if wrong else decisions.items():
        if not isinstance(digest, str) or not isinstance(decision, kind):
            wrong = f"{decision!r} for {digest!r}"
    if wrong:
        raise TypeError(
            f"Plan() takes a mapping from digests to decisions, got {wrong}. Write, in a policy, "
            "Plan({body.fingerprint.digest: Decision(Structure.SHARED, 'why') for body in "
            "census.bodies})."
        )
