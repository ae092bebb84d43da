"""What a run would do: every value that follows from its configuration, with the reason. Pure, without torch or network."""

from rft_core.plan.derived import Derived
from rft_core.plan.facts import (
    admission,
    context_of,
    is_due,
    last_step,
    max_staleness,
    open_held_out,
    open_train,
    short_batch,
    with_changes,
)
from rft_core.plan.resolving import NUM_PROMPTS_CHECKED, Plan, as_json, resolve

__all__ = [
    "NUM_PROMPTS_CHECKED",
    "Derived",
    "Plan",
    "admission",
    "as_json",
    "context_of",
    "is_due",
    "last_step",
    "max_staleness",
    "open_held_out",
    "open_train",
    "resolve",
    "short_batch",
    "with_changes",
]
