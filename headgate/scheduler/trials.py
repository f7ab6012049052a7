"""Trials: actions whose effect is awaited, from the decision to the verdict.

The search, which serves all scheduled jobs, has one trial at a time, under the name `SEARCH`. Each self-regulating job has a trial of its
own, under the name of the job. A trial begins with its action. Once the changed jobs have settled, their windows start over. The trial
ends with a verdict, or when the action was not applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.config import Settings
from headgate.core.model import ActionKind, Allocation
from headgate.health.records import Log, LogEntry, purged

SEARCH = ""
"""Owner of the search's trial, and of its actions."""


@dataclass(frozen=True, slots=True)
class Trial:
    """An action whose effect is awaited, with the measurements from before the action."""

    kind: ActionKind
    job: str | None
    touched: tuple[str, ...]
    """Jobs whose allocation the action changes."""
    at_s: float
    """Time at which the action was decided or, if later, applied."""
    score: float
    total: float
    """Total utility of all jobs before the action, whatever the objective."""
    utilities: Mapping[str, float]
    """Utility of each job before the action."""
    latency_ratio: float = 0.0
    """Latency of `job` before the action, as a multiple of its intent; 0 if unknown."""
    arrival_rows_s: float = 0.0
    """Input of `job` before the action, in rows per second."""
    output_rows_s: float = 0.0
    """Output of `job` before the action, in rows per second."""
    settled_s: float | None = None
    """Time at which the measurements of the touched jobs became steady; None: not yet."""
    entry: LogEntry | None = None
    """The action-log entry of an action that a diagnosis asked for; None for other actions."""
    had: Allocation = field(default_factory=dict)
    """Allocations of the touched jobs before the action."""
    follows_harm_of: tuple[str, ...] = ()
    """Jobs whose earlier changes caused a loss that this reduction is to make up for."""


@dataclass(frozen=True, slots=True)
class Trials:
    """All running trials, and the action log of judged remedies; the journal stores both."""

    awaited: Mapping[str, Trial] = field(default_factory=dict)
    """Running trials by owner: `SEARCH`, or the name of a self-regulating job."""
    since_s: Mapping[str, float] = field(default_factory=dict)
    """Start time of each job's window: a window never spans a change."""
    log: Log = ()
    """Action log: remedies that were judged or refused."""

    @property
    def search(self) -> Trial | None:
        """The running trial of the search; None without a running trial."""
        return self.awaited.get(SEARCH)

    def begin(self, owner: str, trial: Trial) -> Trials:
        """Start a trial; if its settle time is fixed already, the windows of its jobs start at that time."""
        awaited = dataclasses.replace(self, awaited={**self.awaited, owner: trial})
        return awaited if trial.settled_s is None else awaited.measure_from(trial.settled_s, trial.touched)

    def settle(self, owner: str, at_s: float, since_s: Mapping[str, float]) -> Trials:
        """Mark a trial as settled, and start the windows of its jobs at `since_s`."""
        trial = dataclasses.replace(self.awaited[owner], settled_s=at_s)
        return dataclasses.replace(self, awaited={**self.awaited, owner: trial}, since_s={**self.since_s, **since_s})

    def delay(self, owner: str, at_s: float, pause_s: float) -> Trials:
        """Restart a trial at `at_s`, because its action was applied later than decided."""
        trial = self.awaited.get(owner)
        if trial is None:
            return self
        settled_s = None if owner == SEARCH else at_s + pause_s
        return self.begin(owner, dataclasses.replace(trial, at_s=at_s, settled_s=settled_s))

    def end(self, owner: str) -> Trials:
        """End a trial: its effect is judged, or its action was not applied."""
        return dataclasses.replace(self, awaited={name: one for name, one in self.awaited.items() if name != owner})

    def remember(self, entry: LogEntry, at_s: float, settings: Settings) -> Trials:
        """Add a remedy to the action log, and purge old entries."""
        return dataclasses.replace(self, log=purged((*self.log, entry), at_s, settings))

    def measure_from(self, at_s: float, jobs: Iterable[str]) -> Trials:
        """Start the windows of these jobs at `at_s`."""
        return dataclasses.replace(self, since_s={**self.since_s, **dict.fromkeys(jobs, at_s)})

    def forget(self, jobs: Mapping[str, object]) -> Trials:
        """Drop trials and windows of removed jobs; the action log stays."""
        if not (self.awaited.keys() | self.since_s.keys()) - jobs.keys() - {SEARCH}:
            return self
        awaited = {name: trial for name, trial in self.awaited.items() if name == SEARCH or name in jobs}
        return dataclasses.replace(self, awaited=awaited, since_s={n: s for n, s in self.since_s.items() if n in jobs})
