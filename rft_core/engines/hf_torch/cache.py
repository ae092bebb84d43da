"""Keys and values: those of the prompts, computed once each, and those of the rows being decoded, in fixed slots."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from rft_core.engines.hf_torch.model import CausalModel
from rft_core.packing import pack

Prompt = tuple[int, ...]

GROWTH = 128
"""Tokens that slots grow by at least."""


class Prompts:
    """The computed prompts that rows are admitted from; tokens that several have in common pass the model once.

    Args:
        model: Computes them.
        budget: Tokens that pass the model at once; a longer prompt passes alone.
    """

    def __init__(self, model: CausalModel, budget: int) -> None:
        self._model = model
        self._budget = budget
        self._logits: dict[Prompt, Tensor] = {}
        self.paths: dict[Prompt, Tensor] = {}
        """For each computed prompt, the places of its tokens in `layers`."""
        self.layers: list[Any] = []
        """For each layer, `keys` and `values` of shape (1, heads, N, head_dim): the packed tokens."""

    def __contains__(self, prompt: Prompt) -> bool:
        return prompt in self.paths

    def logits(self, prompts: Sequence[Prompt]) -> Tensor:
        """Shape (len(prompts), V): the logits of what follows each prompt."""
        return torch.stack([self._logits[prompt] for prompt in prompts])

    def compute(self, wanted: Sequence[Prompt]) -> None:
        """Compute the first of these prompts, as many as fit the budget, in place of what was computed before."""
        prompts = _within(list(dict.fromkeys(wanted)), self._budget)
        tree = pack(prompts)
        device = self._model.device
        positions_N = torch.from_numpy(tree.positions_N).to(device)
        allowed_NN = torch.from_numpy(tree.attention_mask()).to(device)
        last_P = torch.tensor([int(path[-1]) for path in tree.paths], device=device)
        cache = DynamicCache()
        tokens_N = torch.from_numpy(tree.tokens_N).to(device)
        logits_PV = self._model.forward(tokens_N[None], positions_N[None], allowed_NN[None], positions_N, cache, last_P)[0]
        self.layers = cache.layers
        self.paths = {prompt: torch.from_numpy(path).to(device) for prompt, path in zip(prompts, tree.paths, strict=True)}
        self._logits = dict(zip(prompts, logits_PV, strict=True))


def _within(prompts: list[Prompt], budget: int) -> list[Prompt]:
    """The first prompts that pack into the budget, at least one.

    What a prompt adds is counted against its neighbour alone, which is never too little.
    """
    size = len(prompts[0])
    for number, (before, prompt) in enumerate(pairwise(prompts), start=1):
        size += len(prompt) - _num_common(before, prompt)
        if size > budget:
            return prompts[:number]
    return prompts


def _num_common(one: Prompt, other: Prompt) -> int:
    """Tokens that two prompts have in common at their start."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Slots(Cache):  # type: ignore[misc]  # its base has no types
    """The keys and values of the rows being decoded, one row a slot, each from place 0 on.

    A step always uses slots 0 to n-1, so the model sees a plain batch of n rows. Memory grows with the longest row, up
    to `capacity`; it starts as zeros, since a masked place still takes part in products and must hold a number.

    Args:
        num_slots: The most rows at once.
        capacity: The longest that a row may become, in tokens.
    """

    def __init__(self, num_slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.layers: list[Any]
        self._num_slots = num_slots
        self._capacity = capacity
        self._size = 0

    def fill(self, slots: list[int], prompts: Sequence[Prompt], store: Prompts) -> None:
        """Put computed prompts into slots.

        Args:
            slots: Where to; what was there is overwritten.
            prompts: For each slot the prompt; all of them are in `store`.
            store: Where the prompts are computed.
        """
        paths = [store.paths[prompt] for prompt in prompts]
        places_SL = torch.nn.utils.rnn.pad_sequence(paths, batch_first=True)
        if not self.layers:
            self.layers = [_SlotLayer() for _ in store.layers]
        self._reserve(places_SL.shape[1], store)
        into_S = torch.tensor(slots, device=places_SL.device)
        for layer, source in zip(self.layers, store.layers, strict=True):
            layer.fill(into_S, places_SL, source)

    def move(self, source: int, target: int) -> None:
        """Copy a row to another slot."""
        for layer in self.layers:
            layer.keys[target].copy_(layer.keys[source])
            layer.values[target].copy_(layer.values[source])

    def aim(self, lengths_N: Tensor, longest: int) -> None:
        """Say where the next pass writes: row i puts one token at place `lengths_N[i]` of slot i.

        Args:
            lengths_N: Shape (N,), int64: tokens that each row holds.
            longest: The largest of them.
        """
        self._reserve(longest + 1)
        slots_N = torch.arange(len(lengths_N), device=lengths_N.device)
        for layer in self.layers:
            layer.slots_N, layer.lengths_N, layer.longest = slots_N, lengths_N, longest

    def _reserve(self, length: int, store: Prompts | None = None) -> None:
        """Make room for rows of this length."""
        if length <= self._size:
            return
        self._size = min(self._capacity, max(length + GROWTH, 2 * self._size))
        sources = store.layers if store is not None and self.layers[0].keys is None else self.layers
        for layer, source in zip(self.layers, sources, strict=True):
            layer.grow(source, self._num_slots, self._size)


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # its base has no types
    """One layer's keys and values, shape (slots, heads, size, head_dim); null before the first `grow`."""

    keys: Any
    values: Any
    slots_N: Tensor
    lengths_N: Tensor
    longest: int = 0

    def grow(self, source: Any, num_slots: int, size: int) -> None:
        """Move to larger memory; `source` has the shape of heads, the kind of numbers, and what is to be kept."""
        self.keys = _grown(source.keys, self.keys, num_slots, size)
        self.values = _grown(source.values, self.values, num_slots, size)

    def fill(self, slots_S: Tensor, places_SL: Tensor, source: Any) -> None:
        """Gather the packed tokens at `places_SL` into slots; padding repeats token 0, which is never attended to."""
        for memory, packed in ((self.keys, source.keys[0]), (self.values, source.values[0])):
            gathered_HSLD = packed.index_select(1, places_SL.flatten()).unflatten(1, places_SL.shape)
            memory[:, :, : places_SL.shape[1]].index_copy_(0, slots_S, gathered_HSLD.transpose(0, 1))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one token a row, shape (N, heads, 1, head_dim); give all that rows hold, shape (N, heads, longest + 1, head_dim)."""
        self.keys[self.slots_N, :, self.lengths_N] = key_states[:, :, 0]
        self.values[self.slots_N, :, self.lengths_N] = value_states[:, :, 0]
        rows, end = len(self.slots_N), self.longest + 1
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: slots get their memory before the first pass."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.longest + query_length, 0

    def get_seq_length(self) -> int:
        return self.longest

    def get_max_length(self) -> int:
        return -1


def _grown(like: Tensor, old: Tensor | None, num_slots: int, size: int) -> Tensor:
    grown = like.new_zeros((num_slots, like.shape[1], size, like.shape[3]))
    if old is not None:
        grown[:, :, : old.shape[2]] = old
    return grown
