"""The order in which a line is read, and stretches that are alike in any order."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, strategies as st

from jitscope.outlining.alignment import aligned
from jitscope.outlining.dataflow import Edges
from jitscope.outlining.reading import n_recurring, n_repeated, reading_order


def edges(reads):
    """Edges of equations, each with the equations whose only results are its operands."""
    triples = [(i, j, slot) for i, js in enumerate(reads) for slot, j in enumerate(js)]
    user, definer, slot = np.asarray(triples, np.int64).reshape(-1, 3).T
    return Edges(user, definer, slot.astype(np.uint64))


def roots(n, *which):
    is_root = np.zeros(n, bool)
    is_root[list(which)] = True
    return is_root


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 30))
    return [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(n)], draw(
        st.sets(st.integers(0, n - 1))
    )


@given(graphs())
def test_reading_order_is_one_in_which_the_line_can_be_evaluated(graph):
    reads, which = graph
    order = reading_order(edges(reads), roots(len(reads), *which))
    assert sorted(order) == list(range(len(reads)))
    place = {i: at for at, i in enumerate(order)}
    assert all(place[j] < place[i] for i, js in enumerate(reads) for j in js)
    assert [i for i in order if i in which] == sorted(which)


@given(graphs(), st.data())
def test_reading_order_is_the_same_however_the_equations_stood(graph, data):
    reads, _ = graph
    reads = [*reads, list(range(len(reads)))]  # so that one equation is read last
    left, stood = list(range(len(reads))), []
    while left:
        ready = [i for i in left if set(reads[i]) <= set(stood)]
        stood.append(data.draw(st.sampled_from(ready)))
        left.remove(stood[-1])
    place = {i: at for at, i in enumerate(stood)}
    moved = [[place[j] for j in reads[i]] for i in stood]
    no_roots = roots(len(reads))
    assert [stood[i] for i in reading_order(edges(moved), no_roots)] == reading_order(
        edges(reads), no_roots
    )


@dataclasses.dataclass(frozen=True)
class Run:
    length: int
    starts: tuple[int, ...]


def alike(reads, *starts, which=()):
    """What is alike in `NUMBERS`, given runs of five equations at the starts."""
    runs = [Run(5, (start,)) for start in starts]
    return aligned(NUMBERS, edges(reads), runs, lambda: roots(len(reads), *which))


NUMBERS = np.asarray([1, 2, 3, 4, 5, 1, 3, 2, 4, 5])
TWO_CHAINS = [[], [0], [], [2], [1, 3]]  # equations 0-1 and 2-3, which the last one reads


def test_stretch_in_another_order_is_aligned():
    reads = [*TWO_CHAINS, *[[j + 5 for j in js] for js in [[], [], [0], [1], [3, 2]]]]
    reads[9] = [7, 8]
    (found,) = alike(reads, 0)
    order = list(range(10))
    found.put(order)
    assert order == [0, 1, 2, 3, 4, 5, 7, 6, 8, 9]
    found.put_back(order)
    assert order == list(range(10))


def test_stretch_with_other_edges_is_not_aligned():
    reads = [*TWO_CHAINS, [], [], [5], [6], [8, 7]]  # the operands of the last one are exchanged
    assert alike(reads, 0) == []


def test_stretch_whose_roots_stand_in_another_order_is_not_aligned():
    reads = [*TWO_CHAINS, [], [], [5], [6], [7, 8]]
    (_,) = alike(reads, 0, which=(1, 7))
    assert alike(reads, 0, which=(1, 2, 6, 7)) == []


def test_equal_chains_that_nothing_tells_apart_are_aligned():
    numbers = np.asarray([1, 1, 2, 2, 1, 2, 1, 2])
    reads = [[], [], [0], [1], [], [4], [], [6]]
    (found,) = aligned(numbers, edges(reads), [Run(4, (0,))], lambda: roots(8))
    assert found.places == {4: [0, 2, 1, 3]}


def test_two_runs_of_the_same_equations_are_one():
    reads = [*TWO_CHAINS, [], [], [5], [6], [7, 8]]
    (found,) = alike(reads, 0, 5)
    assert (found.runs, found.starts) == ([0, 1], [0, 5])


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 5))
def test_repeated_stretches_are_counted(numbers, length):
    stretches = [tuple(numbers[i : i + length]) for i in range(len(numbers) - length + 1)]
    expected = sum(stretches.count(stretch) > 1 for stretch in stretches)
    assert n_repeated(np.asarray(numbers, np.int64), length) == expected


def test_equations_recur_where_what_reads_them_does_the_same():
    numbers = np.asarray([1, 2, 1, 2, 1, 3])
    chains = edges([[], [0], [], [2], [], [4]])
    assert n_recurring(numbers, chains, np.ones(6, bool)) == 4  # the third chain ends otherwise
    assert n_recurring(numbers, chains, np.arange(6) >= 2) == 2
