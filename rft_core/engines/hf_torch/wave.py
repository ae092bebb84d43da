"""One batch of requests from the first prompt to the last token."""

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from rft_core.engines.hf_torch.cache import Prompts, Slots
from rft_core.engines.hf_torch.model import CausalModel
from rft_core.engines.hf_torch.row import Row
from rft_core.engines.hf_torch.sampling import sample
from rft_core.types import StopReason


class Wave:
    """Decodes a closed set of rows, in the order given.

    What happens depends on the rows alone, not on when they arrived, so the same rows give the same bits. A finished
    row makes room for the next one of the wave; when none is left, the last row takes its slot.

    Args:
        model: Borrowed for the whole run.
        rows: In the order in which they are admitted.
        max_rows: The most rows decoded at once.
        prefill_tokens: Prompt tokens that pass the model at once.
        eos_ids: Tokens that end a row.
        finish: Told about each finished row at once, in the computing thread.
    """

    def __init__(
        self,
        model: CausalModel,
        rows: Iterable[Row],
        *,
        max_rows: int,
        prefill_tokens: int,
        eos_ids: frozenset[int],
        finish: Callable[[Row, StopReason], None],
    ) -> None:
        self._model = model
        self._waiting = deque(rows)
        self._max_rows = min(max_rows, len(self._waiting))
        self._eos_ids = eos_ids
        self._finish = finish
        self._prompts = Prompts(model, prefill_tokens)
        self._slots = Slots(self._max_rows, max(len(row.request.prompt_tokens) + row.limit for row in self._waiting))
        self._rows: list[Row | None] = []
        """By slot; null for a slot that just became free."""

    def run(self) -> None:
        """Decode until every row is finished or withdrawn; only while the model is borrowed."""
        while True:
            self._drop_withdrawn()
            self._admit()
            live = self._compact()
            if not live:
                return
            self._step(live)

    def _drop_withdrawn(self) -> None:
        self._rows = [None if row is None or row.withdrawn else row for row in self._rows]
        self._waiting = deque(row for row in self._waiting if not row.withdrawn)

    def _admit(self) -> None:
        """Give free slots to waiting rows; one that ends with its first token needs none."""
        while self._waiting and (free := self._free_slots()):
            rows = self._next_rows(len(free))
            ended = self._take(rows, self._prompts.logits([row.request.prompt_tokens for row in rows]))
            staying = [row for row in rows if row not in ended]
            if staying:
                self._place(staying, free[: len(staying)])

    def _free_slots(self) -> list[int]:
        holes = [slot for slot, row in enumerate(self._rows) if row is None]
        return holes + list(range(len(self._rows), self._max_rows))

    def _next_rows(self, count: int) -> list[Row]:
        """Take waiting rows whose prompts are computed, at most so many, computing the next prompts if need be."""
        if self._waiting[0].request.prompt_tokens not in self._prompts:
            self._prompts.compute([row.request.prompt_tokens for row in self._waiting])
        rows: list[Row] = []
        while self._waiting and len(rows) < count and self._waiting[0].request.prompt_tokens in self._prompts:
            rows.append(self._waiting.popleft())
            rows[-1].on_start()
        return rows

    def _place(self, rows: list[Row], slots: list[int]) -> None:
        self._slots.fill(slots, [row.request.prompt_tokens for row in rows], self._prompts)
        self._rows += [None] * (max(slots) + 1 - len(self._rows))
        for slot, row in zip(slots, rows, strict=True):
            self._rows[slot] = row

    def _compact(self) -> list[Row]:
        """Close the holes that no row was left for, from the end; returns the rows, now in slots 0 to n-1."""
        for slot in reversed([slot for slot, row in enumerate(self._rows) if row is None]):
            last = self._rows.pop()
            if slot < len(self._rows):
                self._slots.move(len(self._rows), slot)
                self._rows[slot] = last
        return [row for row in self._rows if row is not None]

    def _step(self, rows: list[Row]) -> None:
        """Feed each row its last token and sample the next one."""
        device = self._model.device
        lengths = [row.num_cached for row in rows]
        longest = max(lengths)
        lengths_N = torch.tensor(lengths, device=device)
        tokens_N = torch.tensor([row.tokens[-1] for row in rows], device=device)
        places_L = torch.arange(longest + 1, device=device)
        self._slots.aim(lengths_N, longest)
        allowed_NTL = (places_L <= lengths_N[:, None])[:, None]
        logits_NTV = self._model.forward(tokens_N[:, None], lengths_N[:, None], allowed_NTL, places_L, self._slots)
        ended = self._take(rows, logits_NTV[:, -1])
        self._rows = [None if row in ended else row for row in rows]

    def _take(self, rows: list[Row], logits_NV: Tensor) -> set[Row]:
        """Sample one token for each row; returns the rows that end with it."""
        temperatures_N = [row.request.temperature for row in rows]
        uniforms_N = [float(row.uniforms_T[len(row.tokens)]) for row in rows]
        ended = set()
        for row, token, logprob in zip(rows, *sample(logits_NV, temperatures_N, uniforms_N), strict=True):
            stop_reason = row.take(token, logprob, self._eos_ids)
            if stop_reason is not None:
                self._finish(row, stop_reason)
                ended.add(row)
        return ended
