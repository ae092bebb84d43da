"""What the tests of storages share."""

import os

import pytest


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without credentials for an object store."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
