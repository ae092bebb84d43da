"""Sequences packed as a prefix tree: tokens that sequences have in common at their start are stored once.

A group's completions share their prompt, and prompts often share a system turn and worked examples. In a packed tree
each shared token passes the model once, attends to its ancestors alone and keeps the position that it has in its own
sequence, so every sequence sees exactly what it would see by itself.

Used by the in-process engine to compute prompts and by the trainer to compute groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedTree:
    """N tokens, in an order in which every ancestor comes before its descendants."""

    tokens_N: Ints
    """Shape (N,): token ids."""
    positions_N: Ints
    """Shape (N,): position of each token in its own sequence, from 0."""
    parents_N: Ints
    """Shape (N,): the node before each token in its sequence, -1 for a first token."""
    paths: tuple[Ints, ...]
    """For each sequence, in the order given, the nodes of its tokens: shape (its length,)."""

    def __len__(self) -> int:
        return len(self.tokens_N)

    def attention_mask(self) -> npt.NDArray[np.bool_]:
        """Shape (N, N), true where the row's token may attend to the column's: itself and its ancestors."""
        size = len(self)
        mask_NN = np.zeros((size, size), dtype=np.bool_)
        for node, parent in enumerate(self.parents_N):
            if parent >= 0:
                mask_NN[node] = mask_NN[parent]
            mask_NN[node, node] = True
        return mask_NN


def pack(sequences: Sequence[Sequence[int]]) -> PackedTree:
    """Pack sequences of token ids into a prefix tree.

    Args:
        sequences: At least one token each.

    Example:
        >>> tree = pack([[7, 8, 9], [7, 8, 5]])
        >>> tree.tokens_N.tolist(), tree.positions_N.tolist(), tree.parents_N.tolist()
        ([7, 8, 9, 5], [0, 1, 2, 2], [-1, 0, 1, 1])
        >>> [path.tolist() for path in tree.paths]
        [[0, 1, 2], [0, 1, 3]]
    """
    children: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    paths: list[Ints] = []
    for sequence in sequences:
        path = np.empty(len(sequence), dtype=np.int64)
        node = -1
        for position, token in enumerate(sequence):
            child = children.get((node, token))
            if child is None:
                child = len(tokens)
                children[node, token] = child
                tokens.append(token)
                positions.append(position)
                parents.append(node)
            node = child
            path[position] = node
        paths.append(path)
    tokens_N, positions_N, parents_N = (np.array(values, dtype=np.int64) for values in (tokens, positions, parents))
    return PackedTree(tokens_N, positions_N, parents_N, tuple(paths))
