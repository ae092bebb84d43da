"""From a recipe's selection to the choice that a claim is made with."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from rft_core.buffer.selection.base import Pool, Selector, Wanted
from rft_core.buffer.selection.where import Matching
from rft_core.catalog import Choice


def chooser(selector: Selector, wanted: Wanted, matching: Collection[str] | None, skip_short: bool) -> Callable[[Pool], Choice]:
    """What chooses a step's batch within the claim's transaction.

    Args:
        selector: The recipe's selection.
        wanted: The batch that the step asks for.
        matching: Ids of the groups that its condition holds for; null where it has none.
        skip_short: Choose nothing rather than a batch that is not full.
    """

    def choose(pool: Pool) -> Choice:
        if matching is None:
            choice = selector.choose(pool, wanted)
        else:
            filtered = Matching(pool, matching)
            choice = selector.choose(filtered, wanted)
            choice = replace(choice, left_out=Counter(choice.left_out) + filtered.passed_over)
        if skip_short and len(choice.groups) < wanted.count:
            return Choice([], Counter(choice.left_out) + Counter({"short_batch": len(choice.groups)}))
        return choice

    return choose
