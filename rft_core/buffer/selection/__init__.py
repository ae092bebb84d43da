"""Selection: which groups a step trains on. Whole groups only, all bounded by staleness."""

from rft_core.buffer.selection.base import Pool, Selector, Wanted, selectors
from rft_core.buffer.selection.choosing import chooser

__all__ = ["Pool", "Selector", "Wanted", "chooser", "selectors"]
