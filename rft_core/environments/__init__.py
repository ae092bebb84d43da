"""Environments: how one task becomes trajectories."""

from rft_core.environments.base import Environment, Policy, environments

__all__ = ["Environment", "Policy", "environments"]
