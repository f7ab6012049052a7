"""The condition of each scheduler rule (Henge, section 5); `candidates` computes the possible actions."""

from __future__ import annotations

from headgate.core.metrics import JobView
from headgate.core.model import ActionKind
from headgate.scheduler.candidates import (
    changes_to_best,
    differences_from_best,
    hopeless_job,
    reductions,
    relaxations,
    returned_shares,
)
from headgate.scheduler.help import help_for
from headgate.scheduler.memory import Situation, fingerprints


def always(_: Situation) -> bool:
    return True


def policy_asks_for_remedy(now: Situation) -> bool:
    return now.advice.asking_job is not None


def no_job_is_scheduled(now: Situation) -> bool:
    return not now.view.jobs


def no_job_can_be_read(now: Situation) -> bool:
    return bool(now.view.unread)


def gathers_data_after_outage(now: Situation) -> bool:
    return now.state.blind


def workload_changed(now: Situation) -> bool:
    return dict(now.state.intents) != fingerprints(now.view)


def effect_is_awaited(now: Situation) -> bool:
    return now.state.trials.search is not None


def some_job_warms_up(now: Situation) -> bool:
    return bool(now.warming_up)


def step_did_harm(now: Situation) -> bool:
    return now.verdict is not None and now.verdict.harmful


def harmed_and_reducible(now: Situation) -> bool:
    grown = now.verdict is not None and now.verdict.kind is ActionKind.RECONFIGURE
    return grown and step_did_harm(now) and bool(now.view.congested) and not now.state.reduced and bool(reductions(now))


def harmed_while_others_wait(now: Situation) -> bool:
    return (
        step_did_harm(now) and bool(changes_to_best(now)) and any(help_for(job, now) is not None for job in now.wanting)
    )


def fell_for_another_reason(now: Situation) -> bool:
    return now.verdict is not None and now.verdict.kind is ActionKind.RECONFIGURE and now.verdict.fell


def all_met(now: Situation) -> bool:
    return not now.missing


def all_met_for_long(now: Situation) -> bool:
    return not now.missing and now.state.stable + 1 >= now.settings.stable_rounds


def can_relax(now: Situation) -> bool:
    return bool(relaxations(now))


def can_return_shares(now: Situation) -> bool:
    return bool(returned_shares(now))


def can_help_a_job(now: Situation) -> bool:
    return any(help_for(job, now) is not None for job in now.wanting)


def can_prevent_a_miss(now: Situation) -> bool:
    if now.wanting or now.view.congested:
        return False
    return any(help_for(job, now) is not None for job in now.close_to_miss)


def can_throttle(now: Situation) -> bool:
    return hopeless_job(now) is not None


def can_make_room(now: Situation) -> bool:
    """Whether load exceeds the cores by the factor `crush`, so that more lanes only slow other jobs, and a job can be throttled."""
    cores = sum(host.cores for host in now.view.lasting)
    load = sum(host.load or 0.0 for host in now.view.lasting)
    return load > now.settings.crush * cores and can_throttle(now)


def waits_for_recovery(now: Situation) -> bool:
    return bool(now.recovering_jobs)


def can_return_to_best(now: Situation) -> bool:
    return _knows_better(now) and bool(changes_to_best(now))


def _knows_better(now: Situation) -> bool:
    best = now.state.best
    return best is not None and best.score > now.score + now.settings.noise * now.max_score


def return_is_refused(now: Situation) -> bool:
    return _knows_better(now) and any(now.refuses(name) for name in differences_from_best(now))


def fell(now: Situation) -> bool:
    """Whether a job wants help, and either the score fell by the share `drop` (Henge, section 5.3) or that job lost (beyond the paper)."""
    rest = now.state.rest_score
    total = rest is not None and now.score < rest * (1 - now.settings.drop) and bool(now.wanting)
    return total or any(_has_lost(job, now) for job in now.wanting)


def _has_lost(job: JobView, now: Situation) -> bool:
    """Whether the job is below its worth by the share `drop`, in window and newest sub-window, or misses its intent for `linger_s`."""
    if now.view.at_s - now.state.missed_since_s[job.job.name] >= now.settings.linger_s:
        return True
    limit = job.worth * (1 - now.settings.drop)
    return job.utility is not None and job.utility < limit and job.recent is not None and job.recent < limit
