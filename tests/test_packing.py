"""Packed trees: every sequence finds its own tokens, positions and ancestors, and nothing of its neighbours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_core.packing import pack

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), max_size=8)
"""Few symbols, so that starts are shared, and sequences that are starts of others or the same."""


@given(SEQUENCES)
def test_every_sequence_is_found_on_its_path(sequences: list[list[int]]) -> None:
    tree = pack(sequences)
    assert len(tree.paths) == len(sequences)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tree.tokens_N[path].tolist() == sequence
        assert tree.positions_N[path].tolist() == list(range(len(sequence)))
        assert tree.parents_N[path].tolist() == [-1, *path[:-1].tolist()]


@given(SEQUENCES)
def test_each_start_is_stored_once(sequences: list[list[int]]) -> None:
    starts = {tuple(sequence[:length]) for sequence in sequences for length in range(1, len(sequence) + 1)}
    assert len(pack(sequences)) == len(starts)


@given(SEQUENCES)
def test_ancestors_come_before_their_descendants(sequences: list[list[int]]) -> None:
    tree = pack(sequences)
    assert (tree.parents_N < np.arange(len(tree))).all()


@given(SEQUENCES)
def test_a_token_attends_to_its_own_sequence_alone(sequences: list[list[int]]) -> None:
    tree = pack(sequences)
    mask_NN = tree.attention_mask()
    assert mask_NN.shape == (len(tree), len(tree))
    for path in tree.paths:
        for position, node in enumerate(path):
            assert np.flatnonzero(mask_NN[node]).tolist() == sorted(path[: position + 1].tolist())


@given(SEQUENCES, st.randoms(use_true_random=False))
def test_the_order_of_sequences_changes_no_sequence(sequences: list[list[int]], random: object) -> None:
    shuffled = list(range(len(sequences)))
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = pack(sequences), pack([sequences[index] for index in shuffled])
    assert len(first) == len(second)
    for place, index in enumerate(shuffled):
        assert first.tokens_N[first.paths[index]].tolist() == second.tokens_N[second.paths[place]].tolist()


def test_a_group_stores_its_prompt_once() -> None:
    prompt, completions = [1, 2, 3, 4], [[5], [6, 7], [5]]
    assert len(pack([[*prompt, *completion] for completion in completions])) == len(prompt) + 3


@pytest.mark.parametrize("sequences", [[], [[]], [[], [1]]])
def test_nothing_is_a_tree_of_integers_too(sequences: list[list[int]]) -> None:
    tree = pack(sequences)
    assert {array.dtype for array in (tree.tokens_N, tree.positions_N, tree.parents_N, *tree.paths)} == {np.dtype(np.int64)}
    assert [len(path) for path in tree.paths] == [len(sequence) for sequence in sequences]


def test_what_comes_as_a_tuple_or_an_array_is_the_same() -> None:
    tree = pack([(7, 8), np.array([7, 9])])  # type: ignore[list-item]
    assert tree.tokens_N.tolist() == [7, 8, 9]
