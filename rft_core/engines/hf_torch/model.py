"""A transformers causal language model as the engine uses it: borrowed for a while, with the engine's own masks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache
from transformers.utils import logging

from rft_core.errors import ModelError

ATTENTION = "_attn_implementation"
"""Where a configuration names its kind of attention; transformers has no public name that may be set and put back."""
FULL, SLIDING = "full_attention", "sliding_attention"


class CausalModel:
    """Forward passes of one module, which may belong to the trainer and is left as it was found.

    Args:
        module: A causal language model of transformers, or a wrapper with its `config` and call.
        max_context: Longest sequence that it will be asked for, in tokens.

    Raises:
        ModelError: It has layers that the engine can't mask or cache.
    """

    def __init__(self, module: Any, max_context: int) -> None:
        self.module = module
        _refuse_moving_positions(module.config.get_text_config(), max_context)
        self.windows = _windows(module.config.get_text_config(), max_context)
        parameter = next(module.parameters())
        self.device: torch.device = parameter.device
        self.dtype: torch.dtype = parameter.dtype
        self.vocab_size: int = module.get_input_embeddings().num_embeddings
        softcap = getattr(module.config.get_text_config(), "attn_logit_softcapping", None)
        self._attention = "sdpa" if getattr(module, "_supports_sdpa", True) and softcap is None else "eager"

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Use the module for sampling: no gradients, no dropout, the engine's kind of attention; all of it undone after.

        `no_grad` and not `inference_mode`: buffers that a module makes on the way must stay usable in training.
        """
        training = [part for part in self.module.modules() if part.training]
        configs = _configs(self.module)
        before = [getattr(config, ATTENTION) for config in configs]
        try:
            self.module.eval()
            for config in configs:
                setattr(config, ATTENTION, self._attention)
            with torch.no_grad():
                yield
        finally:
            for config, implementation in zip(configs, before, strict=True):
                setattr(config, ATTENTION, implementation)
            for part in training:
                part.training = True

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, allowed_BTL: Tensor, key_positions_L: Tensor, cache: Cache, keep: Tensor | int = 0
    ) -> Tensor:
        """One pass over B sequences of T new tokens that see L cached or new ones; only inside `borrowed`.

        Args:
            tokens_BT: Shape (B, T), int64.
            positions_BT: Shape (B, T), int64: position of each token in its own sequence.
            allowed_BTL: Shape (B, T, L), true where a token may attend, sliding windows not yet regarded.
            key_positions_L: Shape (L,): position of each key in its own sequence.
            cache: Takes the new keys and values and gives those to attend to.
            keep: Which tokens' logits are wanted: a 1-D index, or 0 for all.

        Returns:
            Logits, shape (B, kept, V), float32 at least.
        """
        distance_BTL = positions_BT[:, :, None] - key_positions_L
        masks = {kind: self._mask(allowed_BTL, distance_BTL, window) for kind, window in self.windows.items()}
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        output = self.module(
            input_ids=tokens_BT, position_ids=positions_BT, attention_mask=mask, cache=cache, use_cache=True, logits_to_keep=keep
        )
        return _at_least_float32(output.logits)

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Natural log-prob at temperature 1 of each token after the first, by one plain pass; only inside `borrowed`."""
        if len(tokens) == 1:
            return []
        tokens_T = torch.tensor(tokens, device=self.device)
        logits_TV = _at_least_float32(self.module(input_ids=tokens_T[None, :-1], use_cache=False).logits)[0]
        chosen_T = logits_TV.gather(1, tokens_T[1:, None])[:, 0]
        return [float(value) for value in chosen_T - logits_TV.logsumexp(dim=-1)]

    def _mask(self, allowed_BTL: Tensor, distance_BTL: Tensor, window: int | None) -> Tensor:
        """Shape (B, 1, T, L): true where it may attend for `sdpa`; 0 and the lowest number, to be added, for `eager`."""
        seen = allowed_BTL if window is None else allowed_BTL & (distance_BTL < window)
        if self._attention == "sdpa":
            return seen[:, None]
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(seen, dtype=self.dtype).masked_fill_(~seen, lowest)[:, None]


def load_module(folder: Path, dtype: str) -> nn.Module:
    """Load the model of a Hugging Face folder, for sampling alone; on a GPU where there is one.

    Raises:
        ModelError: The folder holds no causal language model that transformers can load whole.
    """
    try:
        with _no_progress_bar():
            module, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(f"no causal language model can be loaded from {folder} ({reason})", "name its Hugging Face folder") from None
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelError(f"{folder} lacks the weights {missing[0]} (and {len(missing) - 1} others)", "the model's folder is damaged")
    for parameter in module.parameters():
        # Loaded parameters are views into a mapped file, at an alignment on which the kernels, and so the bits, depend.
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded: nn.Module = module.to(device).eval().requires_grad_(False)
    return loaded


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _windows(config: Any, max_context: int) -> dict[str, int | None]:
    """The kinds of attention layers, and how many tokens each may look back; null for all of them."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
    # GPT-Neo's name for the same thing; its local layers hold a mask of their own, which the slots' layout would break.
    kinds |= {f"{kind} attention" for kind in getattr(config, "attention_layers", ()) if kind != "global"}
    unknown = kinds - {FULL, SLIDING}
    if unknown:
        raise ModelError(
            f"the hf engine can't run layers of kind {', '.join(sorted(unknown))} ({config.model_type})",
            f"use a model whose layers are {FULL} or {SLIDING}",
        )
    if SLIDING not in kinds or not window or window >= max_context:
        return {FULL: None}
    return {FULL: None, SLIDING: window} if FULL in kinds else {SLIDING: window}


def _refuse_moving_positions(config: Any, max_context: int) -> None:
    """Refuse position encodings that depend on the longest row of a batch: a row's log-probs would change with its neighbours."""
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if kind.get("rope_type") not in ("dynamic", "longrope"):
            continue
        steady = kind.get("original_max_position_embeddings") or config.max_position_embeddings
        if max_context > steady:
            raise ModelError(
                f"position encodings of kind {kind['rope_type']} change with the longest sequence of a batch",
                f"set `model.max_context` to at most {steady}",
            )


def _configs(module: nn.Module) -> list[Any]:
    """Every configuration object that a part of the module reads its kind of attention from, once."""
    found = {id(config): config for part in module.modules() if hasattr(config := getattr(part, "config", None), ATTENTION)}
    return list(found.values())


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
