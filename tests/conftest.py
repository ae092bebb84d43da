"""What all tests share: no telemetry, no network, one thread, and an MLflow store that is made once."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers

os.environ.update(
    DO_NOT_TRACK="true",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_OFFLINE="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    OMP_NUM_THREADS="1",  # tests and the processes that they start share few cores
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    TOKENIZERS_PARALLELISM="false",
)
for _foreign in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "PREFECT_API_URL", "TIDEMILL_KILL_AT"):
    os.environ.pop(_foreign, None)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares one Prefect server in one process, and skip what needs a GPU where there is none."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("prefect"))
    waiting = [item for item in items if item.get_closest_marker("gpu")]
    if not waiting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in waiting:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def empty_mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with MLflow's tables, which take seconds to make; copy it, never write to it."""
    from rft_core.config import MonitorConfig
    from rft_core.monitor import open_monitor

    runs_dir = tmp_path_factory.mktemp("mlflow")
    open_monitor(MonitorConfig(experiment="template"), runs_dir, "template", "template", "")
    return runs_dir / "mlflow.db"


@pytest.fixture
def runs_dir(tmp_path: Path, empty_mlflow_store: Path) -> Path:
    """A runs folder whose MLflow store is ready."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copyfile(empty_mlflow_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny taught policy, made once; copy it before you change it."""
    import torch

    from tests import tiny

    torch.set_num_threads(1)
    return tiny.write_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture(scope="session")
def tiny_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config and tokenizer of the tiny policy, without weights: enough for a plan, and made without torch."""
    from tests import tiny_files

    return tiny_files.write_shape(tmp_path_factory.mktemp("shape") / "tiny")


def address(variable: str, missing: str | None) -> str:
    """Where a server of `python -m tests.servers` is; a test that needs it is skipped where there is none."""
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: run `python -m tests.servers make test`{f' ({missing})' if missing else ''}")
    return os.environ[variable]


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The URL of an empty PostgreSQL database, which is dropped after the test."""
    with servers.fresh_database(address(servers.POSTGRES, servers.missing_postgres())) as url:
        yield url


@pytest.fixture
def s3_bucket() -> Iterator[servers.Bucket]:
    """An empty place in an object store, which is deleted after the test."""
    with servers.fresh_bucket(address(servers.OBJECT_STORE, servers.missing_object_store())) as bucket:
        yield bucket
