"""Train on what was sampled last."""

from rft_core.buffer.selection.base import ByAge, selectors


@selectors.register("freshest_first")
class FreshestFirst(ByAge):
    """Takes the groups of the newest policy version first: closest to on-policy. What lies too long becomes stale."""

    order = "freshest"
