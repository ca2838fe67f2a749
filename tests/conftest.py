"""Settings every test runs under, and a guard against tests that change them for the others."""

import os

# Before JAX is imported: it reads these once. Eight virtual devices let sharding tests run
# anywhere; a program for one device is compiled as on a machine that has only one. At level 0 the
# optimised HLO is the same, and only LLVM spends less on machine code, which took up to half of a
# compilation. The XLA_FLAGS of the environment come last: a level there counts instead.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        os.environ.get("XLA_FLAGS", ""),
    ]
).strip()
# A compilation found in a cache from an earlier run would hide what this run compiles.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
os.environ.pop("JITSCOPE_DISABLE", None)

from collections.abc import Iterator

import hypothesis
import jax
import pytest

# Examples are compiled, so their time says nothing about the code; derandomised, a failure seen
# once is seen again.
hypothesis.settings.register_profile("jitscope", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("jitscope")


@pytest.fixture(autouse=True)
def leaves_global_state_alone() -> Iterator[None]:
    """Fails a test that leaves a JAX setting or an environment variable changed."""
    before = dict(jax.config.values), dict(os.environ)
    yield
    after = dict(jax.config.values), dict(os.environ)
    left_behind = [
        name
        for old, new in zip(before, after, strict=True)
        for name in sorted(old.keys() | new.keys())
        # pytest itself keeps the running test's phase in this variable.
        if old.get(name) != new.get(name) and name != "PYTEST_CURRENT_TEST"
    ]
    assert not left_behind, f"the test left these changed: {', '.join(left_behind)}"
