"""A run whose table is not in its folder: PostgreSQL holds the catalog, an object store the files."""

from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer import Questions, open_catalog, open_files
from rft_core.config import parse
from tests import loop
from tests.servers import Bucket
from tests.tiny_files import recipe


@pytest.fixture
def elsewhere(tmp_path: Path, tiny_policy: Path, postgres_url: str, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TIDEMILL_CATALOG", postgres_url)
    values = recipe(tmp_path / "elsewhere", tiny_policy, steps=3)
    values["table"] = {"catalog": "env:TIDEMILL_CATALOG", "files": s3_bucket.url, "options": s3_bucket.options}
    return values


def test_a_killed_run_ends_with_the_weights_of_one_that_is_all_in_its_folder(
    elsewhere: dict[str, Any], tmp_path: Path, tiny_policy: Path, postgres_url: str
) -> None:
    here = recipe(tmp_path / "here", tiny_policy, steps=3)
    assert loop.run_in_child(here) == 0
    environment = {"TIDEMILL_CATALOG": postgres_url}
    assert loop.run_in_child(elsewhere, kill_at="segment.renamed:2", environment=environment) == -9
    assert loop.run_in_child(elsewhere, environment=environment) == 0
    assert loop.final_weights(elsewhere) == loop.final_weights(here)

    config, run_dir = parse(elsewhere), loop.run_dir(elsewhere)
    catalog, storage = open_catalog(run_dir, config.table), open_files(run_dir, config.table)
    fates = catalog.leases.fates()
    assert sum(fates.values()) == catalog.leases.num_issued()
    assert storage.files("segments").keys() == {file.uri for _, file in catalog.segments.files()}
    answer = Questions(storage, catalog, None).ask("select count(*) as n, count(distinct step) as steps from experiences").to_pylist()
    assert answer[0]["steps"] == 3
    catalog.close()

    in_folder = {path.relative_to(run_dir.root).parts[0] for path in run_dir.root.rglob("*")}
    assert not {"catalog.db", "segments", "overlays"} & in_folder
    written = b"".join(path.read_bytes() for path in run_dir.root.rglob("*") if path.suffix in (".yaml", ".json", ".txt"))
    password = postgres_url.partition("://")[2].partition("@")[0].partition(":")[2]
    assert password
    assert password.encode() not in written
