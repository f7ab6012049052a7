"""Errors of outside systems as errors of Headgate, in one sentence that says whether the failure can pass without a change."""

from __future__ import annotations

from headgate.errors import EngineError
from headgate.spark.epochs.lanes import LaneError


def failure(text: str, operator: str) -> Exception:
    """An error that names its operator; without an operator, the caller of the sink or source adds the name.

    The error crosses processes as text: the failure is an outage, which is retried without limit, only if the text contains a word by
    which `headgate.spark.reasons` recognises one, such as `ConnectionError` or "timed out".
    """
    return LaneError(f'operator "{operator}": {text}') if operator else EngineError(text)
