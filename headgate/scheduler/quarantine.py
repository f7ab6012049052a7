"""Quarantine of jobs that cannot be judged: failing utility function, no reading, too new, or lanes on a silent host.

The scheduler schedules all other jobs without the quarantined jobs.

A utility may be a user-defined function. A job stays in quarantine for `skip_s` after the last failure, so that a function that
fails now and then does not restart the search each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from headgate.config import Settings
from headgate.core.alerts import Alert, AlertKind
from headgate.core.metrics import JobView, View
from headgate.core.model import HostReading
from headgate.core.quantities import show_seconds
from headgate.scheduler.trials import Trials


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a job is not judged, until when, and the fingerprint of the intent that failed."""

    reason: str
    until_s: float
    intent: str
    host: str = ""
    """Name of the silent host that runs lanes of the job; empty for another reason."""

    def alert(self, job: str) -> Alert:
        """The quarantine as an alert for people."""
        kind = AlertKind.UNREADABLE if self.reason == UNREAD else AlertKind.NOT_JUDGED
        text = f"not judged and keeps its lanes: {self.reason}"
        return Alert(text, self.host, job, AlertKind.SILENT_HOST if self.host else kind)


UNREAD = "its metrics could not be read"
AFTERWARDS = "collecting new measurements"


def quarantined(before: Mapping[str, Quarantine], view: View, settings: Settings) -> dict[str, Quarantine]:
    """The jobs in quarantine now: jobs that failed in this round, or recently with the same intent.

    If no job at all can be read, the cluster has an outage, and no job is quarantined for it.
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
    """The silent host that runs lanes of the job, or ran them when it fell silent; any silent host if the lanes' hosts are unknown.

    The engine may run the job on the other hosts meanwhile, but its utility there says nothing about the whole cluster. If silent
    hosts hold more than `suspect_share` of the cores, this applies to all jobs, because all jobs then share the remaining hosts.
    """
    suspects = view.suspects
    if not suspects:
        return None
    if old is not None and old.host in suspects:
        return suspects[old.host]
    lost = sum(host.cores for host in suspects.values()) > settings.suspect_share * sum(h.cores for h in view.hosts)
    on = _hosts_of(job)
    return next((host for name, host in sorted(suspects.items()) if lost or not on or name in on), None)


def _hosts_of(job: JobView) -> set[str]:
    """Hosts of the job's lanes at any time in the window, as lanes may have left a silent host already; empty if unknown."""
    operators = (operator for sample in job.samples for operator in sample.reading.operators.values())
    return {host for operator in operators for host in operator.hosts or ()}


def restart_windows(trials: Trials, unjudged: Mapping[str, Quarantine], view: View) -> Trials:
    """Restart the window of each job on a silent host every round, so that its window starts when the host is back."""
    return trials.measure_from(view.at_s, (name for name, found in unjudged.items() if found.host in view.suspects))


def arriving(known: Collection[str], view: View, apart: Collection[str], settings: Settings) -> frozenset[str]:
    """New or returning jobs with too little data, which must not delay decisions about other jobs; empty if all jobs are new."""
    others = view.jobs.keys() - apart
    new = frozenset(name for name in others if name not in known and view.jobs[name].is_new(settings.warm_up_s))
    return new if new < others else frozenset()
