"""What users are told when they ask for something that there is not.

A row is what was done, and the pieces of the message: what was asked, what was found, what is
allowed, what to do next.
"""

import asyncio
import functools

import jax.numpy as jnp
import pytest

import jitscope
from jitscope import outermost_jit, report, shared_subroutine
from jitscope.testing import assert_max_bodies, assert_structure

X = jnp.ones(3)


@shared_subroutine
def layer(x):
    return x + 1


@outermost_jit
def step(x):
    return layer(layer(x))


class Model:
    @outermost_jit
    def apply(self, x):
        return x


class Named:
    @outermost_jit
    def apply(this, x):  # noqa: N805
        return x


async def coroutine(x):
    return x


class Coroutine:
    async def __call__(self, x):
        return x


MISTAKES = {
    "a number as a function": (
        lambda: outermost_jit(3),
        TypeError,
        ["outermost_jit() needs a function", "got 3 of type int", "@jitscope.outermost_jit"],
    ),
    "a number under a decorator with options": (
        lambda: outermost_jit(outline=False)("f"),
        TypeError,
        ["outermost_jit() needs a function", "got 'f' of type str"],
    ),
    "a class as a subroutine": (
        lambda: shared_subroutine(Model),
        TypeError,
        ["got the class Model", "Decorate the method that computes"],
    ),
    "a class as an outermost function": (
        lambda: outermost_jit(Model),
        TypeError,
        ["outermost_jit() got the class Model", "Decorate the method that computes"],
    ),
    "a class as a policy": (
        lambda: outermost_jit(policy=jitscope.Policy),
        TypeError,
        ["got the class Policy", "Did you mean Policy()?"],
    ),
    "a word as a switch": (
        lambda: outermost_jit(staged="yes"),
        TypeError,
        ["outermost_jit(staged=...) must be True or False", "'yes'"],
    ),
    "a number as the name of a subroutine": (
        lambda: shared_subroutine(name=3)(lambda x: x),  # pyright: ignore
        TypeError,
        ["shared_subroutine(name=...)", "got 3 of type int", "'layer'", "Leave it out"],
    ),
    "bytes as the name of a subroutine": (
        lambda: shared_subroutine(name=b"a")(lambda x: x),  # pyright: ignore
        TypeError,
        ["shared_subroutine(name=...)", "got b'a' of type bytes", "Leave it out"],
    ),
    "nothing as the name of a subroutine": (
        lambda: shared_subroutine(name="")(lambda x: x),
        ValueError,
        ["shared_subroutine(name=...)", "got '' of type str", "Leave it out"],
    ),
    "an async function as an outermost one": (
        lambda: outermost_jit(functools.partial(coroutine)),
        TypeError,
        ["outermost_jit() got an async function, 'coroutine'", "returns its results"],
    ),
    "an object whose call is async as an outermost function": (
        lambda: outermost_jit(Coroutine()),
        TypeError,
        ["outermost_jit() got an async function, 'Coroutine'", "returns its results"],
    ),
    "a path in place of a report": (
        lambda: report.save("run.json", step),  # pyright: ignore
        TypeError,
        ["save() needs a report and then a path", "'run.json' of type str", "report comes first"],
    ),
    "a number in place of a path": (
        lambda: report.save(jitscope.stats(), 3),  # pyright: ignore
        TypeError,
        ["save() needs a path behind the report", "3 of type int"],
    ),
    "a method whose object has another name": (
        lambda: Named().apply(X),
        TypeError,
        ["'apply' is a method", "an object of class Named", "static_argnums=0"],
    ),
    "a position as a name": (
        lambda: shared_subroutine(static_argnames=[1])(lambda x, n: x),
        TypeError,
        ["shared_subroutine(static_argnames=[1])", "got 1 of type int", "mean static_argnums?"],
    ),
    "a position that there is not": (
        lambda: shared_subroutine(static_argnums=5)(lambda x: x),
        ValueError,
        ["there is no argument number 5", "takes 1 positional argument: x."],
    ),
    "a name as a position": (
        lambda: shared_subroutine(static_argnums=("n",))(lambda x, n: x),
        TypeError,
        ["static_argnums takes positions", "got 'n' of type str", "mean static_argnames?"],
    ),
    "bytes as a name": (
        lambda: shared_subroutine(static_argnames=b"n")(lambda x, n: x),
        TypeError,
        ["shared_subroutine(static_argnames=b'n')", "of type bytes", "'n' or ('n', 'mode')"],
    ),
    "a position as a name, outermost": (
        lambda: outermost_jit(lambda x, n: x, static_argnames=1),
        TypeError,
        ["outermost_jit(static_argnames=1)", "'n' or ('n', 'mode')", "mean static_argnums?"],
    ),
    "a structure as a policy": (
        lambda: outermost_jit(lambda x: x, policy="SHARED"),
        TypeError,
        ["got 'SHARED'", "jitscope.Policy(", "shared_subroutine(structure='shared')"],
    ),
    "a structure as a policy of all": (
        lambda: jitscope.install(policy="SHARED"),
        TypeError,
        ["got 'SHARED'", "jitscope.Policy("],
    ),
    "a policy for one subroutine": (
        lambda: shared_subroutine(lambda x: x, policy=jitscope.Policy()),
        TypeError,
        ["unexpected option 'policy'", "outermost_jit(policy=...)", "structure='shared'"],
    ),
    "a structure that there is not": (
        lambda: shared_subroutine(structure="inlined")(lambda x: x),
        ValueError,
        ["structure 'inlined'", "'inline', 'nested', 'shared'", "lower or upper case"],
    ),
    "a setting that there is not": (
        lambda: jitscope.Policy(min_use=1),
        TypeError,
        ["unknown setting(s) min_use", "min_uses, min_equations", "help(jitscope.Policy)"],
    ),
    "a setting without its name": (
        lambda: jitscope.Policy(4),  # pyright: ignore
        TypeError,
        ["takes its settings by name", "got 4 without one", "Policy(min_uses=4)"],
    ),
    "the reuse of a subroutine": (
        lambda: layer.reuse(),
        AttributeError,
        ["no attribute 'reuse'", "it has stats()", "reuse() of the outermost_jit function"],
    ),
    "the lowering of a subroutine": (
        lambda: layer.lower(X),
        AttributeError,
        ["no attribute 'lower'", "jax.jit(layer).lower(...)"],
    ),
    "the stats of an outermost function": (
        lambda: step.stats(),
        AttributeError,
        ["no attribute 'stats'", "reuse()", "jitscope.stats()"],
    ),
    "a function as a report": (
        lambda: report.save(step, "run.html"),
        TypeError,
        ["save() needs a report", "<outermost_jit of step>", "that function's .reuse()"],
    ),
    "the counts of a subroutine as a report": (
        lambda: report.save(layer.stats(), "run.html"),
        TypeError,
        ["of type SubroutineStats", "jitscope.stats()"],
    ),
    "a report in another format": (
        lambda: report.save(jitscope.stats(), "run.pdf"),
        ValueError,
        ["'run.pdf'", ".json, .html, .txt"],
    ),
    "a structure without its body": (
        lambda: assert_structure("shared", step, X),
        TypeError,
        ["needs a dict", "got 'shared'", "assert_structure({'layer': 'shared'}, train_step, ...)"],
    ),
    "a structure of no function": (
        lambda: assert_structure({"layer": "shared"}, X),
        TypeError,
        ["assert_structure() needs a function", "train_step"],
    ),
    "a limit in the place of the function": (
        lambda: assert_max_bodies(step, 3),
        ValueError,
        ["whole number from 0", "<outermost_jit of step>", "before the function"],
    ),
    "an audit of nothing": (
        lambda: jitscope.audit("step"),
        TypeError,
        ["audit() needs a function", "got 'step' of type str", "jitscope.audit(train_step"],
    ),
    "a method whose object is no pytree": (
        lambda: Model().apply(X),
        TypeError,
        [
            "'apply' is a method",
            "an object of class Model",
            "register Model as a pytree",
            "static_argnums=0",
        ],
    ),
}


