"""Published versions at the right steps, the best one kept, and disks that are full or stubborn."""

from pathlib import Path
from typing import Any

import pytest

from rft_core.disk import is_temporary, leftovers
from rft_core.errors import UserError
from rft_core.trainer.policy import Policy
from tests.disks import full_disk
from tests.tasks.runs import Runs, peak


def evaluated(runs: Runs) -> dict[str, Any]:
    return {"source": str(runs.folder / "sums.jsonl"), "format": {"prompt": "{question}", "chat": False}}


def test_old_versions_and_checkpoints_go(runs: Runs) -> None:
    values = runs.recipe(steps=6, sync__method="checkpoint", sync__keep=2, checkpoint__every=1, checkpoint__keep=1)
    runs.run(values)
    found = runs.look(values)
    assert found.folders("weights") == {"v000005", "v000006"}
    assert found.folders("checkpoints") == {"000006"}
    assert sorted(found.versions) == list(range(7))
    assert {version for version, known in found.versions.items() if known.uri} == {5, 6}


def test_what_a_killed_publish_leaves_is_known_as_temporary(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []
    save = Policy.save

    def noting(policy: Policy, folder: Path, tokenizer_folder: Path) -> None:
        saved.append(folder)
        save(policy, folder, tokenizer_folder)

    monkeypatch.setattr(Policy, "save", noting)
    values = runs.recipe(steps=2, sync__method="checkpoint")  # a version that is no checkpoint is saved for itself
    runs.run(values)
    of_weights = [folder for folder in saved if folder.parent.name == "weights"]
    assert of_weights
    assert all(is_temporary(folder.name) for folder in of_weights)
    assert leftovers(runs.look(values).run_dir.weights) == []


def test_the_best_version_is_kept_with_its_files(runs: Runs) -> None:
    """Version 2 answers best; it lives in the process only, until it turns out to be the best."""
    engine = peak({0: 1, 1: 2, 2: 5, 3: 2, 4: 5, 5: 1}, answers=["0", "-"])
    values = runs.recipe(
        steps=5,
        sync__method="shared",
        sync__keep=1,
        checkpoint__keep=1,
        rollout__engine=engine,
        data__evaluation=evaluated(runs),
        evaluation__every=1,
        operators=[],
    )
    runs.run({**values, "rewards": [{"name": "tests.explorer_parts:coin"}, {"name": "exact", "weight": 0.0}]})
    found = runs.look(values)
    assert [found.evaluations[version]["evaluation/exact"] for version in range(6)] == [n / 8 for n in (1, 2, 5, 2, 5, 1)]
    assert found.folders("weights") == {"v000002", "v000005"}
    assert found.weights(2) != found.weights(5)
    assert found.versions[2].uri == "weights/v000002"


def test_a_full_disk_at_a_checkpoint_is_one_line_and_the_run_goes_on_from_there(
    runs: Runs, finished: dict[str, Any], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"steps": 2, "sync__method": "checkpoint", "checkpoint__every": 1}
    values = runs.recipe("abcdef", **changes)
    folder = tmp_path / "runs" / "run"
    with full_disk(tmp_path / "disk") as disk:
        (folder).mkdir(parents=True)
        (folder / "run.json").write_text('{"run_id": "full", "format": 1}')
        (folder / "checkpoints").symlink_to(disk.folder)
        with pytest.raises(UserError) as raised:
            runs.run(values)
        said = str(raised.value)
        assert said.startswith(f"can't write below {folder / 'checkpoints'} ({disk.message}), ")
        assert "make room, or let this user write there, then run the same command again" in said
        assert "\n" not in said
        assert [path.name for path in disk.folder.iterdir()] in (["ballast"], [])
        disk.make_room()
        runs.run(values)
        found, expected = runs.look(values), runs.look(finished)
        assert found.weights(2) == expected.weights(2)
        assert found.fates == expected.fates


def test_a_full_disk_at_a_publish_is_one_line(runs: Runs, tmp_path: Path) -> None:
    values = runs.recipe(steps=2, sync__method="checkpoint")
    folder = tmp_path / "runs" / "run"
    with full_disk(tmp_path / "disk") as disk:
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"run_id": "full", "format": 1}')
        (folder / "weights").symlink_to(disk.folder)
        with pytest.raises(UserError, match=rf"can't write below .*weights \({disk.message}\), .* MB are free there; make room"):
            runs.run(values)
        disk.make_room()
        runs.run(values)
        assert runs.look(values).statuses() == "tt"


def test_a_checkpoint_that_cannot_be_removed_is_noted_and_the_run_goes_on(runs: Runs) -> None:
    """prime-rl PR #1763: the removal of an old folder raised, and ended the run."""
    values = runs.recipe(steps=3, checkpoint__every=1, checkpoint__keep=1)
    checkpoints = runs.folder / "runs" / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints.parent / "run.json").write_text('{"run_id": "stubborn", "format": 1}')
    stuck = checkpoints / "0"
    stuck.write_text("a file: nothing that removes folders can remove it, whoever runs it")
    heard = runs.run(values)
    assert heard.notes.count(f"can't remove {stuck}, which nothing needs any more; it is tried again after the next step") == 3
    assert runs.look(values).folders("checkpoints") == {"0", "000003"}
    assert runs.look(values).statuses() == "ttt"
