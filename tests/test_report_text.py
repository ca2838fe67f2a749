import dataclasses
import io
import re

import jax
import jax.numpy as jnp
import pytest
from report_samples import HOSTILE, body, everything, hostile, layers, program, traced_report

import jitscope
from jitscope.report import text
from jitscope.reuse.body_report import NearMiss
from jitscope.reuse.reuse_report import ReuseReport
from jitscope.seconds import Seconds
from jitscope.words import percent, place, printable, size


def of(*bodies, **changes):
    return ReuseReport((program(*bodies, **changes),))


def test_headline_tells_calls_bodies_and_what_the_compiler_sees():
    lines = text.render(traced_report()).splitlines()
    assert lines[0] == "model: 18 equations; 6 calls -> 1 shared body"
    assert lines[1] == "predicted: XLA compiles 3 of them; the other 15 (83 %) are repeats of these"


def test_loops_that_copy_more_than_they_save_are_said_to():
    @jitscope.shared_subroutine(structure="rolled")
    def layer(w, x):
        return x * w

    @jitscope.outermost_jit
    def net(ws, x):
        for w in ws:
            x = layer(w, x)
        return x

    net.trace([jnp.ones(3)] * 2, jnp.ones(3))
    report = net.reuse().report()
    (traced,) = report.programs
    assert traced.n_compiled > traced.n_equations == 2
    shown = text.render(report, width=200)
    assert f"predicted: XLA compiles {traced.n_compiled}, {-traced.n_saved} more than that" in shown
    assert "the other" not in shown


def test_record_prints_as_its_report():
    model, args = layers()
    model.trace(*args)
    assert str(model.reuse()) == str(model.reuse().report(details=False))


def test_24_layer_train_step_fits_one_screen():
    @jitscope.shared_subroutine
    def layer(w, x):
        return x + jnp.tanh(jax.nn.softmax(x @ w) @ w.T) * jax.nn.sigmoid(x)

    @jitscope.outermost_jit
    def train_step(ws, x):
        def loss(ws):
            y = x
            for w in ws:
                y = layer(w, y)
            return (y**2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws))

    train_step.lower([jnp.eye(8)] * 24, jnp.ones((4, 8)))
    lines = text.render(train_step.reuse().report(), width=100).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert any("layer (gradient)" in line for line in lines)


def test_every_row_says_what_was_done_and_why():
    shown = text.render(of(body(), body("head", 2, 40, "NESTED", reason="2 uses")), width=100)
    assert "layer  model.py:12" in shown
    assert "because of a test" in shown
    assert "SHARED: compiled once, and called; NESTED: lowered once" in shown
    assert "INLINE" not in shown


def test_small_bodies_are_folded_and_counted():
    small = [body(f"tiny{i}", 5, 3, "INLINE") for i in range(4)]
    shown = text.render(of(body(), *small))
    assert "tiny" not in shown
    assert "and 4 bodies not worth a row, called 20 times" in shown


def test_decorated_body_has_a_row_however_small():
    small = body("tiny", 2, 1, "NESTED", reason="2 uses, a kept call pays from 4 uses")
    shown = text.render(of(body(), dataclasses.replace(small, is_decorated=True)), width=120)
    assert re.search("^tiny .* NESTED +2 uses, a kept call pays from 4 uses$", shown, re.MULTILINE)


def test_decorated_variant_without_a_row_has_its_reason():
    first = body("layer", 1, 28, "INLINE", reason="called once", is_decorated=True, digest="1" * 40)
    bodies = body(is_decorated=True), first, body("other", 1, 2, "INLINE")
    shown = text.render(of(*bodies), width=120)
    assert (
        "and 2 bodies not worth a row, called 2 times; decorated: layer, called once (INLINE)\n"
    ) in shown


def test_rows_of_one_name_show_the_first_operand_type_that_differs():
    one = body(operands=("f32[4]", "f32[4,8]"), digest="1" * 40)
    other = body(operands=("f32[4]", "f32[2,8]"), digest="2" * 40)
    shown = text.render(of(one, other))
    assert "\nlayer (f32[4,8]) " in shown and "\nlayer (f32[2,8]) " in shown


