"""The line that a long compilation prints on a terminal."""

import gc
import io
import sys
import threading
import time
import weakref

import jax.numpy as jnp
import pytest
from report_samples import layers

import jitscope
from jitscope import _jax, progress


@pytest.fixture
def reuse():
    model, args = layers(6)
    model.trace(*args)
    return model.reuse()


def watched(reuse):
    return progress._Watched(weakref.ref(reuse), threading.get_ident(), 0.0)


def test_line_comes_once_after_a_few_seconds_of_compiling(reuse):
    one = watched(reuse)
    assert one.look(1.0, False) == (True, "")
    assert one.look(2.0, True) == (True, "")
    assert one.look(6.0, True) == (True, "")
    go_on, text = one.look(7.5, True)
    assert not go_on
    assert text == (
        "jitscope: XLA has been compiling model for 6 s; its largest repeated body is "
        "layer, 6 calls of 3 equations (SHARED)"
    )


def test_seconds_between_compilations_do_not_count(reuse):
    one = watched(reuse)
    for now, is_compiling in ((1.0, True), (4.0, False), (5.0, True), (9.0, True)):
        assert one.look(now, is_compiling) == (True, "")


def test_program_that_has_compiled_or_is_gone_is_watched_no_more(reuse):
    one = watched(reuse)
    reuse.phases.add(compile_s=1.0)
    assert one.look(1.0, True) == (False, "")
    fun = jitscope.outermost_jit(lambda x: jnp.sin(x))
    fun.trace(1.0)
    gone = watched(fun.reuse())
    fun._latest = None
    gc.collect()
    assert gone.look(1.0, True) == (False, "")


def test_program_that_is_only_lowered_is_given_up(reuse):
    assert watched(reuse).look(1000.0, False) == (False, "")


def test_program_without_repeats_says_so():
    fun = jitscope.outermost_jit(lambda x: jnp.sin(x))
    fun.trace(1.0)
    assert progress.message(fun.reuse(), 5.0).endswith("for 5 s; nothing in it repeats")


def test_nothing_is_watched_without_a_terminal(monkeypatch):
    added = []
    monkeypatch.setattr(progress._watcher, "add", added.append)
    layers(6)[0].trace(*layers(6)[1])
    assert not added
    monkeypatch.setattr(progress, "_on_terminal", lambda: True)
    model, args = layers(6)
    model.trace(*args)
    assert len(added) == 1
    monkeypatch.setattr(progress, "SHOWS_PROGRESS", False)
    model, args = layers(7)
    model.trace(*args)
    assert len(added) == 1


def test_strange_stderr_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress._on_terminal()


def test_compiler_is_seen_from_another_thread(monkeypatch):
    seen = []

    def spy(*args, **kwargs):
        seen.append(_jax.is_compiling(threading.get_ident()))
        return real(*args, **kwargs)

    compiler = sys.modules["jax._src.compiler"]
    name = next(n for n in ("backend_compile_and_load", "backend_compile") if hasattr(compiler, n))
    real = getattr(compiler, name)
    monkeypatch.setattr(compiler, name, spy)
    jitscope.outermost_jit(lambda x: x * 31)(2.0)
    assert seen == [True] or all(seen) and seen
    assert not _jax.is_compiling(threading.get_ident())


def test_watcher_prints_and_ends(monkeypatch, reuse):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "_POLL_S", 0.001)
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(_jax, "is_compiling", lambda thread: True)
    watcher = progress._Watcher()
    watcher.add(watched(reuse))
    for _ in range(2000):
        if not watcher._is_running:
            break
        time.sleep(0.005)
    assert not watcher._is_running
    assert out.getvalue().count("XLA has been compiling model") == 1
