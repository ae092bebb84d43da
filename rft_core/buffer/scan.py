"""Many files as one relation that DuckDB can ask. What is damaged is left out of it, and named."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from rft_core.buffer import files
from rft_core.catalog import StoredFile
from rft_core.storage import Stat, Storage

_PARQUET = pads.ParquetFileFormat(default_fragment_scan_options=pads.ParquetFragmentScanOptions(page_checksum_verification=True))
_READERS = 16
"""Footers that are read side by side: in an object store each takes a round trip."""

Numbered = tuple[int, StoredFile]
"""A file, and the sequence number under which it became part of the table."""


def amiss(storage: Storage, folder: str, listed: Callable[[], Sequence[StoredFile]]) -> dict[str, str]:
    """The files that are missing or have another size, by URI, with what is wrong with them: seen without reading any.

    Args:
        storage: Where the files are.
        folder: That they lie in.
        listed: Tells which files they are now. They are looked for after that, and it is asked again when some seem to be missing:
            a run may append meanwhile, and a compaction delete what it merged.
    """
    asked = listed()
    there = storage.files(folder) if asked else {}
    found = {file.uri: problem for file in asked if (problem := _amiss(there, file)) is not None}
    still = {file.uri for file in listed()} if found else set()
    return {uri: problem for uri, problem in found.items() if uri in still}


class Scan:
    """The files behind one relation.

    The pages of a file carry checksums, which are verified as they are read. Its footer has none: where it does not say what it must,
    the whole file is read and compared with its hash.

    Args:
        storage: Where the files are.
        folder: That they lie in.
        columns: Of the relation; a last one called `sequence` is the sequence number of the file.
        listed: Tells which files they are now. It is asked again after a failure: a compaction may have merged and deleted some meanwhile.
        damaged: Where files that can't be read are named by URI, with what is wrong with them.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        columns: pa.Schema,
        listed: Callable[[], Sequence[Numbered]],
        damaged: MutableMapping[str, str],
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._columns = columns
        self._listed = listed
        self._damaged = damaged
        self._read: list[StoredFile] = []

    def relation(self) -> pa.Table | pads.Dataset:
        """The files that are there, and whole as far as their sizes and footers tell."""
        while True:
            found, problems = self._open(self._listed())
            if not problems or problems.keys() <= self._uris():
                break
        self._damaged.update(problems)
        self._read = [file for file, _ in found]
        if not found:
            return self._columns.empty_table()
        filesystem, _ = self._storage.dataset_source()
        return pads.FileSystemDataset([fragment for _, fragment in found], self._columns, _PARQUET, filesystem)

    def verify(self) -> bool:
        """Read all files of the relation; true if it has to be made again, since some are damaged or are no part of the table any more."""
        problems = {file.uri: problem for file in self._read if (problem := self._problem(file))}
        if problems:
            still = self._uris()
            self._damaged.update({uri: problem for uri, problem in problems.items() if uri in still})
        return bool(problems)

    def _uris(self) -> set[str]:
        """The files that are part of the table now: others are not damaged but gone, and their rows are in another file."""
        return {file.uri for _, file in self._listed()}

    def _open(self, listed: Sequence[Numbered]) -> tuple[list[tuple[StoredFile, pads.Fragment]], dict[str, str]]:
        """Those of some files that can be read, and what is wrong with the others."""
        there = self._storage.files(self._folder) if listed else {}
        problems: dict[str, str] = {}
        good: list[Numbered] = []
        for number, file in listed:
            problem = _amiss(there, file)
            if problem is not None:
                problems[file.uri] = problem
            elif file.uri not in self._damaged:
                good.append((number, file))
        fragments = self._fragments(good)
        with ThreadPoolExecutor(_READERS) as readers:
            odd = readers.map(self._is_odd, fragments, [file for _, file in good])
        found = []
        for (_, file), fragment, is_odd in zip(good, fragments, odd, strict=True):
            problem = self._problem(file) if is_odd else None
            if problem is None:
                found.append((file, fragment))
            else:
                problems[file.uri] = problem
        return found, problems

    def _fragments(self, numbered: Sequence[Numbered]) -> list[pads.Fragment]:
        filesystem, base = self._storage.dataset_source()
        return [
            _PARQUET.make_fragment(
                f"{base}/{file.uri}",
                filesystem=filesystem,
                partition_expression=pc.field("sequence") == number if "sequence" in self._columns.names else None,
            )
            for number, file in numbered
        ]

    def _is_odd(self, fragment: pads.Fragment, file: StoredFile) -> bool:
        """Whether the footer of a file is not what was written; it stays in memory for the questions that follow."""
        try:
            fragment.ensure_complete_metadata()
        except (pa.ArrowException, OSError):
            return True
        found, metadata = fragment.physical_schema, fragment.metadata
        known = all(field.name in self._columns.names and self._columns.field(field.name).type == field.type for field in found)
        required = {field.name for field in self._columns if not field.nullable}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        rows = sum(group.num_rows for group in groups)
        return (
            not known
            or not required <= set(found.names)
            or rows != metadata.num_rows
            or (file.rows > 0 and rows != file.rows)
            or any(group.column(number).compression != "ZSTD" for group in groups for number in range(group.num_columns))
        )

    def _problem(self, file: StoredFile) -> str | None:
        """What is wrong with a file, read as a whole; null if nothing is."""
        try:
            return files.damage(self._storage.read(file.uri), file)
        except FileNotFoundError:
            return files.MISSING


def _amiss(there: Mapping[str, Stat], file: StoredFile) -> str | None:
    """What is wrong with a file as far as a listing of its folder tells; null if nothing is."""
    if file.uri not in there:
        return files.MISSING
    found = there[file.uri].bytes
    return files.other_size(found, file) if file.bytes and found != file.bytes else None
