"""Encodes records of the journal as text and bytes, and decodes records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import msgspec

from headgate.core.alerts import Alert, AlertKind
from headgate.core.model import Action, Outcome, Snapshot
from headgate.journal.summary import RoundAction
from headgate.ports import Effect, JobRecord, RecordedAction, RoundRecord


def writable(action: Action) -> Action:
    """The action with infinite and NaN facts as text, so that JSON, which has neither, can hold the action."""
    facts = {name: _fact(value) for name, value in action.cause.facts.items()}
    return dataclasses.replace(action, cause=dataclasses.replace(action.cause, facts=facts))


def _fact(value: float | str) -> float | str:
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def _plain(value: Any) -> Any:
    """Convert numpy numbers, and mappings other than dict, which msgspec cannot encode."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise NotImplementedError


_JSON = msgspec.json.Encoder(enc_hook=_plain)
_PACK = msgspec.msgpack.Encoder(enc_hook=_plain)


def json_text(value: Any) -> str:
    """The value as JSON, which a person can read in the sqlite3 shell."""
    return _JSON.encode(value).decode()


def pack(snapshot: Snapshot) -> bytes:
    """The snapshot as MessagePack, which preserves infinity and NaN in readings."""
    return _PACK.encode(snapshot)


def round_action(
    action_id: int, number: int, at_s: float, action: str, outcome: str | None, effect: str | None
) -> RoundAction:
    """An action from a row of the table `actions`."""
    recorded = RecordedAction(
        id=action_id,
        at_s=at_s,
        action=msgspec.json.decode(action, type=Action),
        outcome=None if outcome is None else msgspec.json.decode(outcome, type=Outcome),
        effect=None if effect is None else msgspec.json.decode(effect, type=Effect),
    )
    return RoundAction(number, recorded)


@dataclass(frozen=True, slots=True)
class _RoundFrame:
    """A round with its jobs still encoded, so that a reader of one job does not decode all other jobs."""

    at_s: float
    phase: str
    score: float
    max_score: float
    jobs: dict[str, msgspec.Raw]
    decision: str = ""
    advice: tuple[Alert | str, ...] = ()
    """The current alerts; in a journal of an earlier version, sentences."""


def round_from(summary: str, jobs: Collection[str] | None) -> RoundRecord:
    """The round with these jobs only; None: with all jobs."""
    frame = msgspec.json.decode(summary, type=_RoundFrame)
    wanted = frame.jobs if jobs is None else [name for name in jobs if name in frame.jobs]
    named = {name: msgspec.json.decode(frame.jobs[name], type=JobRecord) for name in wanted}
    advice = tuple(Alert(one, kind=AlertKind.EARLIER) if isinstance(one, str) else one for one in frame.advice)
    return RoundRecord(frame.at_s, frame.phase, frame.score, frame.max_score, named, frame.decision, advice)
