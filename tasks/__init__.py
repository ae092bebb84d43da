"""Prefect tasks, one verb a file. Each unwraps the run's session, calls the library, and returns small values."""

import rft_core as rft_core  # first: it turns telemetry off, which Prefect reads when it is imported
from tasks.conclude import conclude
from tasks.curate import curate
from tasks.evaluate import evaluate
from tasks.gather import gather
from tasks.report import report
from tasks.rollout import rollout
from tasks.shape import shape
from tasks.sync import sync
from tasks.train import train

__all__ = ["conclude", "curate", "evaluate", "gather", "report", "rollout", "shape", "sync", "train"]
