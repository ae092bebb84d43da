"""Operators: pure steps of the data pipeline."""

from rft_core.operators.base import Attempt, Group, Operator, operators

__all__ = ["Attempt", "Group", "Operator", "operators"]
