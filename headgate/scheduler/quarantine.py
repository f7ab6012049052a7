"""Jobs that cannot be judged: their utility fails, they cannot be read, they are too new, or a host of theirs is silent.

The others are scheduled without them.

A utility may be a function of the user's. A job stays in quarantine for a while after the last failure, so that a function that
fails now and then does not make the scheduler forget its history each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from headgate.config import Settings
from headgate.core.metrics import JobView, View
from headgate.core.model import HostReading
from headgate.core.quantities import show_seconds


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a job is not judged, until when, and the intent that it holds for."""

    reason: str
    until_s: float
    intent: str
    host: str = ""
    """The silent host that lanes of the job were on; empty for another reason."""

    def sentence(self, job: str) -> str:
        """For people, with the name of the job."""
        return f"{job} is not judged and keeps the lanes it has: {self.reason}"


UNREAD = "it could not be read"
AFTERWARDS = "new measurements are collected first"


def quarantined(before: Mapping[str, Quarantine], view: View, settings: Settings) -> dict[str, Quarantine]:
    """The jobs in quarantine now: a failure in this round, or one not long ago with the same intent.

    If no job at all can be read, the cluster has an outage, and no job is to blame for it.
    """
    unread = view.unread if view.unread < view.jobs.keys() else frozenset()
    found = {}
    for name, job in view.jobs.items():
        intent, old = job.job.intent.fingerprint(), before.get(name)
        if job.trouble:
            found[name] = Quarantine(job.trouble, view.at_s + settings.skip_s, intent)
        elif host := _silent_host(job, old, view, settings):
            reason = f"host {host.name} has been silent for {show_seconds(host.silent_s or 0.0)}"
            found[name] = Quarantine(reason, view.at_s + settings.warm_up_s, intent, host.name)
        elif name in unread:
            found[name] = Quarantine(UNREAD, view.at_s + settings.outage_data_s, intent)
        elif old is not None and view.at_s < old.until_s and old.intent == intent:
            found[name] = old if not old.host else replace(old, reason=f"host {old.host} was silent; {AFTERWARDS}")
    return found


def _silent_host(job: JobView, old: Quarantine | None, view: View, settings: Settings) -> HostReading | None:
    """The silent host that the job has lanes on, or had when the host fell silent; a job whose lanes may be anywhere counts as well.

    Such a job runs on the other hosts meanwhile, but what it is worth there says nothing about the whole cluster. Where silent hosts
    are much of the cluster, the same holds for all jobs: those on the other hosts make room.
    """
    suspects = view.suspects
    if old is not None and old.host in suspects:
        return suspects[old.host]
    lost = sum(host.cores for host in suspects.values()) > settings.suspect_share * sum(h.cores for h in view.hosts)
    on = _hosts_of(job)
    return next((host for name, host in sorted(suspects.items()) if lost or not on or name in on), None)


def _hosts_of(job: JobView) -> set[str]:
    """Where its lanes ran in the window; empty if that is not known. By the time a host is suspect, they may be elsewhere."""
    operators = (operator for sample in job.samples for operator in sample.reading.operators.values())
    return {host for operator in operators for host in operator.hosts or ()}


def restarted(since_s: Mapping[str, float], unjudged: Mapping[str, Quarantine], view: View) -> dict[str, float]:
    """From when on each job is measured: a job on a silent host from now on, so that its window begins when the host is back."""
    silent = {name: view.at_s for name, found in unjudged.items() if found.host in view.suspects}
    return {**since_s, **silent}


def arriving(known: Collection[str], view: View, apart: Collection[str], settings: Settings) -> frozenset[str]:
    """Jobs that came, or came back, and have too little data: they delay no decision about others. None of them if all jobs are new."""
    others = view.jobs.keys() - apart
    new = frozenset(name for name in others if name not in known and view.jobs[name].is_new(settings.warm_up_s))
    return new if new < others else frozenset()
