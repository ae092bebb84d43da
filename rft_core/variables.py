"""Values of a recipe that must not be written down: `env:NAME` is read from the environment where it is used."""

import os

from rft_core.errors import ConfigError

_ENV = "env:"


def variable_of(value: str) -> str | None:
    """The environment variable that a value names as `env:NAME`; null for one that stands for itself."""
    return value.removeprefix(_ENV) if value.startswith(_ENV) else None


def revealed(key: str, value: str) -> str:
    """A value, or that of the environment variable which it names.

    Args:
        key: Of the value, for the message.
        value: As it is written down.

    Raises:
        ConfigError: The variable is not set here.
    """
    variable = variable_of(value)
    if variable is None:
        return value
    found = os.environ.get(variable)
    if not found:
        raise ConfigError(key, value, f"the environment variable {variable!r} must be set here")
    return found
