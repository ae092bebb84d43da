"""The weight store."""

from rft_core.weights.store import WeightStore, fetch, newest_complete

__all__ = ["WeightStore", "fetch", "newest_complete"]
