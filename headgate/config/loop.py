"""Settings of the control loop and of the health pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headgate.config.declaring import setting


class Objective(StrEnum):
    """What the scheduler maximises: the setting `objective`."""

    TOTAL = "total"
    """The total utility."""
    LOWEST = "lowest"
    """The lowest satisfaction of a job."""
    FAIR = "fair"
    """The lowest weighted satisfaction of a tenant, then the total utility."""


class SizingMethod(StrEnum):
    """How lanes are sized: the setting `sizing`."""

    MODEL = "model"
    """By measured true rates and the backlog."""
    PAPER = "paper"
    """By eq. 4 of Henge."""


class AllowedRemedies(StrEnum):
    """Which remedies a job that misses its intent gets: the setting `remedies`."""

    DIAGNOSED = "diagnosed"
    """The remedy that a diagnosis asks for."""
    LANES = "lanes"
    """More lanes, whatever the diagnosis."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the control loop measures and decides; the defaults are the Henge papers' where they give a number."""

    round_s: float = setting(
        10.0, "s", "Time between two rounds of the control loop; also the length of a sub-window.", 0.1
    )
    window_s: float = setting(
        60.0, "s", "Length of the sliding window over which juice, latency and capacity are measured.", 0.1
    )
    capacity_threshold: float = setting(
        0.3, "share", "An operator is congested when its busiest lane is busy above this share of the window.", 0.01, 1
    )
    lanes_per_congestion: float = setting(
        10.0,
        "lanes",
        "Paper sizing: lanes added for each multiple of the capacity threshold by which an operator exceeds the threshold (eq. 4).",
        0.1,
    )
    improvement: float = setting(
        0.05,
        "share",
        "The scheduler skips a job whose reconfiguration gained less than this share of its utility.",
        0,
        1,
    )
    skip_s: float = setting(
        3600.0, "s", "Time for which the scheduler skips a job that a reconfiguration did not help."
    )
    skip_doublings: int = setting(
        5, "times", "The skip time of a job that is skipped repeatedly doubles at most this often.", 0, 10
    )
    load_change: float = setting(
        0.2,
        "share",
        "When the input of a job changes by more than this share, the scheduler no longer skips the job, nor blames its last action.",
        0,
    )
    reduction: float = setting(
        0.8,
        "share",
        "Share of lanes that a reduction takes from each idle operator of jobs that meet their intents.",
        0,
        1,
    )
    hopeless: float = setting(
        0.1,
        "share",
        "The scheduler may throttle a job that gets less than this share of its worth and has no remedy.",
        0,
        1,
    )
    crush: float = setting(
        3.0,
        "lanes per core",
        "Above this many runnable lanes per core, the scheduler throttles hopeless jobs before it helps other jobs.",
        1,
    )
    drop: float = setting(
        0.05,
        "share",
        "A loss of more than this share of the total, or of one job's utility, ends the Converged state.",
        0,
        1,
    )
    noise: float = setting(
        0.01, "share", "The scheduler ignores changes of the total utility below this share of its maximum.", 0, 1
    )
    stable_rounds: int = setting(
        4, "rounds", "The cluster counts as Converged after all intents held for this many rounds in a row.", 1
    )
    outage_data_s: float = setting(
        300.0, "s", "After measurements were missing, the scheduler collects this much new data before a decision."
    )
    suspect_share: float = setting(
        0.2, "share", "No job is judged while silent hosts have more than this share of all cores.", 0, 1
    )
    warm_up_s: float = setting(30.0, "s", "The scheduler judges a job only on at least this much data.")
    settle_min_s: float = setting(30.0, "s", "The scheduler judges an action at the earliest after this time.")
    settle_max_s: float = setting(180.0, "s", "The scheduler judges an action at the latest after this time.")
    settle_change: float = setting(
        0.1, "share", "Measurements have settled when two consecutive sub-windows differ by less than this share.", 0, 1
    )
    sizing: str = setting(
        SizingMethod.MODEL.value,
        "",
        "Lanes of a congested operator: `model` follows measured true rates and catches up with the backlog, `paper` is eq. 4.",
        choices=tuple(SizingMethod),
    )
    target_busy: float = setting(
        0.6, "share", "Model sizing: share of its time that a lane should be busy after a reconfiguration.", 0.05, 1
    )
    catch_up_s: float = setting(120.0, "s", "Model sizing: time in which a job should process its backlog.", 1)
    catch_up_limit: float = setting(
        1.0, "share", "Model sizing: lanes for the backlog are added for at most this multiple of the input.", 0
    )
    patience_s: float = setting(
        1200.0, "s", "The scheduler leaves a job alone that will have processed its backlog within this time."
    )
    growth_limit: float = setting(
        5.0, "times", "Model sizing: an operator gets at most this many times its lanes per step.", 1
    )
    close_to_miss: float = setting(
        0.9,
        "share",
        "The scheduler helps a job whose latency exceeds this share of its intent before the job misses the intent, if cores are free.",
        0,
        1,
    )
    crowded_growth: float = setting(
        2.0,
        "times",
        "Model sizing: an operator on a congested cluster gets at most this many times its lanes per step.",
        1,
    )
    retry_s: float = setting(
        300.0, "s", "The controller does not repeat an action that was refused, or only observed, for this long."
    )
    smallest_step: float = setting(
        0.1, "share", "Model sizing: the scheduler never changes an operator's lanes by less than this share.", 0, 1
    )
    linger_s: float = setting(
        300.0, "s", "The scheduler helps a job that has missed its intent by less than `drop` for this long."
    )
    max_lanes: int = setting(1024, "lanes", "No operator gets more lanes than this.", 1)
    objective: str = setting(
        Objective.TOTAL.value,
        "",
        "What the scheduler maximises: the `total` utility, the `lowest` satisfaction of a job, or `fair`: the lowest weighted"
        " satisfaction of a tenant, then the total.",
        choices=tuple(Objective),
    )
    juice_tolerance: float = setting(
        0.005,
        "share",
        "Juice this close below its threshold counts as met, because both ends of an edge are never read at the same moment.",
        0,
        0.1,
    )
    pace_margin: float = setting(
        0.7,
        "share",
        "The scheduler sets the pace of a job with time to spare so that latency stays below this share of the intent.",
        0.1,
        1,
    )
    pace_step: float = setting(
        0.25,
        "share",
        "The scheduler lengthens the pace of a job with time to spare only if the pace grows by more than this share.",
        0,
    )
    slot_wait: float = setting(
        0.2, "share", "Slots are short if tasks spend at least this share of their time waiting for a slot.", 0.01, 1
    )
    share_step: float = setting(
        4.0,
        "times",
        "While task slots are short, the scheduler raises the share of a job that misses its intent to this many times its declared"
        " share, before the job gets lanes; 1 switches this off.",
        1,
        10,
    )
    hungry_steps: int = setting(
        2, "actions", "Headgate raises advice about a job after this many reconfigurations without enough gain.", 1
    )
    crowded_share: float = setting(
        0.5,
        "share",
        "Headgate reports the cluster as oversubscribed if the total utility stays below its maximum for more than this share of an hour.",
        0,
        1,
    )
    stale_rounds: int = setting(
        3, "rounds", "Readings older than this are stale: no job counts as met, and `GET /health` answers 503.", 1
    )
    journal_keep_h: float = setting(168.0, "h", "The journal keeps rounds for this long.")
    actions_keep_h: float = setting(8760.0, "h", "The journal keeps actions for this long.")
    keep_removed_h: float = setting(
        24.0,
        "h",
        "A removed job can be restored for this long; at 0, Headgate deletes the checkpoint and state of a removed job at once.",
        0,
    )
    keep_dead_letters_h: float = setting(
        720.0, "h", "The service deletes dead letters older than this, including dead letters of removed jobs.", 0
    )
    remedies: str = setting(
        AllowedRemedies.DIAGNOSED.value,
        "",
        "Remedy for a job that misses its intent: `diagnosed` re-assigns slices, moves lanes or adds lanes, `lanes` only adds lanes.",
        choices=tuple(AllowedRemedies),
    )
    health_window_s: float = setting(
        300.0, "s", "Health: length of the window in which the pipeline looks for symptoms.", 1
    )
    health_least_s: float = setting(
        120.0, "s", "Health: the pipeline diagnoses a job only on at least this much data since its last change.", 1
    )
    health_pause_s: float = setting(
        120.0, "s", "Health: the pipeline measures nothing for this long after an action, so that the job settles."
    )
    held_least: float = setting(
        0.02, "share", "Health: input that is held back for less than this share of the window is no symptom.", 0, 1
    )
    backlog_wait_s: float = setting(
        60.0,
        "s",
        "Health: rows that wait at the sources for longer than this, and do not become fewer, are a symptom (backlog / rows per second).",
        1,
    )
    health_least_epochs: int = setting(
        3, "epochs", "Health: lanes are compared only after this many epochs since the last change.", 1
    )
    health_effect: float = setting(
        0.05,
        "share",
        "Health: lanes that differ are a symptom only if the busiest costs at least this share of the time more than its peers.",
        0,
        1,
    )
    memory_short: float = setting(
        0.9, "share", "Health: a host that uses at least this share of its memory is short of memory.", 0, 1
    )
    alike: float = setting(
        0.25,
        "share",
        "Health: lanes count as alike if their figures differ from the median of their peers by no more than this share.",
        0,
    )
    outlier_cut: float = setting(
        3.5,
        "deviations",
        "Health: a lane is an outlier only if it differs from its peers by more than this many robust standard deviations.",
        0,
    )
    pending_least_s: float = setting(
        1.0, "s", "Health: a queue of less work than this before a lane, on average, counts as empty."
    )
    spare_window_s: float = setting(
        900.0, "s", "Health: lanes are spare only if fewer were enough for this long, busiest minute included.", 1
    )
    spare_below: float = setting(
        0.95,
        "share",
        "Health: lanes are spare if the remaining lanes would be busy for no more than this share of their time.",
        0.05,
        1,
    )
    scale_down: float = setting(
        0.2, "share", "Health: share of an operator's lanes that one action takes away at most.", 0, 1
    )
    scale_up_headroom: float = setting(
        0.02, "share", "Health: the pipeline adds lanes for the input that was not handled, and this share more.", 0
    )
    source_step: float = setting(
        4.0,
        "times",
        "Health: a source gets at most this many times its lanes per step, so that load grows gradually.",
        1,
    )
    source_headroom: float = setting(
        0.05, "share", "Health: a source gets lanes for its throughput target, and for this share more.", 0
    )
    blacklist_ratio: float = setting(
        0.5,
        "share",
        "Health: the pipeline blacklists a remedy for a diagnosis when more than this share of its tries was useless.",
        0,
        1,
    )
    log_entries: int = setting(1000, "entries", "Health: the action log keeps this many of its newest entries.", 1)
    log_keep_h: float = setting(168.0, "h", "Health: the action log keeps entries for this long.")
    load_job_s: float = setting(
        30.0, "s", "The service refuses a job file that takes longer than this to load and build its topology.", 0.1
    )
    policy_patience_s: float = setting(
        5.0, "s", "Health: a user policy that takes longer than this for a round's answers is switched off.", 0.1
    )
    policy_back_off_s: float = setting(
        10.0, "s", "Health: a user policy that failed restarts after this time, which doubles with each failure.", 0.1
    )
    policy_back_off_limit_s: float = setting(
        600.0, "s", "Health: longest time after which a user policy that failed restarts.", 1
    )


FAST: Mapping[str, float] = {
    "round_s": 2.0,
    "window_s": 12.0,
    "warm_up_s": 6.0,
    "settle_min_s": 6.0,
    "settle_max_s": 20.0,
    "outage_data_s": 10.0,
    "catch_up_s": 20.0,
    "patience_s": 40.0,
    "skip_s": 60.0,
    "linger_s": 20.0,
    "retry_s": 20.0,
    "health_window_s": 30.0,
    "health_least_s": 12.0,
    "health_pause_s": 10.0,
    "spare_window_s": 60.0,
}
"""Settings of `--fast`, for small machines and trials: the loop runs five times as often and judges on less data."""


def snapshots_needed(settings: Settings) -> int:
    """Number of snapshots that a journal keeps: a prediction by `headgate what-if` needs full windows."""
    longest_s = max(settings.window_s, settings.health_window_s)
    return math.ceil(longest_s / settings.round_s) + 2
