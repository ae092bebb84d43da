"""The experience table: immutable Parquet segments and overlays, asked through DuckDB."""

from rft_core.buffer.opening import Table, check_places, is_there, open_catalog, open_files, open_known, open_table
from rft_core.buffer.query import Questions, check_condition
from rft_core.buffer.selection import Selector, Wanted, chooser, selectors
from rft_core.buffer.store import ExperienceStore, Shaped, StoredGroup, Terms, read_answers
from rft_core.buffer.values import plain_rows
from rft_core.buffer.views import STATE_VIEWS, VIEWS

__all__ = [
    "STATE_VIEWS",
    "VIEWS",
    "ExperienceStore",
    "Questions",
    "Selector",
    "Shaped",
    "StoredGroup",
    "Table",
    "Terms",
    "Wanted",
    "check_condition",
    "check_places",
    "chooser",
    "is_there",
    "open_catalog",
    "open_files",
    "open_known",
    "open_table",
    "plain_rows",
    "read_answers",
    "selectors",
]