@pytest.mark.parametrize("mistake, kind, pieces", MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_answered_with_what_to_do(mistake, kind, pieces):
    with pytest.raises(kind) as raised:
        mistake()
    message = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    for piece in pieces:
        assert piece in message, message


@pytest.mark.parametrize("decorator", [shared_subroutine, outermost_jit])
def test_function_around_a_generator_or_coroutine_that_runs_it_is_no_mistake(decorator):
    def doubled(x):
        yield 2 * x

    async def tripled(x):
        return 3 * x

    @functools.wraps(doubled)
    def first(x):
        return next(doubled(x))

    @functools.wraps(tripled)
    def result(x):
        return asyncio.run(tripled(x))

    assert decorator(first)(X)[0] == 2
    assert decorator(result)(X)[0] == 3


@pytest.mark.parametrize("structure", ["shared", "SHARED", jitscope.Structure.SHARED])
def test_structure_is_taken_in_any_spelling(structure):
    body = shared_subroutine(lambda x: x * 2, structure=structure, name="asked")

    @outermost_jit
    def net(x):
        return body(body(x))

    assert_structure({"asked": structure}, net, X)


def test_attributes_that_there_are_not_can_be_asked_for():
    for fun in (layer, step, outermost_jit(lambda x: x)):
        assert not hasattr(fun, "missing")
        assert getattr(fun, "__torch_function__", None) is None


def test_bound_method_of_an_outermost_function_shows_what_it_is():
    assert repr(Model().apply) == "<bound outermost_jit of Model.apply of an object of class Model>"
