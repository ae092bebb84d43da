"""Rewards: what an answer is worth."""

from rft_core.rewards.base import Score, Scorer, rewards

__all__ = ["Score", "Scorer", "rewards"]
