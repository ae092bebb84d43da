"""Recipes as text to start from, and as the parameters of a deployment."""

from pathlib import Path
from typing import Any

from rft_core.config import read_recipe

TEMPLATE = Path(__file__).with_name("recipe_template.yaml")
"""What `rft init` writes."""


def commented() -> str:
    """A commented recipe to start from."""
    return TEMPLATE.read_text(encoding="utf-8")


def as_parameters(path: str) -> dict[str, Any]:
    """A recipe as the default parameters of a deployment: a build step of `deployments/prefect.yaml`."""
    return {"config": read_recipe(Path(path)).model_dump(mode="json", exclude_unset=True)}
