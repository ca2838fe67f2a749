"""Several threads trace, compile and run at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, body_uses, build_annotated, build_plain, share_all_policy
from programs import PROGRAMS, normal

import jitscope

N_THREADS = 4


def together(tasks: list[Callable[[], Any]]) -> list[Any]:
    """The results of all tasks, started at the same moment in a thread each."""
    barrier = threading.Barrier(len(tasks))

    def start(task: Callable[[], Any]) -> Any:
        barrier.wait(timeout=30)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(start, tasks))


def structured(fun):
    return jitscope.outermost_jit(fun, policy=share_all_policy())


@pytest.fixture
def block():
    @jitscope.shared_subroutine
    def block(w, x):
        return x + jnp.tanh(x @ w)

    return block


def chain(block, n_layers: int):
    def net(w, x):
        for _ in range(n_layers):
            x = block(w, x)
        return x

    return net


ARGS = normal(1, 4, 4), normal(2, 3, 4)


def plain_block(w, x):
    return x + jnp.tanh(x @ w)


def test_threads_trace_different_programs_at_once():
    names = ["residual_mlp", "several_outputs", "typed_keys", "nested_subroutines"]
    programs = [PROGRAMS[name] for name in names]
    built = [build_annotated(program) for program in programs]
    functions = [structured(f) for f, _ in built]
    results = together(
        [lambda f=f, args=args: f(*args) for f, (_, args) in zip(functions, built, strict=True)]
    )
    for program, f, result in zip(programs, functions, results, strict=True):
        plain_f, args = build_plain(program)
        assert_same(result, jax.jit(plain_f)(*args))
        assert program.uses.items() <= body_uses(f).items()


def test_threads_trace_the_same_function_at_once(block):
    f = structured(chain(block, 6))
    results = together([lambda: f(*ARGS)] * N_THREADS)
    for result in results:
        assert_same(result, jax.jit(chain(plain_block, 6))(*ARGS))
    assert body_uses(f) == {"block": (6,)}


def test_threads_share_a_subroutine_between_different_programs(block):
    """Each program is counted apart, whatever the other threads are tracing."""
    lengths = [4, 5, 6, 7]
    functions = [structured(chain(block, n)) for n in lengths]
    results = together([lambda f=f: f(*ARGS) for f in functions])
    for n, f, result in zip(lengths, functions, results, strict=True):
        assert_same(result, jax.jit(chain(plain_block, n))(*ARGS))
        assert body_uses(f) == {"block": (n,)}


def test_threads_trace_different_signatures_of_one_function(block):
    f = structured(chain(block, 6))
    inputs = [(ARGS[0], normal(9, rows, 4)) for rows in (1, 2, 3, 4)]
    results = together([lambda args=args: f(*args) for args in inputs])
    for args, result in zip(inputs, results, strict=True):
        assert_same(result, jax.jit(chain(plain_block, 6))(*args))


def test_one_thread_transforms_while_others_run(block):
    f = structured(lambda w, x: chain(block, 6)(w, x).sum())
    reference = lambda w, x: chain(plain_block, 6)(w, x).sum()
    tasks = [
        lambda g=g: g(*ARGS)
        for g in (f, jax.grad(f), jax.jit(f), lambda w, x: jax.vmap(f, (None, 0))(w, x[:, None]))
    ]
    value, grad, jitted, mapped = together(tasks)
    assert_same(value, jax.jit(reference)(*ARGS))
    assert_same(jitted, value)
    assert_same(grad, jax.jit(jax.grad(reference))(*ARGS))
    w, x = ARGS
    assert_same(mapped, jax.jit(jax.vmap(reference, (None, 0)))(w, x[:, None]))


def test_disabling_in_one_thread_leaves_the_others_alone(block):
    """The number of traces tells: disabled, the body runs in Python for every call."""
    n_python_calls = {}

    def counted(name):
        def body(w, x):
            n_python_calls[name] = n_python_calls.get(name, 0) + 1
            return plain_block(w, x)

        return jitscope.shared_subroutine(body)

    bodies = {name: counted(name) for name in ("disabled", "enabled")}
    inside, traced = threading.Event(), threading.Event()

    def disabled():
        with jitscope.disabled():
            inside.set()
            assert traced.wait(timeout=60)
            return jax.jit(chain(bodies["disabled"], 5))(*ARGS)

    def enabled():
        assert inside.wait(timeout=60)
        try:
            return jax.jit(chain(bodies["enabled"], 5))(*ARGS)
        finally:
            traced.set()

    for result in together([disabled, enabled]):
        assert_same(result, jax.jit(chain(plain_block, 5))(*ARGS))
    assert n_python_calls == {"disabled": 5, "enabled": 1}


def test_garbage_collector_is_on_again_when_all_threads_have_structured(block):
    assert gc.isenabled()
    together([lambda: structured(chain(block, 4))(*ARGS)] * N_THREADS)
    assert gc.isenabled()
