"""Questions in SQL over a run: DuckDB, in memory, over the segments and the catalog."""

import re
from collections.abc import Sequence
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from rft_core.buffer import files, schema
from rft_core.buffer.labels import Combine
from rft_core.buffer.scan import Numbered, Scan
from rft_core.catalog import Catalog
from rft_core.errors import QueryError
from rft_core.run_dir import EVALUATIONS, OVERLAYS, SEGMENTS
from rft_core.storage import Storage

VIEWS = {
    "experiences": "every stored row, with the `step` it was sampled for, its group's `fate`, what was said of it since "
    "(`labelled_reward`), and what the run's pipeline made of it: `shaped_reward`, `dropped_by`, `drop_reason`",
    "attempts": "the last row of each attempt that did not fail, with `final_reward`: shaped, else labelled, else raw",
    "groups": "one row a group: task, step, size, status, reason, what it waits for, priority, uses, the step that trained it first",
    "leases": "one row a lease, as issued",
    "fates": "one row a lease with its one fate",
    "ledger": "one row a fate: how many leases have it; they add up to the leases issued",
    "labels": "one row a label: what an author said of an experience, its newest version last",
    "supervised": "the rows that experts and people wrote: what supervised fine-tuning learns from",
    "preferences": "one row a group whose attempts differ: the best answer `chosen`, the worst `rejected`",
    "steps": "one row a committed step: status, version, checkpoint, times, and `metrics` as JSON",
    "claims": "one row a step: its batch, the state that it is read at, and what was left out, by reason",
    "evaluations": "one row a scored version of a held-out set, `metrics` as JSON",
    "answers": "one row a scored answer to a held-out task",
    "weights": "one row a version",
    "segments": "one row a file of experiences",
    "snapshots": "one row a pinned state of the table",
}
"""What `rft sql` can be asked about."""

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

_LABELLED = {
    "newest": "select experience_id, arg_max(value, sequence) as labelled_reward from labels where field = 'reward' group by 1",
    "mean": "select experience_id, favg(last) as labelled_reward from (select experience_id, author, arg_max(value, sequence) as last "
    "from labels where field = 'reward' group by 1, 2) group by 1",
}
"""The label of the reward that counts, by experience; as in `rft_core.buffer.labels.combined`."""

_SHAPED = """
select experience_id, unnest(arg_max({shaped_reward: shaped_reward, dropped_by: dropped_by, drop_reason: drop_reason}, sequence))
from _overlay group by 1"""

_DERIVED = {
    "_shaped": (_SHAPED, ("_overlay",)),
    "experiences": (
        """
select e.*, g.step, g.slot, f.fate, l.labelled_reward, o.shaped_reward, o.dropped_by, o.drop_reason
from _stored e join groups g using (group_id) join fates f on f.lease_id = e.lease_id
left join _labelled l on l.experience_id = e.experience_id
left join _shaped o on o.experience_id = e.experience_id""",
        ("_stored", "groups", "fates", "_labelled", "_shaped"),
    ),
    "attempts": (
        """
with told as (
    select * replace (last_value(labelled_reward ignore nulls) over attempt_rows as labelled_reward),
           turn_index = max(turn_index) over attempt_rows as is_last
    from experiences
    window attempt_rows as (
        partition by group_id, attempt order by turn_index rows between unbounded preceding and unbounded following))
select * exclude (is_last), coalesce(shaped_reward, labelled_reward, reward) as final_reward from told where is_last and error is null""",
        ("experiences",),
    ),
    "supervised": ("select * from experiences where source in ('expert', 'human') and error is null", ("experiences",)),
    "preferences": (
        """
with ranked as (
    select *, row_number() over (partition by group_id order by final_reward desc, attempt) as best,
           row_number() over (partition by group_id order by final_reward, attempt desc) as worst
    from attempts where final_reward is not null and dropped_by is null)
select c.group_id, c.task_id, c.step, c.prompt_text, c.response_text as chosen, r.response_text as rejected,
       c.experience_id as chosen_id, r.experience_id as rejected_id, c.tokens as chosen_tokens, r.tokens as rejected_tokens,
       c.prompt_length, c.final_reward - r.final_reward as margin
from ranked c join ranked r using (group_id) where c.best = 1 and r.worst = 1 and c.final_reward > r.final_reward""",
        ("attempts",),
    ),
}
"""Views over other relations: what they are, and what they ask."""


