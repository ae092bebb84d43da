"""Short scripted runs, as the tests of the tasks make them."""

from tests.tasks.conftest import blank_policy, runs, scored_runs

__all__ = ["blank_policy", "runs", "scored_runs"]
