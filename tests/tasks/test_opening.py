"""Opening a run again: what goes on, what is refused, and what a failed opening leaves behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rft_core.config import dump, parse
from rft_core.errors import CheckpointError, ModelError, RunError
from tests import loop
from tests.buffer.damages import flip
from tests.tasks.runs import Runs

Recipe = dict[str, Any]


def test_a_finished_run_does_nothing_and_says_so(runs: Runs, finished: Recipe) -> None:
    values = runs.copy(finished)
    before, summary = runs.look(values), loop.summary(values)
    for steps in (2, 1):
        heard = runs.run({**values, "steps": steps})
        assert heard.begun == [(2, steps)]
        assert heard.steps == []
        assert any(note.startswith("nothing to do: all ") for note in heard.notes)
    after = runs.look(values)
    assert (after.steps, after.fates, after.claims) == (before.steps, before.fates, before.claims)
    assert loop.summary(values) == summary


@pytest.mark.parametrize(
    ("key", "value"), [("rollout", "group_size"), ("trainer", "learning_rate"), ("data", "train"), ("seed", None), ("rewards", None)]
)
def test_another_recipe_is_refused_by_its_key(key: str, value: str | None, runs: Runs) -> None:
    values = runs.recipe(steps=1)
    run_dir = loop.run_dir(values)
    run_dir.create()
    run_dir.recipe_file.write_text(dump(parse(values)))
    other = json.loads(json.dumps(values))
    if value is None:
        other[key] = 7 if key == "seed" else [{"name": "numeric"}]
    else:
        other[key][value] = {"group_size": 4, "learning_rate": 0.5, "train": {**values["data"]["train"], "order": "shuffled"}}[value]
    said = {"train": "data.train.order"}.get(value or "", f"{key}.{value}" if value else key)
    with pytest.raises(RunError, match=rf"was started with another {said}; set another `name` for a new run; on resume only steps, epochs"):
        runs.run(other)


def test_a_recipe_that_could_not_be_opened_binds_nobody(runs: Runs) -> None:
    values = runs.recipe(steps=1)
    with pytest.raises(ModelError):
        runs.run({**values, "model": {"path": str(runs.folder / "nowhere")}})
    runs.run(values)
    assert runs.look(values).statuses() == "t"


def test_another_task_set_under_the_same_name_is_refused(runs: Runs) -> None:
    values = runs.recipe("abcd", steps=1)
    runs.run(values)
    source = Path(values["data"]["train"]["source"])
    source.write_text("\n".join(source.read_text().splitlines()[::-1]))
    with pytest.raises(RunError, match="the task set is another one than this run began with; restore its file, or set another `name`"):
        runs.run({**values, "steps": 2})


def test_an_altered_checkpoint_is_named_and_the_one_before_is_used_once_it_is_gone(runs: Runs, finished: Recipe) -> None:
    values = runs.copy(finished)
    final = runs.look(values).weights(2)
    folder = loop.run_dir(values).checkpoint(2)
    flip(folder / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match=r"000002/optimizer.safetensors is missing, torn or altered; remove the checkpoint"):
        runs.run(values)
    shutil.rmtree(folder)
    assert runs.run(values).steps == [2]
    assert runs.look(values).weights(2) == final
    assert runs.look(values).statuses() == "tt"


def test_a_recipe_may_keep_fewer_or_more_on_resume(runs: Runs, finished: Recipe) -> None:
    values = runs.copy(finished)
    changed = {**values, "steps": 4, "checkpoint": {"every": 2, "keep": 1}, "sync": {"method": "checkpoint", "keep": 1}}
    runs.run(changed)
    found = runs.look(changed)
    assert found.folders("checkpoints") == {"000004"}
    # The last version, and the one that the first part of the run registered.
    assert found.folders("weights") == {"v000002", "v000004"}


def test_a_published_version_that_was_damaged_is_healed_from_its_checkpoint(runs: Runs, finished: Recipe) -> None:
    values = {**runs.copy(finished), "steps": 3}
    damage(loop.run_dir(values).version(2) / "model.safetensors")
    runs.run(values)
    assert runs.look(values).statuses() == "ttt"


def damage(path: Path) -> None:
    """Cut a file short, without its other names: it may be linked."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-100])
