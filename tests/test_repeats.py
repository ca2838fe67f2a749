"""Repeated substrings: what is found in sequences with planted repeats, and that it is sound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from jitscope.outlining.repeats import Preferences, Repeat, take_repeats
from jitscope.outlining.suffixes import SuffixIndex

SEQUENCES = st.lists(st.integers(0, 3), max_size=60)


def found(tokens, **preferences):
    return [(r.length, r.starts) for r in take_repeats(tokens, Preferences(**preferences))]


# --- suffixes -----------------------------------------------------------------------------------


@given(SEQUENCES.filter(bool))
def test_suffixes_are_sorted(tokens):
    index = SuffixIndex(tokens)
    numbered = [list(dict.fromkeys(tokens)).index(t) for t in tokens]
    assert index.tokens.tolist() == numbered
    assert index.order.tolist() == sorted(range(len(tokens)), key=lambda i: numbered[i:])


@given(SEQUENCES.filter(bool))
def test_common_prefixes_are_those_of_neighbours(tokens):
    index = SuffixIndex(tokens)
    for i in range(1, len(tokens)):
        a, b = tokens[index.order[i - 1] :], tokens[index.order[i] :]
        n = int(index.common[i])
        assert a[:n] == b[:n]
        assert a[n : n + 1] != b[n : n + 1]


@given(SEQUENCES.filter(bool), st.data())
def test_classes_are_equal_where_substrings_are(tokens, data):
    length = data.draw(st.integers(1, len(tokens)))
    classes = SuffixIndex(tokens).classes(length).tolist()
    texts = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    assert len(classes) == len(texts)
    assert len(set(zip(classes, texts, strict=True))) == len(set(texts)) == len(set(classes))


# --- soundness ----------------------------------------------------------------------------------


@given(SEQUENCES, st.integers(1, 5))
def test_repeats_are_equal_long_enough_and_apart(tokens, min_length):
    taken = np.zeros(len(tokens), int)
    for length, starts in found(tokens, min_length=min_length):
        assert length >= min_length
        assert len(starts) > 1
        assert len({tuple(tokens[s : s + length]) for s in starts}) == 1
        for start in starts:
            taken[start : start + length] += 1
    assert taken.max(initial=0) <= 1


@given(SEQUENCES)
def test_search_depends_on_equality_only(tokens):
    assert found(tokens) == found([-7 * t + 100 for t in tokens])


@given(SEQUENCES)
def test_what_is_refused_stays_free(tokens):
    assert found(tokens, accept=lambda repeat: []) == []

    def halved(repeat):
        return [Repeat(repeat.length, repeat.starts[:2])]

    starts = [s for _, starts in found(tokens, accept=halved) for s in starts]
    assert len(starts) == len(set(starts))


def test_what_saves_too_little_is_left():
    tokens = [0, 1, 2, 7, 0, 1, 2, 8, *[3, 4, 5, 6, 9] * 4]  # saves (2 - 1) * 3, and much more
    assert len(found(tokens, min_gain=2)) == 2
    assert [length for length, _ in found(tokens, min_gain=3)] == [5]
    assert not found(tokens, min_gain=28)


# --- planted repeats ----------------------------------------------------------------------------


@given(st.integers(6, 30), st.integers(2, 8), st.data())
def test_scattered_repeat_is_found_whole(length, n_uses, data):
    word = list(range(length))
    tokens, starts, fresh = [], [], 1000
    for _ in range(n_uses):
        gap = data.draw(st.integers(1, 5))
        tokens += range(fresh, fresh + gap)
        fresh += gap
        starts.append(len(tokens))
        tokens += word
    assert found(tokens, min_length=6) == [(length, tuple(starts))]


@given(st.integers(6, 30), st.integers(2, 12), st.integers(0, 5), st.integers(0, 5))
def test_tandem_repeat_is_found_with_its_period(length, n_uses, before, after):
    tokens = [
        *range(1000, 1000 + before),
        *list(range(length)) * n_uses,
        *range(2000, 2000 + after),
    ]
    starts = tuple(before + length * i for i in range(n_uses))
    assert found(tokens, min_length=6) == [(length, starts)]


@given(st.integers(6, 20), st.integers(3, 8), st.integers(1, 5))
def test_tandem_repeat_is_cut_where_that_costs_least(length, n_uses, phase):
    # The run goes on for a part of another period, so that `phase + 1` cuts have equally many uses.
    tokens = list(range(length)) * n_uses + list(range(phase))
    costs = np.ones(len(tokens) + 1)
    costs[phase::length] = 0.5
    starts = tuple(phase + length * i for i in range(n_uses))
    assert found(tokens, min_length=6, cut_cost=lambda period: costs) == [(length, starts)]


def test_groups_of_a_run_are_one_repeat():
    word = list(range(8))
    tokens = word * 3 + [100] + word * 4 + [101, 102] + word * 6 + [103] + word * 3
    ((length, starts),) = found(tokens, min_length=6)
    assert (length, len(starts)) == (8, 16)


def test_short_period_is_stretched_to_whole_periods():
    tokens = [0, 1] * 128
    ((length, starts),) = found(
        tokens,
        min_length=6,
        cut_cost=lambda period: np.ones(len(tokens) + 1),
        stretch=lambda start, period: 15,
    )
    assert (length, starts) == (16, tuple(range(0, 256, 16)))


@pytest.mark.parametrize(
    ("details", "length"),
    [
        ([0] * 256, 16),  # all alike: as long as asked for
        ([i % 40 for i in range(256)], 40),  # longer, so that the details are alike too
        ([i % 8 for i in range(256)], 16),  # several exact periods make one that is long enough
        (list(range(256)), 16),  # nothing exact: as if there were no details
        ([i % 100 for i in range(256)], 16),  # exact, but used twice only
    ],
)
def test_short_periods_are_put_together_so_that_details_repeat(details, length):
    tokens = [0, 1] * 128
    ((found_length, starts),) = found(
        tokens,
        min_length=6,
        cut_cost=lambda period: np.ones(len(tokens) + 1),
        stretch=lambda start, period: 15,
        details=lambda: np.asarray(details),
    )
    assert (found_length, starts) == (length, tuple(range(0, 256 // length * length, length)))


def test_short_period_that_is_no_chain_is_left_alone():
    assert found([0, 1] * 128, min_length=6, stretch=lambda start, period: 16) == []


def test_more_valuable_repeat_is_taken_first():
    long, short = list(range(20)), list(range(8))  # the short one is part of the long one
    tokens = long + [100] + long + [101] + short + [102] + long
    (first, *_) = found(tokens, min_length=6)
    assert first == (20, (0, 21, 51))


@pytest.mark.parametrize(
    "tokens",
    [
        [0] * 5000,
        np.random.default_rng(0).integers(0, 2, 5000).tolist(),
        list(range(5000)),
        [],
        [1],
    ],
)
def test_degenerate_sequences_are_bounded(tokens):
    assert isinstance(found(tokens, min_length=6), list)
