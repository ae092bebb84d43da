"""The policy: a causal language model, and the log-probs of given tokens under it.

The model itself is only asked for hidden states. Logits are made of those states that come before a trained token, in
chunks, so neither the prompt nor the whole vocabulary times the whole batch is ever held.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from rft_core.errors import ModelError
from rft_core.packing import pack
from rft_core.tokens import FILES
from rft_core.trainer.batch import Packing, TrainingRow

CHUNK_LOGITS = 2**25
"""Most logits held at once (128 MB in float32). More than one chunk are made again in the backward pass, not kept."""

Ints = npt.NDArray[np.int64]


class Policy:
    """A causal language model that trains.

    Args:
        model: A transformers model in eval mode: dropout would make the ratio of policy and sampler meaningless.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = model
        """The model itself; an engine in this process may share it."""
        self._sizes: Any = model.config.get_text_config()
        self._window = _attention_window(self._sizes)

    @classmethod
    def load(cls, folder: Path, dtype: str = "float32") -> "Policy":
        """Load a Hugging Face folder, onto the GPU where there is one.

        Args:
            folder: Holds `config.json` and safetensors.
            dtype: `float32` or `bfloat16`, of weights and activations.

        Raises:
            ModelError: The folder holds no model that can be trained.
        """
        try:
            with quiet():
                model, report = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
                )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(
                f"no causal language model can be loaded from {folder} ({first_line(error)})", "name a folder that holds one"
            ) from None
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise ModelError(f"{folder} lacks the weights {missing[0]} (and {len(missing) - 1} others)", "the model's folder is damaged")
        for parameter in model.parameters():
            # Loaded parameters may be views into a mapped file at any alignment, and the kernels that the CPU takes depend on it.
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu").eval())

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Trained parameters with their names, tied ones once, in the model's own order."""
        return [(name, parameter) for name, parameter in self.module.named_parameters() if parameter.requires_grad]

    def logprobs(self, rows: Sequence[TrainingRow], packing: Packing) -> Tensor:
        """Log-probs of the rows' trained tokens, at each row's temperature.

        Args:
            rows: B rows, each with at least one trained token.
            packing: `packed` sends tokens that rows have in common at their start through the model once.

        Returns:
            Shape (B, T), float32, T the length of the longest row; 0 where a token is not trained.

        Raises:
            ModelError: A row is longer than the model's attention window, and packing was asked for.
        """
        states_NH, paths = self._packed_states(rows) if packing == "packed" else self._padded_states(rows)
        wanted = _Wanted(rows, paths)
        device = states_NH.device
        logprobs_M = self._target_logprobs(states_NH, wanted)
        width = max(len(row.tokens) for row in rows)
        cells = torch.from_numpy(wanted.cells(width)).to(device)
        values = logprobs_M.index_select(0, torch.from_numpy(wanted.cell_targets).to(device))
        return values.new_zeros(len(rows) * width).index_copy(0, cells, values).view(len(rows), width)

    def check(self, packing: Packing) -> None:
        """Make sure that this model's log-probs come out right in this layout, by trying it on two short sequences.

        Some architectures ignore the mask of a packed tree (recurrent ones), or take positions from the mask's shape.

        Raises:
            ModelError: They do not.
        """
        vocab_size = self._sizes.vocab_size
        tokens = [tuple(token % vocab_size for token in sequence) for sequence in ((1, 2, 3, 4, 5), (1, 2, 3, 11, 7, 6))]
        rows = [TrainingRow("", t, (False,) + (True,) * (len(t) - 1), (0.0,) * len(t), 1.0, 1.0) for t in tokens]
        remedy = "set `trainer.packing: padded`" if packing == "packed" else "take a model of another architecture"
        name = f"a model of type {self._sizes.model_type}"
        try:
            with torch.no_grad():
                ours = self.logprobs(rows, packing)
                gap = max(float((self._plain(t) - ours[b, 1 : len(t)]).abs().max()) for b, t in enumerate(tokens))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(f"{name} can't be trained with trainer.packing {packing} ({first_line(error)})", remedy) from None
        if gap > (1e-3 if self.module.dtype == torch.float32 else 0.25):
            raise ModelError(f"{name} gives log-probs that are {gap:.2g} off with trainer.packing {packing}", remedy)

    def save(self, folder: Path, tokenizer_folder: Path) -> None:
        """Write an ordinary Hugging Face folder.

        Args:
            folder: Exists; its files of these names are replaced.
            tokenizer_folder: Where the tokenizer's files are copied from.

        Raises:
            OSError: The disk is full, or can't be written for another reason.
        """
        with quiet(), writing():
            self.module.save_pretrained(folder)
        for weights in folder.glob("*.safetensors"):
            # They are written for their owner alone; an engine may run as somebody else.
            weights.chmod((folder / "config.json").stat().st_mode)
        for name in FILES:
            if (tokenizer_folder / name).exists():
                shutil.copyfile(tokenizer_folder / name, folder / name)

    def _packed_states(self, rows: Sequence[TrainingRow]) -> tuple[Tensor, list[Ints]]:
        longest = max(len(row.inputs) for row in rows)
        if self._window is not None and longest > self._window:
            found = f"a sequence of {longest} tokens is longer than the model's attention window of {self._window}"
            raise ModelError(found, "set `trainer.packing: padded`")
        tree = pack([row.inputs for row in rows])
        allowed_NN = self._tensor(tree.attention_mask())
        blocked = torch.finfo(self.module.dtype).min
        mask_NN = torch.zeros(allowed_NN.shape, dtype=self.module.dtype, device=allowed_NN.device).masked_fill_(~allowed_NN, blocked)
        states = self._states(
            self._tensor(tree.tokens_N)[None], attention_mask=mask_NN[None, None], position_ids=self._tensor(tree.positions_N)[None]
        )
        return states[0], list(tree.paths)

    def _padded_states(self, rows: Sequence[TrainingRow]) -> tuple[Tensor, list[Ints]]:
        width = max(len(row.inputs) for row in rows)
        tokens_BT = np.zeros((len(rows), width), dtype=np.int64)
        present_BT = np.zeros((len(rows), width), dtype=np.int64)
        for index, row in enumerate(rows):
            tokens_BT[index, : len(row.inputs)] = row.inputs
            present_BT[index, : len(row.inputs)] = 1
        states = self._states(self._tensor(tokens_BT), attention_mask=self._tensor(present_BT))
        return states.flatten(0, 1), [index * width + np.arange(len(row.inputs)) for index, row in enumerate(rows)]

    def _states(self, input_ids: Tensor, **inputs: Tensor) -> Tensor:
        """Hidden states that the head makes logits of: shape of `input_ids` and one more axis."""
        states: Tensor = self.module.base_model(input_ids=input_ids, use_cache=False, **inputs).last_hidden_state
        return states

    def _target_logprobs(self, states_NH: Tensor, wanted: "_Wanted") -> Tensor:
        """Log-probs of the wanted (state, token) pairs, shape (M,), float32."""
        rows_per_chunk = max(1, CHUNK_LOGITS // self._sizes.vocab_size)
        parts = []
        for start in range(0, len(wanted.positions), rows_per_chunk):
            chunk = slice(start, start + rows_per_chunk)
            first, last = np.searchsorted(wanted.target_states, [chunk.start, chunk.stop])
            arguments = (
                states_NH.index_select(0, self._tensor(wanted.positions[chunk])),
                self._tensor(wanted.temperatures[chunk]),
                self._tensor(wanted.target_states[first:last] - start),
                self._tensor(wanted.target_tokens[first:last]),
            )
            if len(wanted.positions) <= rows_per_chunk or not torch.is_grad_enabled():
                parts.append(self._chunk_logprobs(*arguments))
            else:
                parts.append(checkpoint(self._chunk_logprobs, *arguments, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(parts)

    def _chunk_logprobs(self, states_RH: Tensor, temperatures_R: Tensor, target_states_M: Tensor, target_tokens_M: Tensor) -> Tensor:
        logits_RV = self._logits(states_RH).float() / temperatures_R[:, None]
        # `index_select` and not `[]`: the backward pass of the latter adds in no fixed order where an index repeats.
        return logits_RV[target_states_M, target_tokens_M] - logits_RV.logsumexp(dim=1).index_select(0, target_states_M)

    def _logits(self, states: Tensor) -> Tensor:
        """The model's own head, with what some families do to its output; `check` compares it with the model's own forward."""
        logits: Tensor = self.module.get_output_embeddings()(states)
        if (scale := getattr(self._sizes, "logit_scale", None)) is not None:  # Cohere
            logits = logits * scale
        if (scaling := getattr(self._sizes, "logits_scaling", None)) is not None:  # Granite
            logits = logits / scaling
        if (cap := getattr(self._sizes, "final_logit_softcapping", None)) is not None:  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _plain(self, tokens: Sequence[int]) -> Tensor:
        """Log-probs of the tokens after the first by the model's own forward: shape (len(tokens) - 1,)."""
        ids = self._tensor(np.array(tokens))
        logits = self.module(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        return logits.log_softmax(dim=-1).gather(1, ids[1:, None])[:, 0]

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.module.device)


class _Wanted:
    """Which (state, token) pairs have to be scored so that every trained token is, each pair once.

    Args:
        rows: B rows.
        paths: For each row, where its inputs are among the N hidden states.
    """

    def __init__(self, rows: Sequence[TrainingRow], paths: Sequence[Ints]) -> None:
        states: dict[tuple[int, float], int] = {}
        targets: dict[tuple[int, int], int] = {}
        cells: list[tuple[int, int, int]] = []
        for index, (row, path) in enumerate(zip(rows, paths, strict=True)):
            for position in row.trained:
                key = (int(path[position - 1]), row.temperature or 1.0)
                target = (states.setdefault(key, len(states)), row.tokens[position])
                cells.append((index, position, targets.setdefault(target, len(targets))))
        pairs_M2 = np.array(list(targets), dtype=np.int64)
        order_M = np.argsort(pairs_M2[:, 0], kind="stable")
        self.positions = np.array([position for position, _ in states], dtype=np.int64)
        """Shape (R,): places among the hidden states."""
        self.temperatures = np.array([temperature for _, temperature in states], dtype=np.float32)
        """Shape (R,)."""
        self.target_states = pairs_M2[order_M, 0]
        """Shape (M,), ascending: which of the R states each target is scored at."""
        self.target_tokens = pairs_M2[order_M, 1]
        """Shape (M,): the token."""
        self._rows_C, self._positions_C, unsorted_C = np.array(cells, dtype=np.int64).T
        self.cell_targets: Ints = np.argsort(order_M, kind="stable")[unsorted_C]
        """Shape (C,): the target of each trained token of the batch."""

    def cells(self, width: int) -> Ints:
        """Shape (C,): each trained token's place in a flattened (B, width) tensor."""
        return np.asarray(self._rows_C * width + self._positions_C)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing progress bars and from logging below an error."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def writing() -> Iterator[None]:
    """Let a full disk be an OSError: safetensors has an error of its own for it."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def first_line(error: Exception) -> str:
    """What an error of a library says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _attention_window(sizes: Any) -> int | None:
    """The longest sequence in which every layer of a packed tree sees all ancestors; null if there is no limit.

    A packed tree's own mask takes the place of a sliding window's, which does nothing in sequences that fit into it.
    """
    kinds = getattr(sizes, "layer_types", None) or ["sliding_attention"]
    windows = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
    limits = [limit for kind in kinds if (limit := getattr(sizes, windows.get(kind, ""), None)) is not None]
    return min(limits, default=None)