def test_rows_of_one_name_and_another_interface_show_their_calls():
    one = body(n_uses=1, n_equations=200, operands=("f32[4]",), first_call=1, digest="1" * 40)
    other = body(operands=("f32[4]", "f32[4]"), first_call=2, digest="2" * 40, is_backward=True)
    third = dataclasses.replace(other, operands=("f32[4]",), first_call=8, digest="3" * 40)
    shown = text.render(of(dataclasses.replace(one, is_backward=True), other, third))
    for title in ("(gradient, call 1)", "(gradient, from call 2)", "(gradient, from call 8)"):
        assert f"\nlayer {title} " in shown


def test_near_miss_on_one_line_is_told_apart_by_its_calls():
    miss = NearMiss("1" * 40, "layer", "model.py:12:30", ("n: 3.0 against 4.0",), "pass it")
    miss = dataclasses.replace(miss, first_call=1)
    shown = text.render(of(body(near_misses=(miss,), first_call=7)), width=200)
    assert "! layer (call 7 at model.py:12) is almost layer (call 1 there): n: 3.0" in shown


def test_variants_that_a_gradient_makes_are_nothing_to_change():
    miss = NearMiss("1" * 40, "layer", "model.py:13", ("more: 1 mul",), "", ("gradient",))
    shown = text.render(of(body(near_misses=(miss,))), width=200)
    assert "is almost" not in shown
    assert "1 body differs from another of the same name only in what a gradient needs" in shown
    assert "there is nothing to change" in shown


def test_decorated_parts_that_are_each_too_small_get_the_advice_to_decorate_more():
    parts = [
        body(name, 12, 13, "NESTED", is_decorated=True, reason="too small", digest=name * 20)
        for name in ("norm", "mlp")
    ]
    shown = text.render(of(*parts), width=200)
    assert "! norm, mlp: none of them pays as a kept call by itself. Decorate the function" in shown
    assert "by itself" not in text.render(of(*parts, body()))


def test_layer_that_prints_gets_the_advice_to_take_that_out():
    @jitscope.shared_subroutine
    def layer(w, x):
        jax.debug.print("{}", x.sum())
        return jnp.tanh(jnp.sin(x @ w) * jnp.cos(x) + jax.nn.gelu(x)) / (1 + x * x)

    @jitscope.outermost_jit
    def net(w, x):
        for _ in range(6):
            x = layer(w, x)
        return x

    net.trace(jnp.ones((4, 4)), jnp.ones((2, 4)))
    shown = " ".join(str(net.reuse()).split())
    assert "! layer: its 6 calls cannot be kept, since it has side effects. What prints" in shown
    printing = body("layer", structure="NESTED", reason="it has side effects, whose order")
    assert "cannot be kept" in text.render(of(printing))
    assert "cannot be kept" not in text.render(of(dataclasses.replace(printing, n_uses=3)))
    assert "cannot be kept" not in text.render(of(dataclasses.replace(printing, is_backward=True)))
    others = [dataclasses.replace(printing, name=n, digest=n * 20, is_decorated=True) for n in "ab"]
    assert "pays as a kept call by itself" not in text.render(of(*others))


def test_difference_within_a_body_is_told_once():
    miss = NearMiss("1" * 40, "layer", "model.py:13", ("n: 3.0 against 4.0",), "pass it")
    shown = text.render(of(body(near_misses=(miss,)), body("part", near_misses=(miss,))))
    assert shown.count("n: 3.0 against 4.0") == 1


def test_calls_that_the_compiler_did_not_keep_are_told():
    assert "because of a test; 2 calls kept in the compiled program" in text.render(
        of(body(n_realised=2))
    )
    assert "kept in the compiled program" not in text.render(of(body(n_realised=6)))


def test_found_body_of_several_calls_of_a_function_says_what_it_holds():
    def leaf(x):
        for _ in range(3):
            x = jnp.sin(x) * 2
        return jnp.cos(x) + 1

    @jitscope.outermost_jit
    def step(xs):
        return jax.tree.map(leaf, xs)

    step.trace([[jnp.ones(3), jnp.ones(3), jnp.ones(4)]] * 8)
    (several,) = [b for b in step.reuse().report().programs[0].bodies if b.n_equations == 24]
    assert (several.name, several.n_uses) == ("leaf", 8)
    assert several.n_of_its_name == 2
    assert "; holds 2 calls of another leaf\n" in text.render(step.reuse().report(), width=200)


