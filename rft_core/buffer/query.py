"""Questions in SQL over a run: DuckDB, in memory, over the segments and the catalog."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from rft_core.buffer import files, schema
from rft_core.buffer.labels import Combine
from rft_core.buffer.scan import Numbered, Scan
from rft_core.buffer.views import DERIVED, DERIVED_AT_A_STATE, LABELLED, STATE_VIEWS, VIEWS
from rft_core.catalog import Catalog
from rft_core.errors import QueryError, SegmentError
from rft_core.run_dir import EVALUATIONS, OVERLAYS, SEGMENTS
from rft_core.storage import Storage

T = TypeVar("T")

_ARROW: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_COLUMNS = {
    "_stored": schema.EXPERIENCES,
    "_overlay": schema.OVERLAY.append(pa.field("sequence", pa.int64())),
    "answers": schema.EVALUATION,
}
"""The relations that lie in files."""
_FOLDERS = {"_stored": SEGMENTS, "_overlay": OVERLAYS, "answers": EVALUATIONS}

_MISTAKES = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.PermissionException,
)
"""Errors that are in a question: no damaged file causes them."""
_FAILURES = (duckdb.Error, OSError, pa.ArrowException)
"""How a question fails: the last two are what a reader of record batches makes of DuckDB's own."""


class Questions:
    """A DuckDB connection over one run as it is now, or was at a state; nothing outside the run can be read through it.

    What a question does not name is not read. A file that is missing or damaged is left out of the answer, and named in `damaged`.

    Args:
        storage: Where the run's files are.
        catalog: Its catalog.
        pipeline: The version of the run's own pipeline, whose overlays `experiences` shows; null for none.
        combine: What counts where labels of one experience differ.
        at: Sequence number of the state that is asked: it has `STATE_VIEWS` alone, and `experiences` has no `fate` there.
    """

    def __init__(
        self, storage: Storage, catalog: Catalog, pipeline: str | None, combine: Combine = "newest", at: int | None = None
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._pipeline = pipeline
        self._combine = combine
        self._at = at
        self._registered: set[str] = set()
        self._scans: dict[str, Scan] = {}
        self.damaged: dict[str, str] = {}
        """By URI, the files that could not be read, with what is wrong with them."""
        self._connection = _connect()

    def ask(self, question: str) -> pa.Table:
        """Answer a question; a statement that has no answer gives an empty table.

        Raises:
            QueryError: DuckDB's message, with its position; or the answer has two columns of one name.
        """
        self._prepare(question)
        return self._retried(question, lambda: self._answer(question))

    def batches(self, question: str, rows: int = 10_000) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The answer to a question part by part, for answers that don't fit into memory.

        What is wrong with a file may show only when its part is read; the parts before are no whole answer then.

        Returns:
            The columns, and the parts, which raise as this does.

        Raises:
            QueryError: DuckDB's message, with its position; or the answer has two columns of one name.
            SegmentError: A file that the question asks is missing or damaged.
        """
        self._prepare(question)
        reader, first = self._retried(question, lambda: self._begin(question, rows))
        self._require_whole()
        return reader.schema, self._parts(question, reader, first)

    def groups_where(self, condition: str) -> set[str]:
        """Ids of the groups with at least one row that a condition holds for.

        Args:
            condition: In DuckDB's SQL, over the columns of `experiences`.

        Raises:
            QueryError: DuckDB's message, with its position.
        """
        return set(self.ask(_groups_where(condition))["group_id"].to_pylist())

    def groups_of(self, experience_ids: Sequence[str]) -> dict[str, str]:
        """The group of each of these experiences that is in the table."""
        self._connection.register("_wanted", pa.table({"experience_id": pa.array(experience_ids, pa.string())}))
        answer = self.ask("select experience_id, group_id from experiences semi join _wanted using (experience_id)")
        return dict(zip(answer["experience_id"].to_pylist(), answer["group_id"].to_pylist(), strict=True))

    def _relation(self, question: str) -> duckdb.DuckDBPyRelation | None:
        answer = self._connection.sql(question)
        names = [] if answer is None else answer.columns
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise QueryError(f"the answer has more than one column {twice[0]}", "give each a name of its own, as in `select a.x as a_x`")
        return answer

    def _answer(self, question: str) -> pa.Table:
        answer = self._relation(question)
        return pa.table({}) if answer is None else answer.to_arrow_table()

    def _begin(self, question: str, rows: int) -> tuple[pa.RecordBatchReader, pa.RecordBatch | None]:
        """An answer as far as its first part; null if it has none."""
        answer = self._relation(question)
        if answer is None:
            raise QueryError("the question has no answer", "a `select` is right")
        reader = answer.to_arrow_reader(rows)
        return reader, _next_of(reader)

    def _parts(self, question: str, reader: pa.RecordBatchReader, first: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        part = first
        while part is not None:
            yield part
            try:
                part = _next_of(reader)
            except _FAILURES as error:
                if self._look_again():
                    self._require_whole()
                    raise QueryError("files were merged and deleted while their rows were read", "ask again") from None
                raise self._refused(question, error) from None

    def _retried(self, question: str, answer: Callable[[], T]) -> T:
        """An answer; where it fails over files that are damaged or were merged meanwhile, that of the files without them."""
        for _ in range(_TRIES - 1):
            try:
                return answer()
            except _FAILURES as error:
                if isinstance(error, _MISTAKES) or not self._look_again():
                    raise self._refused(question, error) from None
        try:
            return answer()
        except _FAILURES as error:
            raise self._refused(question, error) from None

    def _refused(self, question: str, error: Exception) -> QueryError:
        if self._at is None:
            return _refused(self._connection, question, error)
        remedy = f"a pinned state has the views {', '.join(STATE_VIEWS)}, and none of them has `fate`: all else is known as it is now only"
        return _refused(self._connection, question, error, remedy)

    def _require_whole(self) -> None:
        for uri, problem in self.damaged.items():
            raise SegmentError(f"{uri} of {self._storage.url} {problem}, and the answer asks it", "`rft fsck` lists all that is damaged")

    def _prepare(self, question: str) -> None:
        """Register what a question names; all of it where it names nothing, as in `show tables`."""
        if not question.strip():
            raise QueryError("the question is empty", _VIEWS_ARE)
        words = set(re.findall(r"[a-z_]+", question.lower()))
        views = set(VIEWS if self._at is None else STATE_VIEWS)
        for name in words & views or views:
            self._need(name)

    def _need(self, name: str) -> None:
        if name in self._registered:
            return
        derived = DERIVED if self._at is None else DERIVED_AT_A_STATE
        if name in derived:
            definition, needs = derived[name]
            for need in needs:
                self._need(need)
            self._connection.execute(f"create view {name} as {definition}")
        elif name == "_labelled":
            self._need("labels")
            self._connection.execute(f"create view _labelled as {LABELLED[self._combine]}")
        else:
            self._connection.register(name, self._source(name))
        self._registered.add(name)

    def _source(self, name: str) -> pa.Table | pads.Dataset:
        """What lies behind a name: files, or a relation of the catalog."""
        if name in _COLUMNS:
            listed = partial(self._listed, name)
            scan = self._scans[name] = Scan(self._storage, _FOLDERS[name], _COLUMNS[name], listed, self.damaged)
            return scan.relation()
        relation = _arrow(self._catalog, "groups" if name == "_slots" else name)
        return relation.filter(pc.field("sequence") <= self._at) if name == "labels" and self._at is not None else relation

    def _listed(self, name: str) -> list[Numbered]:
        """The files behind a name as the catalog has them now."""
        segments = self._catalog.segments
        if name == "answers":
            return [(0, file) for file in self._catalog.versions.answer_files()]
        if name == "_overlay" and self._pipeline is None:
            return []
        if self._at is not None and (deleted := files.num_deleted(self._catalog, self._at, None if name == "_stored" else self._pipeline)):
            raise QueryError(
                f"the table can't be shown as it was at {self._at}: {deleted} of its files were merged or let go since, and deleted",
                "pin a state for as long as it is needed",
            )
        if name == "_stored":
            return [(0, file) for _, file in segments.files(self._at)]
        return [(number, file) for _, number, file in segments.overlay_files(self._pipeline, self._at)]

    def _look_again(self) -> bool:
        """After a question failed: leave damaged files out, and find those that were merged meanwhile; true if that changed anything."""
        again = [name for name, scan in self._scans.items() if scan.verify()]
        for name in again:
            self._connection.unregister(name)
            self._connection.register(name, self._scans[name].relation())
        return bool(again)


def check_condition(condition: str) -> None:
    """Refuse a condition that is not one over the columns of `experiences`, without any run.

    Raises:
        QueryError: DuckDB's message, with its position.
    """
    with _connect() as connection:
        connection.register("_stored", schema.EXPERIENCES.empty_table())
        connection.execute(_EMPTY)
        question = _groups_where(condition)
        try:
            connection.sql(question).fetchall()
        except duckdb.Error as error:
            raise _refused(connection, question, error) from None


_GROUPS_WHERE = "select distinct group_id from experiences where (\n{condition}\n)"

_EMPTY = """
create view experiences as select *, null::bigint as step, null::bigint as slot, null::varchar as fate, null::double as labelled_reward,
null::double as shaped_reward, null::varchar as dropped_by, null::varchar as drop_reason from _stored"""


def _groups_where(condition: str) -> str:
    if not condition.strip():
        raise QueryError("the condition is empty", "as in `reward > 0`, over the columns of `experiences`")
    return _GROUPS_WHERE.format(condition=condition)


def _connect() -> duckdb.DuckDBPyConnection:
    """A database in memory from which nothing outside can be reached."""
    connection = duckdb.connect(":memory:")
    connection.execute("set python_enable_replacements = false")
    connection.execute("set enable_external_access = false")
    with suppress(duckdb.InvalidInputException):  # it can't be set in a notebook without ipywidgets, where people may see it
        connection.execute("set enable_progress_bar = false")  # it would be drawn on stdout, in the middle of an answer in JSON
    # DuckDB takes an Arrow scan for one row, and would build its hash tables over the segments: four times the memory, measured at 1M rows.
    connection.execute("set disabled_optimizers = 'join_order,build_side_probe_side'")
    connection.execute("set lock_configuration = true")
    return connection


_TRIES = 10
"""How often a question is asked while what it reads is merged and deleted under it, each time by another compaction."""
_VIEWS_ARE = f"the views are {', '.join(VIEWS)}"


def _refused(connection: duckdb.DuckDBPyConnection, question: str, error: Exception, remedy: str = _VIEWS_ARE) -> QueryError:
    """DuckDB's message. It leaves the position out when it makes a relation of a question, and not when it executes it."""
    if isinstance(error, duckdb.BinderException | duckdb.CatalogException) and len(connection.extract_statements(question)) == 1:
        try:
            connection.execute(question)
        except duckdb.Error as located:
            error = located
    return QueryError(str(error).strip(), remedy)


def _next_of(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None


def _arrow(catalog: Catalog, name: str) -> pa.Table:
    columns, rows = catalog.relation(name)
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    types = pa.schema([(column, _ARROW[kind]) for column, kind in columns.items()])
    return pa.table([pa.array(column, type=field.type) for column, field in zip(values, types, strict=True)], schema=types)
