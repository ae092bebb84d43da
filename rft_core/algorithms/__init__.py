"""Algorithms: how scored groups become a loss."""

from rft_core.algorithms.base import Algorithm, Needs, algorithms

__all__ = ["Algorithm", "Needs", "algorithms"]
