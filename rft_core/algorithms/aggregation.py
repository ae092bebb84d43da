"""How the losses of tokens become one number: the choice that the group-relative algorithms share."""

from typing import Literal, Self

from pydantic import PositiveInt, model_validator

from rft_core.registry import ExtensionConfig

Aggregation = Literal["sequence_mean", "token_mean", "constant_length"]


class AggregationConfig(ExtensionConfig):
    """Arguments of every algorithm that lets the user choose."""

    aggregation: Aggregation = "sequence_mean"
    """`sequence_mean`: every answer weighs the same (GRPO); `token_mean`: every token of the batch does (DAPO);
    `constant_length`: the sum over `length` times the number of answers (Dr. GRPO)."""
    length: PositiveInt | None = None
    """The constant of `constant_length`, in tokens: use `rollout.max_tokens`."""

    @model_validator(mode="after")
    def _length_where_needed(self) -> Self:
        if (self.aggregation == "constant_length") != (self.length is not None):
            raise ValueError("`length` goes with `aggregation: constant_length`, and with no other")
        return self
