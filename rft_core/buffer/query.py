"""Questions in SQL over a run: DuckDB, in memory, over the segments and the catalog."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from rft_core.buffer import schema
from rft_core.catalog import RELATIONS, Catalog
from rft_core.errors import QueryError, SegmentError
from rft_core.run_dir import RunDir

VIEWS = {
    "experiences": "every stored row, with the `step` it was sampled for, its group's `fate`, and what the run's pipeline made of it: "
    "`shaped_reward`, `dropped_by`, `drop_reason`",
    "groups": "one row a group: task, step, size, status, reason, the step that trained it first",
    "leases": "one row a lease, as issued",
    "fates": "one row a lease with its one fate",
    "steps": "one row a committed step: status, version, checkpoint, times, and `metrics` as JSON",
    "claims": "one row a step: its batch, and the snapshot that it is read at",
    "evaluations": "one row a scored version of a held-out set, `metrics` as JSON",
    "answers": "one row a scored answer to a held-out task",
    "weights": "one row a version",
}
"""What `rft sql` can be asked about."""

_ARROW: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64()}

_EXPERIENCES = """
create view experiences as
select e.*, g.step, g.slot, f.fate, o.shaped_reward, o.dropped_by, o.drop_reason
from stored e join groups g using (group_id) join fates f on f.lease_id = e.lease_id
left join overlay o on o.experience_id = e.experience_id
"""


class Questions:
    """A DuckDB connection over one run as it is now; nothing outside the run can be read through it.

    Args:
        run_dir: The run.
        catalog: Its catalog.
        pipeline: The version of the run's own pipeline, whose overlays `experiences` shows.
    """

    def __init__(self, run_dir: RunDir, catalog: Catalog, pipeline: str) -> None:
        self._run_dir = run_dir
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("set python_enable_replacements = false")
        for name in RELATIONS:
            self._connection.register(name, _arrow(catalog, name))
        self._register("stored", [file.uri for _, file in catalog.segments.files()], schema.EXPERIENCES)
        self._register("overlay", [file.uri for file in catalog.segments.overlay_files(pipeline)], schema.OVERLAY)
        evaluated = catalog.relation("evaluations")
        self._register("answers", [row[list(evaluated[0]).index("uri")] for row in evaluated[1]], schema.EVALUATION)
        self._connection.execute(_EXPERIENCES)
        self._connection.execute("set enable_external_access = false")
        self._connection.execute("set lock_configuration = true")

    def ask(self, question: str) -> pa.Table:
        """Answer a question; a statement that has no answer gives an empty table.

        Raises:
            QueryError: DuckDB's message, with its position.
        """
        if not question.strip():
            raise QueryError("the question is empty", f"the views are {', '.join(VIEWS)}")
        try:
            answer = self._connection.sql(question)
            return pa.table({}) if answer is None else answer.to_arrow_table()
        except duckdb.Error as error:
            raise QueryError(str(error).strip(), f"the views are {', '.join(VIEWS)}") from None

    def _register(self, name: str, uris: list[str], columns: pa.Schema) -> None:
        paths = [self._run_dir.resolve(uri) for uri in uris]
        missing = [str(path) for path in paths if not Path(path).exists()]
        if missing:
            raise SegmentError(f"{missing[0]} is missing", "the catalog holds it as written; restore it from a copy")
        source = pads.dataset([str(path) for path in paths], schema=columns, format="parquet") if paths else columns.empty_table()
        self._connection.register(name, source)


def _arrow(catalog: Catalog, name: str) -> pa.Table:
    columns, rows = catalog.relation(name)
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    types = pa.schema([(column, _ARROW[kind]) for column, kind in columns.items()])
    return pa.table([pa.array(column, type=field.type) for column, field in zip(values, types, strict=True)], schema=types)
