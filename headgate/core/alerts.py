"""Alerts: problems that only a person can solve. Advice is the list of current alerts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AlertKind(StrEnum):
    """Kinds of alerts."""

    OVERSUBSCRIBED = "oversubscribed"
    """The cluster has too few cores for its intents."""
    LITTLE_GAIN = "little gain"
    """A job was reconfigured several times and gained too little utility."""
    NOT_JUDGED = "not judged"
    """The utility function of a job fails."""
    UNREADABLE = "unreadable"
    """The metrics of a job could not be read."""
    SILENT_HOST = "silent host"
    """A host with lanes of a job sends no heartbeats."""
    NO_POLICY = "no policy"
    """A job names a policy that does not exist."""
    POLICY_OFF = "policy off"
    """A policy failed and is switched off for a while."""
    HOT_SLICE = "hot slice"
    """One slice of a keyed operator saturates its lane."""
    TOO_LITTLE_INPUT = "too little input"
    """Less input arrives at the sources of a job than its throughput target."""
    SOURCES_AT_LIMIT = "sources at limit"
    """The sources of a job have reached their lane limit."""
    POLICY = "policy"
    """A user-defined policy raised an alert."""
    JOB_DOWN = "job down"
    """A job is retrying or failed."""
    STATE_QUOTA = "state quota"
    """The jobs of a tenant keep more state than its quota."""
    JOBS_LOST = "jobs lost"
    """The list of jobs on disk was damaged."""
    AUDIT = "audit"
    """A change could not be written to the audit log."""
    EARLIER = "earlier"
    """An alert from the journal of an earlier version, which recorded only the sentence."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that only a person can solve.

    >>> Alert("no rows for 5 s", "clicks", "words").sentence
    'words: no rows for 5 s'
    """

    text: str
    """The alert in one sentence, without the name of the job."""
    about: str = ""
    """The operator, host or policy concerned; a policy with several alerts about one job gives each alert a different word."""
    job: str = ""
    """The job concerned; empty for an alert about the cluster or the service."""
    kind: AlertKind = AlertKind.POLICY

    @property
    def key(self) -> tuple[AlertKind, str, str]:
        """Identity of the alert: two alerts that differ only in their figures have the same key."""
        return self.kind, self.job, self.about

    @property
    def sentence(self) -> str:
        """The text, prefixed with the name of the job."""
        return f"{self.job}: {self.text}" if self.job else self.text
