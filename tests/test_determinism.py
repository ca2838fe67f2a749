"""One program is one module, in every process: the persistent compilation cache depends on it.

Run as a script, this file lowers or compiles programs of the catalogue and prints what it found.
"""

from __future__ import annotations

import hashlib
import json
import sys

import jax
import pytest
from helpers import build_annotated, run_python, share_all_policy
from programs import PROGRAMS

import jitscope

NAMES = [
    "transformer",
    "nested_subroutines",
    "dict_params",
    "custom_vjp_outside",
    "leaves_jax_cannot_trace",
    "static_index_used",
    "dropout_with_keys",
    "large_constant",
    "recursion",
    "pure_callback_in_body",
]
DIFFERENTIATED = ["residual_mlp", "mixture_of_experts", "cond_in_body"]


def lowered(name: str, *, differentiated: bool = False):
    f, args = build_annotated(PROGRAMS[name])
    if differentiated:
        g = f
        f = jax.grad(lambda *args: sum(leaf.sum() for leaf in jax.tree.leaves(g(*args))))
    return jitscope.outermost_jit(f, policy=share_all_policy()).lower(*args)


def modules(names: list[str]) -> dict[str, str]:
    """Digest of the StableHLO of programs, lowered in the given order."""
    found = {}
    for name in names:
        text = lowered(name, differentiated=name in DIFFERENTIATED).as_text()
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def compile_and_count(names: list[str]) -> dict[str, int]:
    """How often the persistent cache was hit and missed while compiling programs."""
    counts = {"cache_hits": 0, "cache_misses": 0}

    def listen(event: str, **_: object) -> None:
        kind = event.rpartition("/")[2]
        if kind in counts:
            counts[kind] += 1

    lowerings = [lowered(name, differentiated=name in DIFFERENTIATED) for name in names]
    jax.monitoring.register_event_listener(listen)
    for low in lowerings:
        low.compile()
    return counts


def in_process(seed: int, action: str, names: list[str], **environment: str) -> dict[str, object]:
    out = run_python([__file__, action, *names], {"PYTHONHASHSEED": str(seed), **environment})
    return json.loads(out.splitlines()[-1])


def test_processes_lower_to_the_same_module():
    names = [*NAMES, *DIFFERENTIATED]
    first = in_process(1, "modules", names)
    # The history of a process is no part of a module either.
    second = in_process(2, "modules", names[::-1])
    assert [name for name in names if first[name] != second[name]] == []
    assert len(set(first.values())) == len(names)


@pytest.mark.parametrize("name", NAMES)
def test_lowering_twice_gives_the_same_module(name):
    assert lowered(name).as_text() == lowered(name).as_text()


def test_second_process_finds_its_programs_in_the_persistent_cache(tmp_path):
    names = ["dict_params", *DIFFERENTIATED]
    environment = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def cached():
        return {path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")}

    first = in_process(1, "compile", names, **environment)
    after_first = cached()
    second = in_process(2, "compile", names, **environment)
    assert first == {"cache_hits": 0, "cache_misses": len(names)}
    assert second == {"cache_hits": len(names), "cache_misses": 0}
    assert after_first
    assert cached() == after_first


def main(action: str, *names: str) -> None:
    act = {"modules": modules, "compile": compile_and_count}[action]
    print(json.dumps(act(list(names))))


if __name__ == "__main__":
    main(*sys.argv[1:])
