"""Values that stand in the environment instead of the recipe."""

import pytest

from rft_core.errors import ConfigError
from rft_core.variables import revealed, variable_of


def test_a_value_is_itself_or_that_of_the_variable_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "env:plain")
    assert (variable_of("env:PLACE"), revealed("table.files", "env:PLACE")) == ("PLACE", "env:plain")
    assert (variable_of("PLACE"), revealed("table.files", "PLACE")) == (None, "PLACE")


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named_with_its_key(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLACE", raising=False)
    if value is not None:
        monkeypatch.setenv("PLACE", value)
    with pytest.raises(ConfigError, match=r"^table\.files: found 'env:PLACE'; the environment variable 'PLACE' must be set here$"):
        revealed("table.files", "env:PLACE")
