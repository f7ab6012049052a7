"""Jobs that cannot be judged: their utility fails, they cannot be read, or they are too new. The others are scheduled without them.

A utility may be a function of the user's. A job stays in quarantine for a while after the last failure, so that a function that
fails now and then does not make the scheduler forget its history each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headgate.config import Settings
from headgate.core.metrics import View


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a job is not judged, until when, and the intent that it holds for."""

    reason: str
    until_s: float
    intent: str

    def sentence(self, job: str) -> str:
        """For people, with the name of the job."""
        return f"{job} is not judged and keeps the lanes it has: {self.reason}"


UNREAD = "it could not be read"


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
        elif name in unread:
            found[name] = Quarantine(UNREAD, view.at_s + settings.outage_data_s, intent)
        elif old is not None and view.at_s < old.until_s and old.intent == intent:
            found[name] = old
    return found


def arriving(known: Collection[str], view: View, apart: Collection[str], settings: Settings) -> frozenset[str]:
    """Jobs that came, or came back, and have too little data: they delay no decision about others. None of them if all jobs are new."""
    others = view.jobs.keys() - apart
    new = frozenset(name for name in others if name not in known and view.jobs[name].is_new(settings.warm_up_s))
    return new if new < others else frozenset()