def test_program_that_was_only_looked_at_is_promised_nothing():
    shown = text.render(of(body(), is_applied=False, notes=("explained, and left as it is",)))
    assert shown.startswith("model: 180 equations; 6 calls would become 1 shared body\n")
    assert "predicted: XLA would compile 30 of them" in shown
    assert "\nexplained, and left as it is\n" in shown
    assert "\nonly looked at, not applied. SHARED: compiled once, and called" in shown


def test_what_the_structure_brought_is_told():
    (one,) = everything().programs
    plain = dataclasses.replace(one.plain, n_copies=1, n_fusions=18, temporary_bytes=500_000)
    shown = text.render(ReuseReport((dataclasses.replace(one, plain=plain),)), width=200)
    for part in ("2 array copies more", "2 kernels more", "1.5 MB of temporary memory more"):
        assert part in shown
    assert "what the structure brought" not in text.render(everything())


def test_before_and_after_stand_side_by_side():
    shown = text.render(everything())
    assert re.search(r"^ +plain jax.jit +with jitscope$", shown, re.MULTILINE)
    assert re.search("^equations +185 +35$", shown, re.MULTILINE)
    assert re.search("^nested functions +2 +2$", shown, re.MULTILINE)


def test_column_of_what_was_not_compiled_is_left_out_and_the_way_to_it_told():
    (one,) = everything().programs
    shown = text.render(ReuseReport((dataclasses.replace(one, plain=None),)))
    assert re.search(r"^ +with jitscope$", shown, re.MULTILINE)
    assert re.search(r"^equations +185 -> 35$", shown, re.MULTILINE)
    assert re.search(r"^nested functions +2 -> 2$", shown, re.MULTILINE)
    assert re.search(r"^calls kept +6$", shown, re.MULTILINE)
    assert not re.search(r" -( |$)", shown, re.MULTILINE)
    assert "jitscope.compare(...) compiles it without jitscope as well" in shown


def test_compilations_of_subroutines_and_of_anything_else_have_their_seconds():
    (one,) = everything().subroutines
    one = dataclasses.replace(one, n_compiled=2, seconds=Seconds(0, 0, 0.25, 1.5))
    shown = text.render(ReuseReport((), (one,), other=Seconds(0, 0, 0.5, 2.0)), width=120)
    assert "  compiled on its own 2 times: lower 0.25 s, compile 1.50 s\n" in shown
    assert "anything else" in shown and "lower 0.50 s, compile 2.00 s" in shown


def test_many_bodies_are_folded_to_one_screen():
    shown = text.render(of(*(body(f"layer{i}", 6, 40) for i in range(60))), width=120)
    assert len(shown.splitlines()) <= 24
    assert "and 46 bodies not worth a row, called 276 times" in shown


def test_program_without_repeats_takes_two_lines():
    assert text.render(of(body("head", 1, 40, "INLINE"), body("tail", 1, 3, "INLINE"))).startswith(
        "model: 43 equations; nothing repeats\n"
    )


def test_repeats_that_do_not_pay_are_not_called_a_saving():
    headline = text.render(of(body(structure="NESTED"))).splitlines()[0]
    assert headline == "model: 180 equations; something repeats, but nothing that pays"


def test_platform_that_keeps_no_calls_is_not_promised_a_saving():
    shown = text.render(of(body(), platform="gpu"))
    assert "150 (83 %) are repeats; on gpu XLA compiles them all the same" in shown


def test_phase_that_did_not_happen_is_said_so():
    assert "not yet lowered, not yet compiled" in text.render(of(body(), seconds=Seconds(1.0)))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("make", [everything, hostile])
def test_no_line_is_wider_than_the_terminal(width, make):
    report = make()
    if make is hostile:
        name = HOSTILE[:20]
        report = dataclasses.replace(report, subroutines=(), failures=())
        report = of(body(name, reason="word " * 40), name="model")
    assert max(map(len, text.render(report, width=width).splitlines())) <= width


