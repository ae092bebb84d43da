"""Prefect flows, and the `rft` command."""

import rft_core as rft_core  # first: it turns telemetry off, which Prefect reads when it is imported
