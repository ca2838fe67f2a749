"""The default policy: thresholds, reasons, and what it never reads."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from jitscope.ir.fingerprint import Fingerprint
from jitscope.structuring.callgraph import CallGraph
from jitscope.structuring.census import Body, Census
from jitscope.structuring.plan import Decision, LoopLimits, Plan, Structure
from jitscope.structuring.policy import Policy


def body(**fields):
    usual = dict(
        fingerprint=Fingerprint("a" * 32), name="block", source="f.py:1 (net)", n_uses=12,
        n_executions=12, n_paths=12, n_equations=200, n_heavy=6, operand_bytes=0, result_bytes=0,
        n_chained=11,
    )  # fmt: skip
    return Body(**{**usual, **fields})


def census(*bodies):
    numbered = [
        dataclasses.replace(b, fingerprint=Fingerprint(f"{i:032x}")) for i, b in enumerate(bodies)
    ]
    calls = tuple((b.fingerprint.digest, b.n_uses) for b in numbered)
    return Census("net", 10_000, tuple(numbered), calls)


@pytest.mark.parametrize(
    "fields, structure",
    [
        ({}, Structure.SHARED),
        ({"n_uses": 3, "n_paths": 3}, Structure.NESTED),
        ({"n_draws": 0}, Structure.NESTED),
        ({"outlined": True}, Structure.INLINE),
        ({"obstacle": "it has side effects"}, Structure.NESTED),
        ({"forced": "inline"}, Structure.INLINE),
    ],
)
def test_light_bodies_that_draw_are_kept_from_a_few_uses(fields, structure):
    usual = dict(n_uses=4, n_paths=4, n_equations=2, n_heavy=0, n_draws=1, n_chained=0)
    (decision,) = decide(body(**{**usual, **fields}))
    assert decision.structure is structure
    assert ("draw random numbers" in decision.reason) == (structure is Structure.SHARED)


def test_subclass_may_have_settings_of_any_kind():
    @dataclasses.dataclass(frozen=True)
    class Scaled(Policy):
        factor: float = 1.5

    assert Scaled(factor=0.5, min_uses=2).factor == 0.5
    with pytest.raises(ValueError, match="min_uses"):
        Scaled(min_uses=-1)


def decide(*bodies, policy=Policy()):  # noqa: B008 - frozen
    found = census(*bodies)
    plan = policy(found)
    return [plan[b.fingerprint.digest] for b in found.bodies]


def structure(*bodies, **options):
    return [d.structure for d in decide(*bodies, **options)]


def test_body_called_once_is_inlined():
    assert structure(body(n_uses=1, n_executions=100)) == [Structure.INLINE]


def test_large_body_with_many_uses_is_shared():
    (decision,) = decide(body())
    assert decision.structure is Structure.SHARED
    assert "12 uses" in decision.reason
    assert "2200 of 2400 equations" in decision.reason


def test_every_body_is_decided():
    found = census(body(), body(n_uses=1), body(n_equations=2))
    assert set(Policy()(found)) == {b.fingerprint.digest for b in found.bodies}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n_uses": 3}, "3 uses, a kept call pays from 4 uses"),
        ({"n_equations": 11, "n_heavy": 0}, "11 equations, a kept call pays from 12 equations"),
        ({"obstacle": "it has side effects"}, "it has side effects"),
        ({"obstacle": "it has side effects", "n_uses": 1}, "it has side effects"),
        ({"obstacle": "it has side effects", "forced": "shared"}, "it has side effects"),
        (
            {"n_heavy": 34},
            "200 equations with 34 matrix products or the like, a kept call pays from 204 "
            "equations (6 for each)",
        ),
        (
            {"n_heavy": 1, "n_equations": 17},
            "a kept call with matrix products or the like pays from 18 equations",
        ),
        (
            {"n_equations": 50},
            "kept calls of all bodies with matrix products or the like would save 550 equations, "
            "they pay from 1100 equations",
        ),
        ({"n_uses": 3, "grows": True}, "3 uses"),
        ({"n_chained": 0, "n_successive": 6}, "its calls may run 2 at a time"),
        ({"n_equations": 36, "grows": True}, "396 equations, they pay from 400"),
        ({"n_equations": 99, "grows": True, "n_chained": 5}, "they pay from 1100"),
        ({"n_uses": 11}, "11 uses that XLA fuses layer by layer, kept calls pay from 12"),
        (
            {"n_heavy": 0, "n_equations": 16},
            "kept calls would save 176 equations, they pay from 180 equations",
        ),
        ({"n_heavy": 0, "n_chained": 5}, "do not feed each other"),
        ({"n_heavy": 0, "n_boundary": 51}, "51 values cross each call: such calls pay from 204"),
    ],
)
def test_body_stays_nested_when(fields, reason):
    (decision,) = decide(body(**fields))
    assert decision.structure is Structure.NESTED
    assert reason in decision.reason


def test_products_need_nothing_between_them_where_a_chain_of_calls_would_grow():
    for grows, structure_ in ((None, Structure.NESTED), (True, Structure.SHARED)):
        (decision,) = decide(body(n_heavy=34, grows=grows))
        assert decision.structure is structure_
    (smallest,) = decide(body(n_heavy=9, n_equations=17, n_uses=99, grows=True))
    assert "pays from 18 equations" in smallest.reason


def test_residuals_of_element_wise_steps_do_not_count_among_what_crosses_a_call():
    def structure_of(**fields):
        (decision,) = decide(body(n_heavy=0, **fields))
        return decision.structure

    assert structure_of(n_boundary=51, n_residuals=0) is Structure.NESTED
    assert structure_of(n_boundary=51, n_residuals=1) is Structure.SHARED
    (heavy,) = decide(body(grows=False, n_boundary=51, n_residuals=1))
    assert heavy.structure is Structure.NESTED
    light = body(n_heavy=0, n_uses=2, n_paths=24, n_chained=1, n_boundary=51, n_residuals=1)
    _, in_a_layer = nested(body(n_heavy=60, n_equations=300), light)
    assert "51 values cross each call" in in_a_layer.reason


def test_calls_of_which_no_chain_grows_are_kept_where_little_crosses_them():
    for outlined, left in ((True, Structure.INLINE), (False, Structure.NESTED)):
        (decision,) = decide(body(grows=False, outlined=outlined, n_boundary=51))
        assert decision.structure is left
        assert "layer by layer, and 51 values cross each call" in decision.reason
        (decision,) = decide(body(grows=False, outlined=outlined, n_boundary=50))
        assert decision.structure is Structure.SHARED


def test_loops_are_made_of_calls_of_which_no_chain_grows():
    (decision,) = decide(body(grows=False, n_boundary=51), policy=Policy(rolled=True))
    assert decision.structure is Structure.ROLLED


@pytest.mark.parametrize(
    "fields",
    [
        {"n_uses": 3},
        {"n_uses": 7, "n_convolutions": 1},
        {"n_equations": 11, "n_heavy": 0},
        {"n_equations": 17, "n_heavy": 1},
        {"n_heavy": 34},
        {"n_equations": 50},
        {"n_heavy": 0, "n_equations": 16},
    ],
)
def test_reason_speaks_of_loops_where_loops_were_asked_for(fields):
    (decision,), (rolled,) = (
        decide(body(**fields), policy=Policy(rolled=whether)) for whether in (False, True)
    )
    assert "a kept call" in decision.reason or "kept calls" in decision.reason
    loops = decision.reason.replace("a kept call", "a loop").replace("kept calls", "loops")
    assert (rolled.structure, rolled.reason) == (Structure.NESTED, loops)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_uses": 5, "n_equations": 100, "grows": True},
        {"n_heavy": 0, "n_boundary": 50},
        {"n_heavy": 1, "n_boundary": 51},
        {"n_equations": 100},
        {"n_heavy": 0, "n_equations": 17},
        {"n_heavy": 0, "n_chained": 6},
        {"n_chained": 0},
        {"n_chained": 0, "n_successive": 7},
        {"n_uses": 120, "n_equations": 18, "n_paths": 120, "n_heavy": 3},
    ],
)
def test_body_is_shared_from_the_threshold_on(fields):
    assert structure(body(**fields)) == [Structure.SHARED]


def test_convolutions_pay_from_twice_as_many_uses():
    large = {"grows": True}
    assert structure(body(n_uses=7, n_convolutions=1, **large)) == [Structure.NESTED]
    assert structure(body(n_uses=8, n_convolutions=1, **large)) == [Structure.SHARED]
    assert structure(body(n_uses=7, **large)) == [Structure.SHARED]


def test_savings_of_heavy_bodies_add_up():
    half = body(n_equations=80)
    assert structure(half) == [Structure.NESTED]
    assert structure(half, half) == [Structure.SHARED] * 2


def test_one_growing_body_makes_calls_of_all_pay():
    forward = body(n_uses=5, n_equations=60)
    backward = dataclasses.replace(forward, grows=True)
    assert structure(forward, forward) == [Structure.NESTED] * 2
    assert structure(forward, backward) == [Structure.SHARED] * 2


def test_savings_of_light_bodies_do_not_add_up():
    light = body(n_uses=5, n_equations=30, n_heavy=0)
    assert structure(light, light, light) == [Structure.NESTED] * 3


def test_unfit_bodies_add_nothing():
    half, unfit = body(n_equations=80), body(obstacle="it has side effects")
    assert structure(half, unfit) == [Structure.NESTED] * 2


@pytest.mark.parametrize("wanted", Structure)
def test_structure_asked_for_by_the_user_wins_over_thresholds(wanted):
    (decision,) = decide(body(forced=wanted.value, n_uses=2, n_equations=1))
    assert decision.structure is wanted
    assert "decorator" in decision.reason


def test_body_that_outlining_made_and_that_is_worth_no_call_is_put_back():
    assert structure(body(outlined=True, n_uses=3, n_equations=20)) == [Structure.INLINE]
    assert structure(body(outlined=True, n_uses=3)) == [Structure.INLINE]
    assert structure(body(outlined=True)) == [Structure.SHARED]


def test_found_body_that_is_not_kept_is_nested_beside_kept_ones_or_where_it_is_half_the_program():
    def light(n_uses):
        return body(outlined=True, n_uses=n_uses, n_heavy=0, n_chained=0)

    assert structure(body(), light(16)) == [Structure.SHARED, Structure.NESTED]
    assert structure(light(26)) == [Structure.NESTED]  # saves 5,000 of 10,000 equations
    (decision,) = decide(light(25))
    assert decision.structure is Structure.INLINE
    assert "found, and no layers are kept" in decision.reason


@pytest.mark.parametrize(
    "fields, least",
    [({"n_uses": 15, "n_equations": 180}, "16 uses"), ({"n_equations": 11}, "180 saved equations")],
)
def test_found_body_that_is_put_back_says_what_nested_calls_would_take(fields, least):
    light = {"n_heavy": 0, "n_chained": 0, "n_uses": 16, **fields}
    (found,) = decide(body(outlined=True, **light))
    (marked,) = decide(body(**light))
    assert (found.structure, marked.structure) == (Structure.INLINE, Structure.NESTED)
    assert found.reason == f"{marked.reason}; found, and nested calls pay from {least}"


# --- bodies within bodies -------------------------------------------------------------------------


def nested(outer, inner, policy=Policy()):  # noqa: B008 - frozen
    """A census of a body that calls another."""
    outer_digest, inner_digest = "0" * 32, "1" * 32
    outer = dataclasses.replace(
        outer, fingerprint=Fingerprint(outer_digest), calls=((inner_digest, inner.n_uses),)
    )
    inner = dataclasses.replace(inner, fingerprint=Fingerprint(inner_digest))
    found = Census("net", 10_000, (outer, inner), ((outer_digest, outer.n_uses),))
    plan = policy(found)
    return plan[outer_digest], plan[inner_digest]


def test_what_is_called_only_within_kept_bodies_is_not_kept():
    outer, inner = nested(body(n_equations=500), body(n_uses=4, n_equations=50, n_paths=48))
    assert outer.structure is Structure.SHARED
    assert inner.structure is Structure.NESTED
    assert "within bodies whose calls are kept" in inner.reason


@pytest.mark.parametrize("n_heavy", [0, 20])
def test_what_is_found_in_a_body_that_is_not_kept_is_put_back(n_heavy):
    # Neither is kept: the outer one has too little between its products, or calls side by side.
    around = body(n_heavy=n_heavy, n_equations=60, n_uses=16, n_chained=0, outlined=True)
    light = body(n_heavy=0, n_chained=0, n_uses=2, n_equations=30, outlined=True)
    _, found = nested(around, light)
    _, marked = nested(around, dataclasses.replace(light, outlined=False))
    assert marked.structure is Structure.NESTED
    assert found.structure is Structure.INLINE
    why = (
        "found in a body with matrix products or the like"
        if n_heavy
        else "found, and no layers are kept: nested ones pay where they save half of the program"
    )
    assert found.reason == f"{marked.reason}; {why}"


def test_what_saves_more_than_the_body_around_it_is_kept_instead():
    outer, inner = nested(
        body(n_uses=4, n_equations=1000, n_paths=4, grows=True),
        body(n_uses=19, n_equations=50, n_paths=76),
    )
    assert outer.structure is Structure.NESTED
    assert "kept within it" in outer.reason
    assert inner.structure is Structure.SHARED


def test_reason_speaks_of_loops_where_one_body_calls_another():
    policy = Policy(rolled=True)
    small = body(n_uses=4, n_equations=50, n_paths=48)
    outer, inner = nested(body(n_equations=500), small, policy)
    assert (outer.structure, inner.structure) == (Structure.ROLLED, Structure.NESTED)
    assert inner.reason == "called only within bodies that become loops"
    outer, inner = nested(
        body(n_uses=4, n_equations=1000, n_paths=4),
        body(n_uses=19, n_equations=50, n_paths=76),
        policy,
    )
    assert (outer.structure, inner.structure) == (Structure.NESTED, Structure.ROLLED)
    assert outer.reason.startswith("loops within it save ")


def test_names_places_and_times_do_not_matter():
    one, other = body(name="a", source="x.py:1"), body(name="b", source="y.py:2")
    assert decide(one) == decide(other)


def test_thresholds_can_be_set():
    small = body(n_uses=2, n_equations=3, n_heavy=2)
    all_of_them = Policy(
        min_uses=2,
        min_equations=1,
        min_equations_per_product=1,
        min_saved=1,
        min_uses_steady=2,
    )
    assert structure(small, policy=all_of_them) == [Structure.SHARED]


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(Policy) if not isinstance(f.default, bool)]
)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "4"])
def test_threshold_that_is_no_positive_whole_number_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"Policy\({field}=\.\.\.\).*{value!r}"):
        Policy(**{field: value})


def test_policy_is_a_value():
    assert Policy(min_uses=5) == Policy(min_uses=5)
    assert hash(Policy()) == hash(Policy())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().min_uses = 3


# --- plans --------------------------------------------------------------------------------------

SHARED = Decision(Structure.SHARED, "twelve uses")


def test_structures_of_decisions_may_be_named():
    assert Decision("shared", "twelve uses", otherwise="INLINE") == dataclasses.replace(
        SHARED, otherwise=Structure.INLINE
    )


@pytest.mark.parametrize(
    "make, error, parts",
    [
        (lambda: Decision("share", "x"), ValueError, ["Decision(structure=...)", "'shared'"]),
        (lambda: Decision("shared", None), TypeError, ["reason in words", "None"]),
        (lambda: Plan(3), TypeError, ["mapping from digests to decisions", "got 3", "Write, in"]),
        (lambda: Plan({"a": "shared"}), TypeError, ["got 'shared' for 'a'", "Write, in"]),
        (lambda: LoopLimits(-1), ValueError, ["LoopLimits(min_trip_count=...)", "got -1"]),
        (lambda: LoopLimits(2, "a"), ValueError, ["min_saved_per_copy", "got 'a'"]),
    ],
)
def test_what_is_no_plan_is_refused(make, error, parts):
    with pytest.raises(error) as caught:
        make()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_body_that_a_plan_does_not_name_stays_nested():
    decision = Plan({})["0" * 32]
    assert decision.structure is Structure.NESTED
    assert "does not name it" in decision.reason


def test_plan_is_a_sized_iterable_of_digests():
    plan = Plan({"a" * 32: SHARED})
    assert list(plan) == ["a" * 32]
    assert len(plan) == 1
    assert plan["a" * 32] is SHARED


def test_plan_prints_structures_with_reasons():
    assert str(Plan({"a" * 32: SHARED})) == f"{'a' * 12}  SHARED: twelve uses"


def test_uses_outside_kept_bodies_spell_out_bodies_that_are_not_kept():
    outer, inner = (f"{i:032x}" for i in range(2))
    found = Census(
        "net",
        10_000,
        (
            body(fingerprint=Fingerprint(outer), calls=((inner, 4),)),
            body(fingerprint=Fingerprint(inner)),
        ),
        calls=((outer, 3), (inner, 1)),
    )
    graph = CallGraph(found)
    assert graph.uses_outside(())[inner] == 3 * 4 + 1
    assert graph.uses_outside((outer,))[inner] == 1


@pytest.mark.parametrize("n_equations", [200, 2], ids=["kept", "declined"])
def test_census_may_be_deeper_than_python_calls_itself(n_equations):
    digests = [f"{i:032x}" for i in range(3 * sys.getrecursionlimit())]
    callees = [((digest, 1),) for digest in digests[1:]]
    bodies = [
        body(fingerprint=Fingerprint(digest), calls=calls, n_equations=n_equations, n_paths=12)
        for digest, calls in zip(digests, [*callees, ()], strict=True)
    ]
    plan = Policy()(Census("net", 10_000, tuple(bodies), ((digests[0], 12),)))
    assert list(plan) == digests
    assert (plan[digests[0]].structure is Structure.SHARED) == (n_equations == 200)
