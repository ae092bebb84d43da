"""The experience table: immutable Parquet segments and overlays, asked through DuckDB."""

from rft_core.buffer.query import VIEWS, Questions
from rft_core.buffer.selection import Selected, oldest_first
from rft_core.buffer.store import ExperienceStore, Shaped, StoredGroup, read_answers

__all__ = ["VIEWS", "ExperienceStore", "Questions", "Selected", "Shaped", "StoredGroup", "oldest_first", "read_answers"]
