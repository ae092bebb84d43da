"""Tidemill's library: everything but the orchestration.

Importing it first turns off the telemetry of the libraries that Tidemill is built on, which read these variables when
they are imported; whoever sets one of them keeps the say.
"""

import os

for _name, _value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(_name, _value)