def test_predicted_and_realised_calls_stand_side_by_side():
    shown = text.render(everything())
    assert "predicted: 6 calls of 1 body; realised: 6 calls of 1 body" in shown


def test_ratio_comes_with_its_noise():
    assert "cold start 21.50 s -> 3.50 s, 6.1x: one measurement of each" in text.render(
        everything()
    )


def test_difference_within_the_noise_is_no_saving():
    report = everything()
    (one,) = report.programs
    same = dataclasses.replace(
        one, plain=dataclasses.replace(one.compiled, seconds=Seconds(1.0, 0.0, 0.5, 2.5))
    )
    shown = text.render(dataclasses.replace(report, programs=(same,)), width=200)
    assert "no difference that one measurement of each can tell (they vary by up to 1.5x, " in shown
    assert "and by up to 0.5 s)" in shown  # of short ones, whatever their ratio


def test_near_miss_is_shown_with_its_cure():
    shown = text.render(everything(), width=200)
    assert (
        "! layer (model.py:12) is almost layer (model.py:13): n: 3.0 against 4.0. To share: pass it"
    ) in shown


def test_bodies_of_other_shapes_are_only_counted():
    miss = NearMiss(
        "1" * 40,
        "layer",
        "model.py:13",
        ("shape of operand 0: (2,) against (3,)",),
        "pad",
        ("shape",),
    )
    shown = text.render(of(body(near_misses=(miss,))))
    assert "is almost" not in shown
    assert "1 body differs from another of the same name in shapes only" in shown


def test_body_that_was_traced_too_often_is_named():
    assert "! layer was traced 4 times for 6 calls" in text.render(everything(), width=200)


def test_colour_only_where_asked_for():
    report = of(body())
    assert "\x1b[" not in text.render(report) and "\x1b[" not in str(report)
    assert "\x1b[1;31mlayer" in text.render(report, colour=True)


def test_show_colours_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, terminal = io.StringIO(), Terminal()
    text.show(of(body()), plain)
    text.show(of(body()), terminal)
    assert "\x1b" not in plain.getvalue() and "\x1b" in terminal.getvalue()
    with monkeypatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        terminal = Terminal()
        text.show(of(body()), terminal)
    assert "\x1b" not in terminal.getvalue()


def test_names_cannot_move_the_cursor():
    shown = text.render(of(body("evil\x1b[2J\nname", near_misses=())))
    assert "\x1b" not in shown and "evil\\x1b[2J\\x0aname" in shown


def test_programs_come_slowest_first_and_are_cut_off():
    many = ReuseReport(tuple(program(name=f"p{i}", seconds=Seconds(float(i))) for i in range(30)))
    shown = text.render(many)
    assert shown.startswith("p29: ") and shown.endswith("and 10 programs more, 45.00 s")


def test_empty_report_says_so():
    assert text.render(ReuseReport()) == "nothing was traced"


@pytest.mark.parametrize(
    "part, whole, expected",
    [
        (0, 0, "0 %"),
        (0, 9, "0 %"),
        (9, 9, "100 %"),
        (1, 10_000, "<1 %"),
        (9_999, 10_000, ">99 %"),
        (1, 2, "50 %"),
    ],
)
def test_rounding_never_fakes_nothing_or_everything(part, whole, expected):
    assert percent(part, whole) == expected


@pytest.mark.parametrize(
    "n_bytes, expected", [(0, "0 B"), (999, "999 B"), (1_500_000, "1.5 MB"), (4e12, "4e+03 GB")]
)
def test_sizes_have_units(n_bytes, expected):
    assert size(n_bytes) == expected


@pytest.mark.parametrize(
    "source, expected",
    [
        ("/a/b/model.py:12:4 (net)", "model.py:12"),
        ("C:\\a\\model.py:7 (f.<locals>.g)", "model.py:7"),
        ("", ""),
        ("unknown", "unknown"),
        ("<string>:1 (<module>)", "<string>:1"),
    ],
)
def test_places_are_short(source, expected):
    assert place(source) == expected


def test_printable_keeps_letters_of_all_scripts():
    assert printable("schicht_größe層") == "schicht_größe層"
