"""Engines: prompt tokens in, sampled tokens with their log-probs out."""

from rft_core.engines.base import Engine, engines

__all__ = ["Engine", "engines"]
