"""Records that the tests of the renderers share."""

import dataclasses

import jax.numpy as jnp
from helpers import share_all_policy

import jitscope
from jitscope.reuse.body_report import BodyReport, NearMiss, Site
from jitscope.reuse.compiled import Compiled, ForTarget, KeptBody
from jitscope.reuse.reuse_report import (
    ProgramReport,
    Retrace,
    ReuseReport,
    SourceCount,
    SubroutineReport,
)
from jitscope.seconds import Seconds

HOSTILE = "</script><script>document.title='hacked'</script><!--<script>\u2028&amp;\"'`${x}{{data}}"


def layers(n=6):
    """A structured function of `n` calls of one layer, and its arguments."""

    @jitscope.shared_subroutine
    def layer(w, x):
        return x + jnp.tanh(x @ w)

    @jitscope.outermost_jit(policy=share_all_policy())
    def model(x, ws):
        for w in ws:
            x = layer(w, x)
        return x

    return model, (jnp.ones((2, 4)), [jnp.eye(4)] * n)


def traced_report(n=6):
    model, args = layers(n)
    model.trace(*args)
    return model.reuse().report()


def body(name="layer", n_uses=6, n_equations=30, structure="SHARED", **changes):
    return BodyReport(
        **dict(
            dict(
                digest=f"{abs(hash(name)):040x}"[:40],
                name=name,
                source="models/model.py:12:4 (net)",
                n_uses=n_uses,
                n_executions=n_uses,
                n_equations=n_equations,
                n_heavy=2,
                operand_bytes=4096,
                result_bytes=2048,
                structure=structure,
                reason="because of a test",
                outlined=False,
            ),
            **changes,
        )
    )


def program(*bodies, **changes):
    n_equations = sum(b.n_uses * b.n_equations for b in bodies) or 1
    n_saved = sum(b.n_repeated for b in bodies if b.is_shared)
    return ProgramReport(
        **dict(
            dict(
                name="model",
                platform="cpu",
                jax_version="0.12.0",
                n_equations=n_equations,
                n_compiled=n_equations - n_saved,
                n_bodies_before=len(bodies),
                n_bodies_after=len(bodies),
                seconds=Seconds(1.5, 0.25, 0.5, 2.0),
                bodies=bodies,
            ),
            **changes,
        )
    )


def everything():
    """A report that uses every field there is."""
    compiled = Compiled(
        Seconds(1.0, 0.1, 0.5, 2.0), 4, 300, 9, 6, 1, 20, 3, 4096, 128, 2_000_000, 0,
        (KeptBody("layer_000000000000", 6),),
    )  # fmt: skip
    full = body(
        n_traces=4,
        jaxpr="{ lambda ; a:f32[]. let in (a,) }",
        covers=("0" * 40,),
        n_realised=6,
        n_of_its_name=2,
        sites=(Site("models/model.py:12 (net)", "net/layer", 6),),
        near_misses=(
            NearMiss("1" * 40, "layer", "model.py:13", ("n: 3.0 against 4.0",), "pass it"),
        ),
    )
    return ReuseReport(
        (
            program(
                full,
                body("head", 1, 5, "INLINE"),
                compiled=compiled,
                plain=dataclasses.replace(compiled, seconds=Seconds(1.0, 0.0, 0.5, 20.0)),
                for_target=ForTarget(
                    "h200", Seconds(1.0, 0.1, 0.5, 2.0), 5, 60, 6, 80, 2, 1_000_000, 3_000_000
                ),
                lines=(SourceCount(("model.py:3 (net)", "model.py:12 (layer)"), 180, 30),),
            ),
        ),
        (
            SubroutineReport(
                "layer",
                "model.py:11",
                6,
                3,
                3,
                1,
                0,
                (Retrace("shape of x", 2),),
                ("never reused",),
            ),
        ),
        ("other: TypeError: no",),
    )


def hostile():
    """A report in which every text tries to break out of the page."""
    nasty = body(
        HOSTILE,
        source=HOSTILE + ":12",
        reason=HOSTILE,
        jaxpr=HOSTILE,
        sites=(Site(HOSTILE, HOSTILE, 1),),
        near_misses=(NearMiss("2" * 40, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE),),
    )
    return ReuseReport(
        (program(nasty, name=HOSTILE, lines=(SourceCount((HOSTILE, HOSTILE + "2"), 7, 3),)),),
        (SubroutineReport(HOSTILE, HOSTILE, 1, 1, 0, 1, 0, (Retrace(HOSTILE, 1),), (HOSTILE,)),),
        (HOSTILE,),
    )
