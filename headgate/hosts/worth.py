"""Value of a further host: which jobs need more room, and the utility that these jobs would gain."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.config import Settings
from headgate.core.metrics import JobView, View, utility_of
from headgate.scheduler.memory import latency_ratio


def at_risk(job: JobView, settings: Settings) -> bool:
    """Whether a job misses its intent, or is close to missing it; right after a change only the newest sub-window counts."""
    if job.met is None:
        return job.recent is not None and job.recent < job.worth
    return not job.met or latency_ratio(job) > settings.close_to_miss


def points_gained(
    missing: Mapping[str, float], left: Mapping[str, float], view: View, ahead_s: float, settings: Settings
) -> float:
    """Utility that jobs gain when the lanes or slots that they lack shrink from `missing` to `left`.

    A job gains the utility at stake, in proportion to the lacking lanes or slots that the job receives.
    """
    return sum(
        (1 - left.get(name, 0.0) / missing[name]) * at_stake(view.jobs[name], ahead_s, settings)
        for name in sorted(missing)
    )


def at_stake(job: JobView, ahead_s: float, settings: Settings) -> float:
    """Utility that a job will lack, compared with its worth, after `ahead_s` seconds if its backlog keeps growing at the current rate."""
    if job.span is None or job.utility is None:
        return job.worth - job.recent if job.recent is not None else 0.0
    first, last = job.span.first.reading.backlog, job.span.last.reading.backlog
    rate_rows_s = job.span.arrival_rows_s()
    if job.latency_s is None or first is None or last is None or rate_rows_s <= 0:
        return job.worth - job.utility
    longer_s = max(0.0, last - first) / job.span.seconds / rate_rows_s * ahead_s
    then = utility_of(job.job, job.latency_s + longer_s, job.juice, settings)
    return job.worth - min(job.utility, then if then is not None else job.utility)
