"""The lightest cut of a graph is a cut, and none is lighter."""

import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st

from jitscope.staged.lightest_cut import lightest_cut

INF = float("inf")


def test_narrowest_place_of_a_chain_is_cut():
    assert lightest_cut([3, 1, 2], {0: [1], 1: [2]}, [0], [2]) == [1]


def test_of_equal_cuts_it_is_the_one_nearest_the_targets():
    assert lightest_cut([1, 1, 1], {0: [1], 1: [2]}, [0], [2]) == [2]


def test_one_source_of_many_values_is_cut_in_their_place():
    assert lightest_cut([3, 2, 2], {0: [1, 2]}, [0], [1, 2]) == [0]


def test_a_target_without_a_source_needs_no_cut():
    assert lightest_cut([1, 1], {}, [0], [1]) == []


def test_a_source_that_is_a_target_is_cut_itself():
    assert lightest_cut([1], {}, [0], [0]) == [0]


def test_where_no_node_may_be_cut_there_is_no_cut():
    assert lightest_cut([INF, INF], {0: [1]}, [0], [1]) is None
    assert lightest_cut([INF, 1, INF], {0: [1], 1: [2]}, [0], [2]) == [1]


@st.composite
def graphs(draw):
    n = draw(st.integers(2, 7))
    weights = draw(st.lists(st.sampled_from([0, 1, 2, 5, INF]), min_size=n, max_size=n))
    pairs = list(itertools.combinations(range(n), 2))  # from lower to higher: no cycles
    successors = {}
    for a, b in draw(st.lists(st.sampled_from(pairs), unique=True)):
        successors.setdefault(a, []).append(b)
    ends = st.lists(st.integers(0, n - 1), min_size=1, unique=True)
    return weights, successors, draw(ends), draw(ends)


def separates(cut, successors, sources, targets):
    waiting, seen = [node for node in sources if node not in cut], set(cut)
    while waiting:
        node = waiting.pop()
        seen.add(node)
        waiting += [other for other in successors.get(node, []) if other not in seen]
    return not (seen - set(cut)) & set(targets)


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_no_lighter_set_of_nodes_separates_sources_from_targets(graph):
    weights, successors, sources, targets = graph
    best = min(
        sum(weights[i] for i in cut)
        for size in range(len(weights) + 1)
        for cut in itertools.combinations(range(len(weights)), size)
        if separates(cut, successors, sources, targets)
    )
    cut = lightest_cut(weights, successors, sources, targets)
    if cut is None:
        assert math.isinf(best)
    else:
        assert separates(cut, successors, sources, targets)
        assert sum(weights[i] for i in cut) == best


@pytest.mark.parametrize("n", [1, 40])
def test_wide_graphs_are_cut_at_their_root(n):
    successors = {0: list(range(1, n + 1))}
    assert lightest_cut([0.5] + [1] * n, successors, [0], range(1, n + 1)) == [0]
