"""Train on what was sampled first."""

from rft_core.buffer.selection.base import ByAge, selectors


@selectors.register("oldest_first")
class OldestFirst(ByAge):
    """Takes the groups of the oldest policy version first, in the order in which their tasks were leased. Nothing waits for long."""

    order = "oldest"
