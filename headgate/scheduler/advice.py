"""Advice to people: a cluster that is too small, jobs that take many lanes and gain little utility (Henge, section 5.5)."""

from __future__ import annotations

from headgate.config import Settings
from headgate.core.alerts import Alert, AlertKind
from headgate.core.metrics import View
from headgate.scheduler.memory import State


def advice(state: State, view: View, settings: Settings) -> tuple[Alert, ...]:
    """One alert for an oversubscribed cluster, and one for each job that gains too little from its lanes."""
    found = []
    missed = [job for job in view.jobs.values() if job.met is False]
    if missed and state.shortfall > settings.crowded_share:
        text = (
            f"the cluster is oversubscribed: {len(missed)} of {len(view.jobs)} intents missed for lack of cores"
            " for most of the last hour; add hosts or relax intents"
        )
        found.append(Alert(text, kind=AlertKind.OVERSUBSCRIBED))
    for name, steps in sorted(state.steps.items()):
        job = view.jobs.get(name)
        if job is not None and steps >= settings.hungry_steps and name in state.skipped:
            text = (
                f"{steps} reconfigurations to {sum(job.allocation.lanes.values())} lanes gained too little;"
                f" utility {job.utility or 0:.2f} of {job.worth:g}; relax its intent or profile the job"
            )
            found.append(Alert(text, job=name, kind=AlertKind.LITTLE_GAIN))
    return tuple(found)
