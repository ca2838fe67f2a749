"""Digests of Python values that are the same in every process.

Parameters of equations are of many types. Those that mean the same everywhere (numbers,
types, meshes, arrays by content) are digested by what they mean, all others by the object
itself; a digest with such a one is *local*.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _jax

_DIGEST_BYTES = 16
TRUSTED_REPR = ("jax.", "jaxlib.", "numpy.", "ml_dtypes.")
"""Modules whose objects have a repr that says all, and no address."""

lock = threading.RLock()
"""For all that is remembered about fingerprints. One, and entered again at will: a finalizer that
runs while it is held may trace."""

_local_objects: dict[int, tuple[Any, int]] = {}
_local_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Identity of a body.

    Attributes:
      digest: hexadecimal, 32 characters.
      local_because: empty, or the first parameter that has no stable value, in which case
        the digest holds in this process only.
    """

    digest: str
    local_because: str = ""

    @property
    def is_local(self) -> bool:
        return bool(self.local_because)

    def __str__(self) -> str:
        return self.digest[:12]


class Digest:
    """A digest of values, under way, that also remembers why it is only local.

    Args:
      of_jaxpr: the fingerprint of a jaxpr among the values.
    """

    def __init__(self, of_jaxpr: Callable[[Any], Fingerprint]) -> None:
        self._of_jaxpr = of_jaxpr
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.local_because = ""

    def add(self, text: str) -> None:
        data = text.encode()
        self._hash.update(len(data).to_bytes(4, "little") + data)

    def add_local(self, value: Any, why: str) -> None:
        self.add(f"local {_local_number(value)}")
        self.local_because = self.local_because or why

    def include(self, other: Fingerprint) -> None:
        self.add(other.digest)
        self.local_because = self.local_because or other.local_because

    def result(self) -> Fingerprint:
        return Fingerprint(self._hash.hexdigest(), self.local_because)

    def add_value(self, value: Any, what: str) -> None:
        """Adds one parameter value; ``what`` names it should it have no stable form."""
        if _jax.is_jaxpr(value):
            self.include(self._of_jaxpr(value))
        elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            self.add(f"{type(value).__name__} {value!r}")
        elif isinstance(value, enum.Enum):
            self._add_type(type(value), what)
            self.add(value.name)
        elif _jax.prng_name(value):  # a tuple of functions
            self.add(f"random numbers by {_jax.prng_name(value)}")
        elif isinstance(value, (tuple, list)):
            self.add(f"{type(value).__name__} {len(value)}")
            for item in value:
                self.add_value(item, what)
        elif isinstance(value, (dict, set, frozenset)):
            self._add_unordered(value, what)
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
            self.add_array(value, what)
        elif isinstance(value, np.dtype):
            self.add(f"dtype {value!r}")
        elif isinstance(value, type):
            self._add_type(value, what)
        elif isinstance(value, (jax.sharding.Mesh, jax.sharding.NamedSharding)):
            self._add_devices(value)
        elif dataclasses.is_dataclass(value):
            self._add_type(type(value), what)
            for field in dataclasses.fields(value):
                self.add_value(getattr(value, field.name), what)
        else:
            self._add_object(value, what)

    def _add_unordered(self, value: Any, what: str) -> None:
        items: Iterable[Any] = value.items() if isinstance(value, dict) else value
        self.add(f"{type(value).__name__} {len(value)}")
        for item in sorted(items, key=repr):
            self.add_value(item, what)

    def _add_type(self, kind: type, what: str) -> None:
        self.add(f"{kind.__module__}.{kind.__qualname__}")
        if "<locals>" in kind.__qualname__:  # every run of the function around it makes another
            self.add_local(kind, f"{what} is of {kind.__qualname__}, a type local to a function")

    def _add_devices(self, value: Any) -> None:
        """A mesh or what is sharded over one. Their repr leaves out the order of the devices."""
        self.add(f"{type(value).__qualname__} {value!r}")
        mesh = getattr(value, "mesh", value)
        if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
            self.add(str([device.id for device in mesh.devices.flat]))

    def _add_object(self, value: Any, what: str) -> None:
        text = repr(value)
        module = f"{type(value).__module__}."
        if not callable(value) and " at 0x" not in text and module.startswith(TRUSTED_REPR):
            self.add(f"{type(value).__qualname__} {text}")
        else:
            self.add_local(
                value, f"{what} is of type {type(value).__name__}, which has no stable value"
            )

    def add_array(self, value: Any, what: str) -> None:
        if isinstance(value, jax.Array) and not (
            value.is_fully_addressable and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
        ):
            self.add_local(value, f"{what} holds an array that this process cannot read")
            return
        array = np.asarray(value)
        if array.dtype.hasobject:
            self.add_local(value, f"{what} holds an array of Python objects")
            return
        self.add(f"array {array.dtype} {array.shape}")
        # As bytes: not every type of elements (bfloat16, int4) has a buffer of its own.
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.nbytes else b""
        self.add(hashlib.blake2b(data).hexdigest())


def _local_number(value: Any) -> int:
    """A number for an object, by identity, that no other object ever has."""
    key = id(value)
    with lock:
        found = _local_objects.get(key)
        if found is None or found[0]() is not value:
            try:
                reference: Any = weakref.ref(value)
            except TypeError:  # kept, so that its id is not used again
                reference = functools.partial(_identity, value)
            found = _local_objects[key] = (reference, next(_local_numbers))
        return found[1]


def _identity(value: Any) -> Any:
    return value
