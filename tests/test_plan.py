"""`rft plan`: every derived value with its reason, and one line for each way in which a recipe can be broken."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rft_core.config import parse
from rft_core.errors import ConfigError
from rft_core.plan import resolve
from tests.tiny_files import recipe

Recipe = dict[str, Any]


def rft(*arguments: str, cwd: Path, program: str = "from flows.cli import main; main()") -> subprocess.CompletedProcess[str]:
    """Run the `rft` command as a user does, in a folder of its own."""
    root = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); sys.argv[0] = 'rft'; {program}", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def write(folder: Path, values: Recipe) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_plan_prints_every_derived_value_without_torch(tmp_path: Path, tiny_shape: Path) -> None:
    path = write(tmp_path, recipe(tmp_path, tiny_shape))
    before = files_below(tmp_path)
    watched = "from flows.cli import app\napp(standalone_mode=False)\nassert 'torch' not in sys.modules and 'prefect' not in sys.modules"
    done = rft("plan", str(path), cwd=tmp_path, program=watched)
    assert done.returncode == 0, done.stderr
    for expected in (
        "run folder",
        "attempts a step",
        "batch_groups 4 x group_size 4",
        "learning rate",
        "checkpoints",
        "staleness",
        "--- prompt of task 3",
    ):
        assert expected in done.stdout
    assert files_below(tmp_path) == before


def test_plan_as_json_holds_the_whole_configuration(tmp_path: Path, tiny_shape: Path) -> None:
    done = rft("plan", str(write(tmp_path, recipe(tmp_path, tiny_shape))), "--json", "--set", "rollout.group_size=5", cwd=tmp_path)
    plan = json.loads(done.stdout)
    assert plan["config"]["rollout"]["group_size"] == 5
    assert plan["config"]["trainer"]["clip_norm"] == 1.0
    assert {derived["name"]: derived["value"] for derived in plan["derived"]}["attempts a step"] == "20"
    assert len(plan["samples"]) == 3
    assert not plan["unchecked"]


def set_(key: str, value: object) -> Callable[[Recipe, Path], None]:
    """Break a recipe by one dotted key."""

    def change(values: Recipe, folder: Path) -> None:
        *sections, last = key.split(".")
        target = values
        for section in sections:
            target = target[section]
        target[last] = value

    return change


def tasks(lines: str) -> Callable[[Recipe, Path], None]:
    """Break a recipe by what its task set holds."""

    def change(values: Recipe, folder: Path) -> None:
        (folder / "broken.jsonl").write_text(lines)
        values["data"]["train"]["source"] = str(folder / "broken.jsonl")

    return change


def runs_dir_below_a_file(values: Recipe, folder: Path) -> None:
    (folder / "a-file").write_text("")
    values["runs_dir"] = str(folder / "a-file" / "runs")


BROKEN: dict[str, tuple[Callable[[Recipe, Path], None], str, str, str]] = {
    "unknown_key": (set_("rollout.group_sise", 4), "rollout.group_sise", "4", "group_size"),
    "wrong_type": (set_("steps", "many"), "steps", "'many'", "integer"),
    "negative_rate": (set_("trainer.learning_rate", -1e-5), "trainer.learning_rate", "-1e-05", "greater than 0"),
    "missing_file": (set_("data.train.source", "nowhere.jsonl"), "data.train.source", "nowhere.jsonl", ".jsonl"),
    "unknown_reward": (set_("rewards", [{"name": "exakt"}]), "rewards.0.name", "'exakt'", "exact"),
    "group_of_one": (set_("rollout.group_size", 1), "rollout.group_size", "1", "at least 2"),
    "batch_that_splits_groups": (
        set_("trainer.mini_batch_groups", 3),
        "trainer.mini_batch_groups",
        "3",
        "divisor of rollout.batch_groups 4",
    ),
    "prompt_longer_than_context": (tasks(json.dumps({"question": "1+1=" * 9, "answer": "2"})), "data.train.source", "36 tokens", "shorter"),
    "empty_task_set": (tasks(""), "data.train.source", "broken.jsonl", "row"),
    "missing_field": (tasks('{"question": "1+1="}\n'), "rewards.0.name", "'answer'", "row 1"),
    "run_folder": (runs_dir_below_a_file, "runs_dir", "a-file", "folder"),
    "no_such_model": (set_("model.path", "./nowhere"), "model.path", "'./nowhere'", "Hugging Face"),
    # Further ones that users meet.
    "no_rewards": (set_("rewards", []), "rewards", "[]", "name at least one"),
    "sft_without_experts": (set_("algorithm", {"name": "sft"}), "rollout.environment.name", "'single_turn'", "expert"),
    "greedy_rollout": (set_("rollout.temperature", 0), "rollout.temperature", "0", "1 is usual"),
    "unknown_argument": (set_("rewards", [{"name": "exact", "args": {"fuzzy": True}}]), "rewards.0.args.fuzzy", "True", "unknown key"),
    "unknown_field": (set_("data.train.format.prompt", "{qestion}"), "data.train.source", "qestion", "question"),
    "shared_with_interval": (set_("sync.interval", 2), "sync.interval", "2", "1 with sync.method shared"),
    "context_beyond_model": (set_("model.max_context", 64), "model.max_context", "64", "at most 32"),
    "no_chat_template": (set_("data.train.format.chat", True), "data.train.format.chat", "True", "no chat template"),
    "bad_name": (set_("name", "../up"), "name", "'../up'", "pattern"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_recipe_names_key_value_and_remedy(case: str, tmp_path: Path, tiny_shape: Path) -> None:
    change, *expected = BROKEN[case]
    values = recipe(tmp_path, tiny_shape)
    change(values, tmp_path)
    before = files_below(tmp_path)
    with pytest.raises(ConfigError) as raised:
        resolve(parse(values))
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(expected[0])
    for part in expected[1:]:
        assert part in message
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("case", ["unknown_key", "missing_field", "run_folder", "no_such_model"])
def test_the_command_exits_with_2_and_one_line(case: str, tmp_path: Path, tiny_shape: Path) -> None:
    values = recipe(tmp_path, tiny_shape)
    BROKEN[case][0](values, tmp_path)
    path = write(tmp_path, values)
    before = files_below(tmp_path)
    for command in ("plan", "run"):
        done = rft(command, str(path), cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"rft: {BROKEN[case][1]}")
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "no recipe at"),
        ("name: x\nsteps: [1\n", "line 3 is not YAML"),
        ("", "holds no keys"),
        ("- a", "holds no keys"),
        ("steps: 3\n", "this key is required"),
    ],
)
def test_a_file_that_is_no_recipe(text: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    if text is not None:
        path.write_text(text)
    done = rft("plan", str(path), cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert expected in done.stderr
