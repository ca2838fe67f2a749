"""Names in the optimised HLO, by which profiles are read."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from helpers import build_annotated, share_all_policy, shared_units
from programs import PROGRAMS, normal

import jitscope


def op_names(optimised_hlo: str) -> set[str]:
    return set(re.findall(r'op_name="([^"]*)"', optimised_hlo))


def compiled(fun, args, policy=None):
    structured = jitscope.outermost_jit(fun, policy=policy)
    text = structured.lower(*args).compile().as_text()
    return structured, text


def paths(text: str) -> list[list[str]]:
    """Every operation's name as its parts; `jit(f)` and `jvp(f)` count as `f`."""
    return [re.findall(r"[\w.<>\-]+", name) for name in op_names(text)]


def gradient(f):
    return jax.grad(lambda *args: f(*args).sum())


@pytest.mark.parametrize("transform", [lambda f: f, gradient], ids=["value", "grad"])
def test_scopes_inside_a_shared_body_are_kept(transform):
    f, args = build_annotated(PROGRAMS["named_scopes"])
    structured, text = compiled(transform(f), args, share_all_policy())
    assert shared_units(structured)
    found = paths(text)
    assert any("attention" in path for path in found)
    assert any("feed_forward" in path for path in found)


def test_operations_of_a_shared_body_carry_its_name():
    f, args = build_annotated(PROGRAMS["named_scopes"])
    structured, text = compiled(f, args, share_all_policy())
    assert shared_units(structured)
    inside = [path for path in paths(text) if "attention" in path]
    assert inside
    assert all("block" in path[: path.index("attention")] for path in inside)


def test_kept_calls_carry_the_name_of_the_body():
    f, args = build_annotated(PROGRAMS["named_scopes"])
    _, text = compiled(f, args, share_all_policy())
    callees = re.findall(r" call\([^\n]*to_apply=%?([\w.\-]+)", text)
    assert len(callees) == 4
    assert all(callee.startswith("block") for callee in callees)


def test_scopes_around_nested_calls_are_kept():
    f, args = build_annotated(PROGRAMS["named_scopes"])
    structured, text = compiled(f, args)  # too small to share by default
    assert not shared_units(structured)
    found = paths(text)
    for i in range(4):
        assert any(
            f"layer{i}" in path and "block" in path and "attention" in path for path in found
        )


def test_scopes_around_and_inside_an_inlined_body_are_kept():
    @jitscope.shared_subroutine
    def head(x):
        with jax.named_scope("logits"):
            return jnp.sin(x @ x)

    def net(x):
        with jax.named_scope("output"):
            return head(x)

    _, text = compiled(net, (normal(1, 3, 3),))
    assert any(
        path[-4:-1] == ["output", "head", "logits"] or {"output", "head", "logits"} <= set(path)
        for path in paths(text)
    )


def test_program_is_named_after_the_users_function():
    def train_step(x):
        return jnp.sin(x) + 1

    _, text = compiled(train_step, (normal(1, 3),))
    assert text.startswith("HloModule jit_train_step")
    assert any(name.startswith("jit(train_step)/") for name in op_names(text))


def test_subroutine_can_be_given_a_name():
    @jitscope.shared_subroutine(name="encoder_layer")
    def f(w, x):
        return x + jnp.tanh(x @ w)

    def net(w, x):
        for _ in range(5):
            x = f(w, x)
        return x

    structured, text = compiled(net, (normal(1, 3, 3), normal(2, 3)), share_all_policy())
    assert list(shared_units(structured))[0].startswith("encoder_layer_")
    assert any("encoder_layer" in path for path in paths(text))