class Questions:
    """A DuckDB connection over one run as it is now, or was at a state; nothing outside the run can be read through it.

    What a question does not name is not read. A file that is missing or damaged is left out of the answer, and named in `damaged`.

    Args:
        storage: Where the run's files are.
        catalog: Its catalog.
        pipeline: The version of the run's own pipeline, whose overlays `experiences` shows; null for none.
        combine: What counts where labels of one experience differ.
        at: Sequence number of the state whose rows, labels and overlays are shown; what became of them is always as it is now.
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
            QueryError: DuckDB's message, with its position.
        """
        self._prepare(question)
        try:
            return self._answer(question)
        except duckdb.Error as error:
            if isinstance(error, _MISTAKES) or not self._look_again():
                raise _refused(self._connection, question, error) from None
        try:
            return self._answer(question)
        except duckdb.Error as error:
            raise _refused(self._connection, question, error) from None

    def batches(self, question: str, rows: int = 10_000) -> pa.RecordBatchReader:
        """The answer to a question part by part, for answers that don't fit into memory.

        What is wrong with a file shows at the latest when its part is read: the reader raises OSError then, and the answer is not whole.

        Raises:
            QueryError: DuckDB's message, with its position.
        """
        self._prepare(question)
        try:
            answer = self._connection.sql(question)
            if answer is None:
                raise QueryError("the question has no answer", "a `select` is right")
            return answer.to_arrow_reader(rows)
        except duckdb.Error as error:
            raise _refused(self._connection, question, error) from None

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

    def _answer(self, question: str) -> pa.Table:
        answer = self._connection.sql(question)
        return pa.table({}) if answer is None else answer.to_arrow_table()

    def _prepare(self, question: str) -> None:
        """Register what a question names; all of it where it names nothing, as in `show tables`."""
        if not question.strip():
            raise QueryError("the question is empty", f"the views are {', '.join(VIEWS)}")
        words = set(re.findall(r"[a-z_]+", question.lower()))
        for name in words & VIEWS.keys() or VIEWS.keys():
            self._need(name)

    def _need(self, name: str) -> None:
        if name in self._registered:
            return
        if name in _DERIVED:
            definition, needs = _DERIVED[name]
            for need in needs:
                self._need(need)
            self._connection.execute(f"create view {name} as {definition}")
        elif name == "_labelled":
            self._need("labels")
            self._connection.execute(f"create view _labelled as {_LABELLED[self._combine]}")
        else:
            self._connection.register(name, self._source(name))
        self._registered.add(name)

    def _source(self, name: str) -> pa.Table | pads.Dataset:
        """What lies behind a name: files, or a relation of the catalog."""
        if name in _COLUMNS:
            listed = partial(self._listed, name)
            scan = self._scans[name] = Scan(self._storage, _FOLDERS[name], _COLUMNS[name], listed, self.damaged)
            return scan.relation()
        relation = _arrow(self._catalog, name)
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
    # DuckDB takes an Arrow scan for one row, and would build its hash tables over the segments: four times the memory, measured at 1M rows.
    connection.execute("set disabled_optimizers = 'join_order,build_side_probe_side'")
    connection.execute("set lock_configuration = true")
    return connection


def _refused(connection: duckdb.DuckDBPyConnection, question: str, error: duckdb.Error) -> QueryError:
    """DuckDB's message. It leaves the position out when it makes a relation of a question, and not when it executes it."""
    if isinstance(error, duckdb.BinderException | duckdb.CatalogException) and len(connection.extract_statements(question)) == 1:
        try:
            connection.execute(question)
        except duckdb.Error as located:
            error = located
    return QueryError(str(error).strip(), f"the views are {', '.join(VIEWS)}")


def _arrow(catalog: Catalog, name: str) -> pa.Table:
    columns, rows = catalog.relation(name)
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    types = pa.schema([(column, _ARROW[kind]) for column, kind in columns.items()])
    return pa.table([pa.array(column, type=field.type) for column, field in zip(values, types, strict=True)], schema=types)
