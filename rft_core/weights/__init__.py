"""The weight store."""

from rft_core.weights.store import READER_TIMEOUT_S, WeightStore, fetch, newest_complete

__all__ = ["READER_TIMEOUT_S", "WeightStore", "fetch", "newest_complete"]
