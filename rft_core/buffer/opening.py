"""Opening the table of a run: its catalog, the place of its files, and the terms on which it takes rows."""

from dataclasses import dataclass
from pathlib import Path

from rft_core.buffer.selection import Selector, selectors
from rft_core.buffer.store import ExperienceStore, Terms
from rft_core.catalog import Catalog
from rft_core.config import RunConfig, TableConfig
from rft_core.errors import ConfigError, RunError, UserError
from rft_core.run_dir import RunDir
from rft_core.storage import Storage, check_place, open_storage
from rft_core.variables import revealed, variable_of

OWNER = "catalog.txt"
"""The file that names, in a place elsewhere, the catalog whose files lie there."""
_POSTGRES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class Table:
    """The experience table of one run."""

    catalog: Catalog
    storage: Storage
    store: ExperienceStore
    selector: Selector


def open_table(run_dir: RunDir, config: RunConfig, pipeline: str | None, writer: str) -> Table:
    """Open the table of a run, as its recipe says; it is made if it is not there.

    Args:
        run_dir: The run.
        config: Its recipe.
        pipeline: Version of its pipeline of operators; null for none.
        writer: Who opens it: what a killed process of this name left is swept under it.

    Raises:
        UserError: The catalog or the place of the files can't be opened; names what is missing, and nothing secret.
    """
    storage = open_files(run_dir, config.table)
    if config.table.files is not None and config.table.catalog is None:
        _require_own(run_dir, storage)
    spec = config.selection
    selector = selectors.build(spec.name, spec.args, "selection")
    terms = Terms(
        writer=writer,
        awaits_rewards=bool(config.rewards),
        awaits_each=config.labels.await_each,
        deadline_s=config.labels.deadline_s,
        pipeline=pipeline,
        score=selector.score,
        then=config.labels.then,
        combine=config.labels.combine,
    )
    catalog = open_catalog(run_dir, config.table)  # last: nothing after it fails, and leaves it open
    return Table(catalog, storage, ExperienceStore(storage, catalog, terms), selector)


def open_known(run_dir: RunDir, config: RunConfig, pipeline: str | None, writer: str) -> Table:
    """Open the table of a run that was started before, as `open_table` does.

    Raises:
        RunError: Its catalog is gone, or another one is in its place: a new one would begin with the first task again.
        UserError: The catalog or the place of the files can't be opened.
    """
    if not is_there(run_dir, config.table):
        raise RunError(f"{run_dir.root} has no catalog", "restore catalog.db from a copy, or set another `name` for a new run")
    table = open_table(run_dir, config, pipeline, writer)
    if not table.catalog.versions.all() and not table.catalog.leases.num_issued():  # version 0 is written down when a run begins
        place = table.catalog.place
        table.catalog.close()
        raise RunError(f"the catalog {place} knows nothing of {run_dir.root}", "restore it from a copy, or name the one that the run has")
    return table


def open_catalog(run_dir: RunDir, config: TableConfig) -> Catalog:
    """The catalog of a run.

    Raises:
        ConfigError: The environment variable that the recipe names is not set, or holds no address of PostgreSQL.
        RunError: It can't be opened.
    """
    if config.catalog is None:
        return Catalog(f"sqlite:///{run_dir.catalog_file}")
    url = revealed("table.catalog", config.catalog)
    if not url.startswith(_POSTGRES):  # a SQLite file would be one for all runs: it has no room for each
        shown = config.catalog.partition("://")[0]
        raise ConfigError("table.catalog", shown, "it must be postgresql://USER:PASSWORD@HOST/DATABASE, in a variable too")
    return Catalog(url, f"tidemill_{run_dir.run_id}")


def open_files(run_dir: RunDir, config: TableConfig) -> Storage:
    """The place of a run's segments, overlays and scored answers.

    Raises:
        UserError: It can't be opened.
    """
    if config.files is None:
        return open_storage(run_dir.root)
    return open_storage(f"{config.files.rstrip('/')}/{run_dir.run_id}", config.options)


def _require_own(run_dir: RunDir, storage: Storage) -> None:
    """Tie a place elsewhere to the run's own catalog, or refuse it: a copy of a run goes by the same id, and would delete its files.

    A run that was moved takes its place along, since its catalog is no longer where it was.
    """
    mine = str(run_dir.catalog_file.resolve())
    try:
        owner = storage.read(OWNER).to_pybytes().decode("utf-8", "replace")
    except FileNotFoundError:
        owner = ""
    if owner not in ("", mine) and Path(owner).exists():
        raise RunError(
            f"{storage.url} holds the files of the run whose catalog is {owner}, and {run_dir.root} is a copy of that run",
            "ask the first one; only a run whose files lie in its own folder can be copied",
        )
    if owner != mine:
        storage.write(OWNER, mine.encode())


def is_there(run_dir: RunDir, config: TableConfig) -> bool:
    """Whether the run has a catalog, without making one."""
    return config.catalog is not None or run_dir.catalog_file.exists()


def check_places(config: TableConfig) -> None:
    """Refuse what can't work, without looking at any server.

    Raises:
        ConfigError: Names the key; shows no password.
    """
    catalog = config.catalog
    if catalog is not None and variable_of(catalog) is None:
        if not catalog.startswith(_POSTGRES):
            raise ConfigError(
                "table.catalog", catalog.partition("://")[0], "postgresql://USER@HOST/DATABASE, env:NAME, or nothing for SQLite"
            )
        if ":" in catalog.partition("://")[2].rpartition("@")[0] or "password=" in catalog:
            raise ConfigError(
                "table.catalog", "an address with a password in it", "recipes are shown to people: put it in a variable, env:NAME"
            )
    if config.files is None:
        if config.options:
            raise ConfigError("table.options", sorted(config.options), "they are those of a store, and table.files names none")
        return
    try:
        in_store = check_place(config.files, config.options)
    except UserError as error:
        raise ConfigError("table.files", error.found, error.remedy) from None
    if in_store and catalog is None:
        raise ConfigError("table.files", config.files, "files in an object store need table.catalog: a SQLite file serves one machine")
