"""Claims as the trainer makes them, by what a recipe says of its selection."""

from typing import Any

from rft_core.buffer import Selector, selectors
from rft_core.catalog import Claim
from tests.buffer.table import Table


def build(name: str, **args: Any) -> Selector:
    return selectors.build(name, args, "selection")


def slots(table: Table, claim: Claim) -> list[int]:
    """The batch of a claim, as the slots of its groups."""
    columns, rows = table.catalog.relation("groups")
    names = list(columns)
    by_id = {found[names.index("group_id")]: found[names.index("slot")] for found in rows}
    return [by_id[group_id] for group_id in claim.group_ids]
