"""The MLflow store of a run: where it is, whether it answers, and the run's one entry in it."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException

from rft_core import metrics
from rft_core.errors import UserError
from rft_core.monitor.place import SQLITE, without_secrets

RUN_TAG = "tidemill.run_id"
"""What a run is found by."""

_NOTE_TAG = "mlflow.note.content"

for _name in ("mlflow", "alembic"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # they tell of each table that they make


@contextmanager
def answering(uri: str) -> Iterator[None]:
    """Turn what a store raises into one line.

    Raises:
        UserError: The store can't be reached, or refuses.
    """
    try:
        yield
    except (MlflowException, OSError) as error:
        raise _failure(uri, error) from error


def connect(uri: str) -> MlflowClient:
    """Connect to a store, making its tables where it has none.

    Raises:
        UserError: The store can't be reached, or is no MLflow store.
    """
    if uri.startswith(("http://", "https://")):
        _probe(uri)
    try:
        _make_tables(uri)
        return MlflowClient(tracking_uri=uri)
    except Exception as error:  # the driver of each kind of database raises its own
        raise _failure(uri, error) from error


def enter(client: MlflowClient, experiment: str, artifacts: str | None, run_id: str, run_name: str) -> Run:
    """The one MLflow run of a Tidemill run: the one that it has, in whatever experiment, or a new one.

    Args:
        client: Connected to the store.
        experiment: Where a new run is made; made too if missing.
        artifacts: Where a new experiment keeps its files; null leaves it to the server.
        run_id: The Tidemill run's id.
        run_name: What people see.
    """
    experiment_id = _experiment(client, experiment, artifacts)
    run = _find(client, [experiment_id], run_id) or _find(client, _all_experiments(client), run_id)
    if run is None:
        # The tag is part of the same transaction: a kill leaves a run that can be found, or none.
        return client.create_run(experiment_id, run_name=run_name, tags={RUN_TAG: run_id, _NOTE_TAG: _note(run_id)})
    if run.info.lifecycle_stage == "deleted":
        client.restore_run(run.info.run_id)
    client.update_run(run.info.run_id, status="RUNNING")
    return run


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process may have made it just now
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise UserError(f"monitor.experiment: the MLflow experiment {name!r} is deleted", "restore it in MLflow, or name another one")
    return str(found.experiment_id)


def _all_experiments(client: MlflowClient) -> list[str]:
    ids: list[str] = []
    page = client.search_experiments()
    while True:
        ids += [experiment.experiment_id for experiment in page]
        if not page.token:
            return ids
        page = client.search_experiments(page_token=page.token)


def _find(client: MlflowClient, experiment_ids: list[str], run_id: str) -> Run | None:
    found = client.search_runs(
        experiment_ids,
        filter_string=f"tags.`{RUN_TAG}` = '{run_id}'",
        run_view_type=ViewType.ALL,
        max_results=1,
        order_by=["attributes.start_time ASC"],
    )
    return found[0] if found else None


def _note(run_id: str) -> str:
    """What the review page says about the run: each figure's unit and meaning."""
    rows = [f"| `{metric.name}` | {metric.unit} | {metric.meaning} |" for metric in metrics.described()]
    return "\n".join([f"Tidemill run `{run_id}`", "", "| metric | unit | meaning |", "|---|---|---|", *rows])


def _make_tables(uri: str) -> None:
    """Make a SQLite store with its tables, whole or not at all.

    MLflow makes them by some sixty migrations. A kill in the midst of them would leave a file that nobody can open, so
    they run on a file aside; linking it to its place fails where another process was faster, whose file is kept.
    """
    if not uri.startswith(SQLITE) or (file := Path(uri.removeprefix(SQLITE))).exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidemill-mlflow-") as aside:
        made = Path(aside) / "mlflow.db"
        MlflowClient(tracking_uri=f"{SQLITE}{made}").search_experiments(max_results=1)
        beside = file.with_name(f"{file.name}.tmp-{uuid4().hex[:8]}")
        try:
            shutil.copyfile(made, beside)
            file.hardlink_to(beside)
        except FileExistsError:
            return
        finally:
            beside.unlink(missing_ok=True)


def _probe(uri: str) -> None:
    """Ask a server whether it is there, since MLflow's own client goes on asking for minutes."""
    request = Request(f"{uri.rstrip('/')}/health")  # noqa: S310 - the scheme was checked
    try:
        with urlopen(request, timeout=10):  # noqa: S310 - the same
            pass
    except HTTPError:
        return  # it answers; whether it lets this user in is MLflow's to find out
    except (OSError, ValueError) as error:
        raise UserError(
            f"no MLflow server answers at {without_secrets(uri)} ({without_secrets(str(error))})",
            "start one, or leave out `monitor.tracking_uri` and MLFLOW_TRACKING_URI for a file in the runs folder",
        ) from None


def _failure(uri: str, error: Exception) -> UserError:
    reason = without_secrets((str(error).strip() or type(error).__name__).splitlines()[0])
    return UserError(f"the MLflow store {without_secrets(uri)} failed ({reason})", "check `monitor.tracking_uri`, and that it runs")
