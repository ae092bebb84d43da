"""Sampled rollouts as MLflow traces, each under an id that follows from what it shows.

MLflow's fluent tracing draws ids at random, exports in the background and only warns when that fails. Here a trace that
is told again must replace itself and a failure must be seen, so traces are written through MLflow's own tracing client.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from mlflow.entities import AssessmentSource, Feedback, Span, SpanType, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

from rft_core.monitor.base import reason_of
from rft_core.types import Experience

_PREVIEW = 1000
"""Characters of prompt and response in MLflow's list of traces."""


def write(client: TracingClient, experiment_id: str, mlflow_run_id: str, step: int, sample: Experience) -> str:
    """Write one rollout as a trace of a run, and return the trace's id.

    Args:
        client: Connected to the run's store.
        experiment_id: Of the run.
        mlflow_run_id: The run as MLflow knows it.
        step: The step that the rollout was made for.
        sample: What is shown.
    """
    key = sha256(f"{mlflow_run_id}/{step}/{sample.experience_id}".encode()).digest()
    trace_id = f"tr-{key[:16].hex()}"
    info = TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=int(sample.created_at * 1e3),
        execution_duration=0,
        state=TraceState.ERROR if sample.reward is None else TraceState.OK,
        request_preview=sample.prompt_text[-_PREVIEW:],
        response_preview=sample.response_text[:_PREVIEW],
        client_request_id=sample.experience_id,
        trace_metadata={TraceMetadataKey.SOURCE_RUN: mlflow_run_id},
        tags={TraceTagKey.TRACE_NAME: f"step {step}", "tidemill.step": str(step), "tidemill.task_id": sample.task_id},
        assessments=[] if sample.reward is None else [_reward(trace_id, key, sample)],
    )
    client.start_trace(info)
    client.log_spans(experiment_id, [_span(trace_id, key, experiment_id, step, sample)])
    return trace_id


def _reward(trace_id: str, key: bytes, sample: Experience) -> Feedback:
    """The reward as an assessment, so that MLflow's list shows and sorts it."""
    time_ms = int(sample.created_at * 1e3)
    feedback = Feedback(
        name="reward",
        value=sample.reward,
        rationale=reason_of(sample) or None,
        source=AssessmentSource("CODE", "tidemill"),
        trace_id=trace_id,
        create_time_ms=time_ms,
        last_update_time_ms=time_ms,
    )
    feedback.assessment_id = f"a-{key[16:].hex()}"
    return feedback


def _span(trace_id: str, key: bytes, experiment_id: str, step: int, sample: Experience) -> Span:
    time_ns = int(sample.created_at * 1e9)
    scored = sample.reward is not None
    attributes = {
        SpanAttributeKey.REQUEST_ID: trace_id,
        SpanAttributeKey.EXPERIMENT_ID: experiment_id,
        SpanAttributeKey.SPAN_TYPE: SpanType.LLM,
        SpanAttributeKey.INPUTS: sample.prompt_text,
        SpanAttributeKey.OUTPUTS: sample.response_text,
        **_shown(step, sample),
    }
    return Span.from_dict(
        {
            "trace_id": b64encode(key[:16]).decode(),
            "span_id": b64encode(key[16:24]).decode(),
            "parent_span_id": None,
            "name": "attempt",
            "start_time_unix_nano": time_ns,
            "end_time_unix_nano": time_ns,
            "status": {"code": "STATUS_CODE_OK"} if scored else {"code": "STATUS_CODE_ERROR", "message": reason_of(sample)},
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
            "events": [],
            "links": [],
        }
    )


def _shown(step: int, sample: Experience) -> Mapping[str, Any]:
    return {
        "step": step,
        "reward": sample.reward,
        "reward_parts": dict(sample.reward_parts),
        "reason": reason_of(sample),
        "version": sample.policy_version,
        "task_id": sample.task_id,
        "stop_reason": sample.stop_reason,
        "attempt": sample.attempt,
        "turn_index": sample.turn_index,
    }
