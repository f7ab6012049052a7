"""What only a person can change: too small a cluster, jobs that take much and gain little (Henge, section 5.5)."""

from __future__ import annotations

from headgate.config import Settings
from headgate.core.metrics import View
from headgate.scheduler.memory import State


def advice(state: State, view: View, settings: Settings) -> tuple[str, ...]:
    """What only a person can change: too small a cluster, jobs that take much and gain little (Henge, section 5.5)."""
    lines = []
    missed = [job for job in view.jobs.values() if job.met is False]
    if missed and state.shortfall > settings.crowded_share:
        lines.append(
            f"the cluster is oversubscribed: {len(missed)} of {len(view.jobs)} intents missed for want of cores"
            " for most of the last hour; add hosts, or ask for less"
        )
    for name, steps in sorted(state.steps.items()):
        job = view.jobs.get(name)
        if job is not None and steps >= settings.hungry_steps and name in state.skipped:
            lines.append(
                f"{name} is hungry: {steps} reconfigurations to {sum(job.allocation.lanes.values())} lanes gained too little;"
                f" utility {job.utility or 0:.2f} of {job.worth:g}; ask for less, or look at the job"
            )
    return tuple(lines)
