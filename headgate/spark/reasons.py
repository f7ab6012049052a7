"""Why something failed, in one sentence, out of what Spark and Python say about it in a hundred lines."""

from __future__ import annotations

import re

from headgate.errors import HeadgateError

MOST = 400
"""Signs of a reason that are kept."""
_LANE = re.compile(r"LaneError: (.+)")
_RAISED = re.compile(r"^(?:: )?(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)
_NOISE = ("SparkException", "Py4JJavaError", "StreamingQueryException", "PythonException", "SparkRuntimeException")


def reason_of(error: BaseException) -> str:
    """One sentence for people.

    >>> reason_of(ValueError("no such tier"))
    'ValueError: no such tier'
    """
    text = str(error)
    if isinstance(error, HeadgateError):
        return text
    lane = _LANE.search(text)
    if lane is not None:
        return _short(lane[1])
    raised = [f"{kind}: {what}" for kind, what in _RAISED.findall(text) if kind not in _NOISE]
    if raised:
        return _short(raised[-1])
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _short(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST else f"{text[:MOST]}…"
