"""`rft plan`: every derived value with its reason, and one line for each way in which a recipe can be broken."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rft_core.config import parse
from rft_core.errors import ConfigError
from rft_core.plan import NUM_PROMPTS_CHECKED, resolve
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


def experts_with(name: str, **args: object) -> Callable[[Recipe, Path], None]:
    """Supervised fine-tuning without rewards, and an operator too many."""

    def change(values: Recipe, folder: Path) -> None:
        values["algorithm"] = {"name": "sft"}
        values["rollout"]["environment"] = {"name": "expert"}
        values["rewards"] = []
        values["operators"] = [{"name": "drop_truncated"}, {"name": name, "args": args}]

    return change


def both(*changes: Callable[[Recipe, Path], None]) -> Callable[[Recipe, Path], None]:
    def change(values: Recipe, folder: Path) -> None:
        for one in changes:
            one(values, folder)

    return change


BROKEN: dict[str, tuple[Callable[[Recipe, Path], None], str, str, str]] = {
    "unknown_key": (set_("rollout.group_sise", 4), "rollout.group_sise", "4", "group_size"),
    "wrong_type": (set_("steps", "many"), "steps", "'many'", "integer"),
    "negative_rate": (set_("trainer.learning_rate", -1e-5), "trainer.learning_rate", "-1e-05", "greater than 0"),
    "missing_file": (set_("data.train.source", "nowhere.jsonl"), "data.train.source", "nowhere.jsonl", ".jsonl"),
    "unknown_reward": (set_("rewards", [{"name": "exakt"}]), "rewards.0.name", "'exakt'", "exact"),
    "group_of_one": (set_("rollout.group_size", 1), "rollout.group_size", "1", "at least 2"),
    "weights_shared_beside_a_trainer": (set_("mode", "async"), "sync.method", "'shared'", "`checkpoint` is right"),
    "waiting_where_nobody_goes_on": (set_("rollout.short_batch", "wait"), "rollout.short_batch", "'wait'", "`train_partial`"),
    "a_short_batch_beside_explorers": (
        both(set_("mode", "one_step"), set_("sync.method", "checkpoint"), set_("rollout.short_batch", "skip")),
        "rollout.short_batch",
        "'skip'",
        "mode one_step waits",
    ),
    "groups_at_once_in_step": (set_("rollout.at_once", 2), "rollout.at_once", "2", "tries a whole batch at once"),
    "explorers_in_step": (set_("explorers", [{"count": 2}]), "explorers", "1", "`mode: async` is right"),
    "explorers_that_differ_in_what_is_common": (
        both(set_("mode", "async"), set_("sync.method", "checkpoint"), set_("explorers", [{"rollout": {"group_size": 2}}])),
        "explorers.0.rollout.group_size",
        "2",
        "all explorers of a run have it in common: 4 is right",
    ),
    "a_bound_below_the_interval": (
        both(set_("mode", "async"), set_("sync", {"method": "checkpoint", "interval": 4, "max_staleness": 2})),
        "sync.max_staleness",
        "2",
        "at least that",
    ),
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
    "band_beyond_limit": (
        set_("operators", [{"name": "drop_truncated"}, {"name": "soft_overlong", "args": {"cache_tokens": 9}}]),
        "operators.1.args.cache_tokens",
        "9",
        "limit of 4 tokens",
    ),
    "signal_without_rewards": (experts_with("drop_no_signal"), "operators.1.name", "'drop_no_signal'", "looks at rewards"),
    "penalty_without_rewards": (experts_with("soft_overlong", cache_tokens=2), "operators.1.name", "'soft_overlong'", "looks at rewards"),
    "missing_variable": (
        set_("monitor", {"tracking_uri": "env:TIDEMILL_NOT_SET"}),
        "monitor.tracking_uri",
        "'env:TIDEMILL_NOT_SET'",
        "variable 'TIDEMILL_NOT_SET'",
    ),
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


@pytest.mark.parametrize("case", ["unknown_key", "missing_field"])
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


def derived(values: Recipe) -> dict[str, Any]:
    return {one.name: one for one in resolve(parse(values)).derived}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "never acts"),
        ({"trainer__mini_batch_groups": 2}, "can act"),
        ({"sync__method": "checkpoint", "sync__interval": 2}, "can act"),
    ],
)
def test_clipping_acts_where_a_batch_is_not_of_the_newest_weights(changes: Recipe, expected: str, tmp_path: Path, tiny_shape: Path) -> None:
    assert expected in derived(recipe(tmp_path, tiny_shape, **changes))["importance ratios"].value


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"labels__deadline_s": 60}, "not trained"),
        ({"labels__await_each": True, "sync__max_staleness": 0}, "not trained"),
        ({"labels__deadline_s": 60, "sync__max_staleness": 4}, "trained up to 4 versions after their groups were sampled"),
        ({"labels__await_each": True, "sync__method": "checkpoint", "sync__interval": 3}, "trained up to 2 versions after"),
    ],
)
def test_what_becomes_of_late_labels_is_said(changes: Recipe, expected: str, tmp_path: Path, tiny_shape: Path) -> None:
    said = derived(recipe(tmp_path, tiny_shape, **changes))["late labels"]
    assert said.value.startswith(expected)
    assert ("set sync.max_staleness" in said.reason) == (expected == "not trained")
    assert "late labels" not in derived(recipe(tmp_path, tiny_shape))


def test_supervised_fine_tuning_has_no_ratios(tmp_path: Path, tiny_shape: Path) -> None:
    values = recipe(tmp_path, tiny_shape, algorithm={"name": "sft"}, rollout__environment={"name": "expert"})
    assert not {"importance ratios", "staleness"} & set(derived(values))


def test_leases_end_with_the_epochs(tmp_path: Path, tiny_shape: Path) -> None:
    values = recipe(tmp_path, tiny_shape, steps=100, epochs=1, rollout__batch_groups=5)
    assert derived(values)["training tasks"].reason.startswith("36 leases in 8 steps: 1.00 epochs")


@pytest.mark.parametrize(
    ("changes", "gigabytes"),
    [
        # A checkpoint is 4 bytes of weights and 8 of moments, and there are three at most; the best version is kept besides.
        ({}, 3 * 12 + 4),
        ({"data__evaluation": None}, 3 * 12),
        # In bfloat16: 2 of weights, 8 of moments, 4 of float32 weights.
        ({"model__dtype": "bfloat16"}, 3 * 14 + 2),
        # Two versions kept and one being written.
        ({"sync__method": "checkpoint"}, 3 * 12 + 4 * (3 + 1)),
        # For each checkpoint the older version that samples go on with.
        ({"sync__method": "checkpoint", "sync__interval": 2}, 3 * 12 + 4 * (3 + 2 + 1)),
    ],
)
def test_disk_is_what_is_written_whatever_the_base_model_is_kept_in(
    changes: Recipe, gigabytes: int, tmp_path: Path, tiny_shape: Path
) -> None:
    model = Path(shutil.copytree(tiny_shape, tmp_path / "model"))
    head = json.dumps({"__metadata__": {}, "w": {"dtype": "BF16", "shape": [1000, 1000, 1000], "data_offsets": [0, 2 * 10**9]}}).encode()
    (model / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    assert derived(recipe(tmp_path, model, **changes))["disk"].value.startswith(f"at most {gigabytes} GB, ")


def always_one(task: object, answer: str) -> float:
    return 1.0


def test_rows_are_read_as_far_as_there_is_something_to_look_for(tmp_path: Path, tiny_shape: Path) -> None:
    rows = [{"question": "1+1=", "answer": "2"}] * NUM_PROMPTS_CHECKED + [{"asked": "1+1="}]
    values = recipe(tmp_path, tiny_shape)
    tasks("".join(json.dumps(row) + "\n" for row in rows))(values, tmp_path)
    with pytest.raises(ConfigError, match=f"row {len(rows)}"):
        resolve(parse(values))
    assert resolve(parse({**values, "rewards": [{"name": "tests.test_plan:always_one"}]})).derived


def test_a_plan_hands_on_the_tasks_that_it_opened(tmp_path: Path, tiny_shape: Path) -> None:
    plan = resolve(parse(recipe(tmp_path, tiny_shape)))
    assert plan.train is not None
    assert plan.held_out is not None
    assert plan.train.task(0) == plan.held_out.task(0)


def test_the_mode_is_drawn(tmp_path: Path, tiny_shape: Path) -> None:
    path = write(tmp_path, recipe(tmp_path, tiny_shape, mode="one_step", sync={"method": "checkpoint"}))
    shown = rft("plan", str(path), cwd=tmp_path).stdout
    assert "explorer |1 by v0-|2 by v0-|3 by v1-|4 by v2-|5 by v3-|6 by v4-|\ntrainer           |-step 1-|-step 2-" in shown
