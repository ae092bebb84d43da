"""Recipes as text and plain values: read, checked, changed by key, compared, written."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rft_core.config.sections import RunConfig
from rft_core.errors import ConfigError, UserError

CHANGEABLE_ON_RESUME = (
    "steps",
    "epochs",
    "runs_dir",
    "explorers",
    "evaluation",
    "monitor",
    "checkpoint",
    "sync.keep",
    "labels.await_each",
    "labels.deadline_s",
    "labels.then",
    "table.retention",
    "table.options",
)
"""Keys of a recipe that may differ when a run is resumed; any other change is refused."""


def parse(values: dict[str, Any]) -> RunConfig:
    """Make a run configuration of plain values.

    Raises:
        ConfigError: A key is unknown, missing, or holds something else than it may; names the key.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise config_error(error, "", RunConfig) from None


def read_recipe(path: Path, changes: dict[str, Any] | None = None) -> RunConfig:
    """Read a recipe.

    Args:
        path: A YAML file.
        changes: Values by dotted key that replace the file's, as in `{"rollout.group_size": 4}`.

    Raises:
        UserError: There is no such file, or it is not YAML with keys at its top.
        ConfigError: A key is wrong.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"no recipe at {path} ({error.strerror})", "name a YAML file; `rft init` writes one") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise UserError(f"{path}{line} is not YAML", "a recipe is `key: value` lines, indented with spaces") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no keys", "a recipe starts with `name:`, `steps:`, `model:` and `data:`")
    for key, value in (changes or {}).items():
        set_key(values, key, value)
    return parse(values)


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested plain values, making the sections on the way.

    Raises:
        ConfigError: The key points into something that has no keys.
    """
    *sections, last = key.split(".")
    for depth, part in enumerate(sections):
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(".".join(sections[: depth + 1]), values, "this is not a section, it has no keys in it")
    values[last] = value


def dump(config: RunConfig) -> str:
    """The configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def changed_keys(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two dumped configurations."""
    changed: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        path = f"{prefix}{key}"
        before, after = old.get(key, ...), new.get(key, ...)  # an argument that is null may differ from one that is left out
        if isinstance(before, dict) and isinstance(after, dict):
            changed += changed_keys(before, after, f"{path}.")
        elif before != after:
            changed.append(path)
    return changed


def config_error(error: ValidationError, prefix: str, model: type[BaseModel]) -> ConfigError:
    """Turn pydantic's first complaint into one line that names the key, the value and what would be right."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    key = ".".join(part for part in (prefix, path) if part)
    if first["type"] == "extra_forbidden":
        known = ", ".join(_fields_at(model, first["loc"][:-1])) or "none"
        return ConfigError(key, first["input"], f"unknown key; the keys here are: {known}")
    if first["type"] == "missing":
        return ConfigError(key, None, "this key is required")
    return ConfigError(key, first["input"], first["msg"][:1].lower() + first["msg"][1:])


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The field names of the model that a validation error's location points into."""
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(str(part))
        if field is None:
            return []
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)
