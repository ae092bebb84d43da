"""Recipes: validated without side effects, and every mistake names its key."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rft_core.config import (
    CHANGEABLE_ON_RESUME,
    RunConfig,
    Section,
    TrainerConfig,
    changed_keys,
    dump,
    parse,
    read_recipe,
    set_key,
)
from rft_core.errors import ConfigError, UserError

MINIMAL: dict[str, Any] = {"name": "r", "steps": 3, "model": {"path": "m"}, "data": {"train": {"source": "t.jsonl"}}}


def changed(key: str, value: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(MINIMAL))
    set_key(values, key, value)
    return values


def sections(model: type[Section] = RunConfig) -> set[type[Section]]:
    """Every section that a recipe can hold."""
    found = {model}
    for field in model.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, Section) and kind not in found:
                found |= sections(kind)
    return found


def test_a_minimal_recipe_has_every_default() -> None:
    config = parse(MINIMAL)
    assert (config.mode, config.algorithm.name, config.rollout.group_size, config.sync.method) == ("sync", "grpo", 8, "checkpoint")


def test_sections_are_frozen_and_refuse_unknown_keys() -> None:
    assert len(sections()) > 12
    for section in sections():
        assert section.model_config["frozen"]
        assert section.model_config["extra"] == "forbid"
        assert section.__doc__
    with pytest.raises(ValidationError):
        parse(MINIMAL).steps = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rollout.group_sise", 4, "rollout.group_sise: found 4; unknown key; the keys here are: batch_groups, group_size"),
        ("data.train.format.promt", "x", "data.train.format.promt: found 'x'; unknown key; the keys here are: prompt, system"),
        ("data.evaluation", {"sorce": "x"}, "data.evaluation.source: found None; this key is required"),
        ("step", 1, "step: found 1; unknown key; the keys here are: name, runs_dir"),
        ("steps", 0, "steps: found 0; input should be greater than 0"),
        ("steps", 2.5, "steps: found 2.5; input should be a valid integer"),
        ("steps", "many", "steps: found 'many'; input should be a valid integer"),
        ("trainer.learning_rate", -1e-5, "trainer.learning_rate: found -1e-05; input should be greater than 0"),
        ("trainer.schedule", "cosin", "trainer.schedule: found 'cosin'; input should be 'constant', 'linear' or 'cosine'"),
        ("rollout.max_failed_frac", 1.5, "rollout.max_failed_frac: found 1.5; input should be less than or equal to 1"),
        ("rewards", [{"name": "exact"}, {"nam": "x"}], "rewards.1.name: found None; this key is required"),
        ("rewards", [{"name": "exact", "wieght": 2}], "rewards.0.wieght: found 2; unknown key; the keys here are: name, args, weight"),
        ("rewards", "exact", "rewards: found 'exact'; input should be a valid tuple"),
        ("rollout", None, "rollout: found None; input should be a valid dictionary"),
        ("name", "a/b", "name: found 'a/b'; string should match pattern"),
        ("name", "", "name: found ''; string should match pattern"),
        ("mode", "offline", "mode: found 'offline'; input should be 'sync', 'one_step' or 'async'"),
        ("rollout.temperature", "hot", "rollout.temperature: found 'hot'; input should be a valid number"),
        ("trainer.betas", [0.9], "trainer.betas.1: found None; this key is required"),
        ("model.path", "x" * 500 + "\n", None),
    ],
)
def test_a_mistake_names_key_value_and_remedy(key: str, value: Any, said: str | None) -> None:
    if said is None:
        assert parse(changed(key, value)).model.path == value
        return
    with pytest.raises(ConfigError) as raised:
        parse(changed(key, value))
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["trainer.learning_rate", "rollout.timeout_s", "rollout.temperature", "rollout.max_failed_frac"])
def test_what_is_not_a_number_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: found nan; input should be"):
        parse(changed(key, float("nan")))


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ConfigError) as raised:
        parse(changed("steps", "x" * 5000))
    assert len(str(raised.value)) < 300


def test_a_dumped_configuration_is_the_same_configuration(tmp_path: Path) -> None:
    config = parse(changed("data.train.format", {"prompt": "{a}\n: é", "examples": [{"user": "1", "assistant": "2"}]}))
    (tmp_path / "recipe.yaml").write_text(dump(config), encoding="utf-8")
    assert read_recipe(tmp_path / "recipe.yaml") == config
    assert "learning_rate: 1.0e-06" in dump(config)


def test_a_recipe_is_changed_by_dotted_keys(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    config = read_recipe(path, {"rollout.group_size": 4, "steps": 9, "data.evaluation.source": "held_out.jsonl"})
    assert (config.rollout.group_size, config.steps) == (4, 9)
    assert config.data.evaluation is not None
    with pytest.raises(ConfigError, match="steps: found 3; this is not a section, it has no keys in it"):
        read_recipe(path, {"steps.more": 1})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: [", "line 1 is not YAML|is not YAML"),
        (b"a: b: c", "line 1 is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"- 1\n- 2", "holds no keys"),
        (b"just text", "holds no keys"),
        (b"", "holds no keys"),
        (yaml.safe_dump({**MINIMAL, 1: "x"}).encode(), "1: found 1; keys should be strings"),
        (yaml.safe_dump({**MINIMAL, True: "x"}).encode(), "1: found True; keys should be strings"),
        (b"name: !!python/object/apply:os.system [ls]", "is not YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as raised:
        read_recipe(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("place", ["nowhere.yaml", "."])
def test_a_recipe_that_cannot_be_read_is_one_line(place: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no recipe at .* \((No such file or directory|Is a directory)\); name a YAML file"):
        read_recipe(tmp_path / place)


def test_numbers_may_be_written_as_people_write_them(tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-6 for a text."""
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) + "trainer: {learning_rate: 1e-6}\n")
    assert read_recipe(path).trainer.learning_rate == 1e-6


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(st.none() | st.integers(0, 2), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)


@given(st.dictionaries(KEYS, VALUES), st.dictionaries(KEYS, VALUES))
def test_changed_keys_are_exactly_those_that_differ(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert changed_keys(old, old) == []
    found = changed_keys(old, new)
    assert bool(found) == (old != new)
    assert sorted(changed_keys(new, old)) == sorted(found)
    for key in found:
        assert at(old, key) != at(new, key)


def at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, "nothing") if isinstance(values, dict) else "nothing"
    return values


def test_what_may_change_on_resume_exists() -> None:
    values = parse(MINIMAL).model_dump(mode="json")
    for key in CHANGEABLE_ON_RESUME:
        assert at(values, key) != "nothing"


def test_what_a_claimed_batch_was_read_with_may_not_change_on_resume() -> None:
    values = parse(MINIMAL).model_dump(mode="json")
    for key in ("labels.combine", "operators", "selection", "sync.max_staleness", "table.catalog", "table.files"):
        assert at(values, key) != "nothing"
        assert not [may for may in CHANGEABLE_ON_RESUME if key == may or key.startswith(f"{may}.")]


def test_validating_looks_at_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parse({**MINIMAL, "runs_dir": "deep/runs", "model": {"path": "./nowhere"}})
    assert list(tmp_path.iterdir()) == []
    assert TrainerConfig().mini_batch_groups is None
