"""Task sets: rows become tasks, in a seeded order without end."""

from rft_core.taskset.order import TaskSet, available_locally, open_taskset

__all__ = ["TaskSet", "available_locally", "open_taskset"]
