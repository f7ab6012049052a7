"""Every number a person may want to change: name, default, unit, range and a sentence that stands alone in a table.

`docs/settings.md` is generated from this file; a test fails when it is stale or when a setting lacks its sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNLIMITED = math.inf


def setting(
    default: Any, unit: str, text: str, low: float = 0.0, high: float = UNLIMITED, choices: tuple[str, ...] = ()
) -> Any:
    """Declare one setting: numbers have an inclusive range, words a list of choices."""
    return field(default=default, metadata={"unit": unit, "text": text, "low": low, "high": high, "choices": choices})


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
        "A change of a job's input by more than this share ends the skipping of the job, and clears the last action on the job of blame.",
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
    warm_up_s: float = setting(30.0, "s", "The scheduler judges a job only on at least this much data.")
    settle_min_s: float = setting(30.0, "s", "The scheduler judges an action at the earliest after this time.")
    settle_max_s: float = setting(180.0, "s", "The scheduler judges an action at the latest after this time.")
    settle_change: float = setting(
        0.1, "share", "Measurements have settled when two consecutive sub-windows differ by less than this share.", 0, 1
    )
    sizing: str = setting(
        "model",
        "",
        "Lanes of a congested operator: `model` follows measured true rates and catches up with the backlog, `paper` is eq. 4.",
        choices=("model", "paper"),
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
    brink: float = setting(
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
        "total",
        "",
        "What the scheduler maximises: the `total` utility, or the `lowest` satisfaction of a job (max-min fairness).",
        choices=("total", "lowest"),
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
    hungry_steps: int = setting(
        2, "actions", "Headgate raises advice about a job after this many reconfigurations without enough gain.", 1
    )
    crowded_share: float = setting(
        0.5,
        "share",
        "Headgate reports the cluster as oversubscribed if it stays below its maximum utility for more than this share of an hour.",
        0,
        1,
    )
    stale_rounds: int = setting(
        3, "rounds", "Readings older than this are stale: no job counts as met, and `GET /health` answers 503.", 1
    )
    journal_keep_h: float = setting(168.0, "h", "The journal keeps rounds for this long.")
    actions_keep_h: float = setting(8760.0, "h", "The journal keeps actions for this long.")
    keep_removed_h: float = setting(
        24.0, "h", "A removed job can be restored for this long; at 0, its checkpoint and state are deleted at once.", 0
    )
    keep_dead_letters_h: float = setting(
        720.0, "h", "The service deletes dead letters older than this, those of removed jobs too.", 0
    )
    remedies: str = setting(
        "diagnosed",
        "",
        "Remedy for a job that misses its intent: `diagnosed` re-assigns slices, moves lanes or adds lanes, `lanes` only adds lanes.",
        choices=("diagnosed", "lanes"),
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


@dataclass(frozen=True, slots=True)
class StateSettings:
    """How keyed state is kept."""

    slices_per_core: int = setting(
        4, "slices", "Slices of a keyed operator per core that it may ever use, unless it sets `slices`.", 1, 256
    )
    backups: int = setting(1, "copies", "Backup copies of each slice on other hosts of a cluster.", 0, 16)
    backup_epochs: int = setting(5, "epochs", "Interval at which backup copies of slices are brought up to date.", 1)
    rebuilt_at_once: int = setting(
        4, "slices", "Slices that a host rebuilds together, reading their deltas once for all of them.", 1
    )
    tend_s: float = setting(
        1.0, "s", "A host interrupts the upkeep of its copies after this time, to free its slots for lanes.", 0, 3600
    )
    hot_share: float = setting(
        0.1, "share", "Slices move between lanes only if the busiest lane then has this share less work.", 0, 1
    )
    chunk_items: int = setting(
        64, "items", "Items of a list or window that are stored and rewritten together.", 1, 65536
    )
    largest_slice_mb: int = setting(
        16_384, "MB", "Largest size of one slice with values of varying length; it reserves addresses, not memory.", 1
    )
    least_free_mb: int = setting(
        64,
        "MB",
        "An epoch of a keyed operator fails, and is tried again, while the disk of its state has less free space than this.",
        0,
    )
    lock_wait_s: float = setting(
        10.0, "s", "Longest wait of a lane for a slice that another process still holds.", 0, 3600
    )
    hand_over_epochs: int = setting(
        20, "epochs", "Slices that move to other hosts wait at most this long to change hands together.", 1
    )
    hosts_wait_s: float = setting(
        30.0,
        "s",
        "After Spark has started, slices wait this long for their hosts before other hosts rebuild them.",
        0,
        3600,
    )
    combine_ratio: float = setting(
        3.5, "rows", "An aggregation combines rows before the exchange from this many rows per key and epoch on.", 1
    )
    combine_epochs: int = setting(
        20, "epochs", "Interval at which an aggregation that combines rows checks whether combining still pays.", 1
    )
    upkeep_epochs: int = setting(
        10, "epochs", "Interval at which a keyed operator checks whether deltas should be merged.", 1
    )
    merge_ratio: float = setting(
        1.0, "times", "The deltas of a slice are merged into a new snapshot at this many times its size.", 0.01
    )
    merge_epochs: int = setting(
        100, "epochs", "The deltas of a slice are merged into a new snapshot at the latest after this many epochs.", 1
    )
    kept_snapshots: int = setting(
        2, "snapshots", "Snapshots of each slice that are kept, with the deltas since.", 1, 64
    )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How jobs run on Spark."""

    slots: int = setting(16, "slots", "Embedded Spark: tasks of all jobs that run at once.", 1, 1024)
    driver_memory_mb: int = setting(2048, "MB", "Embedded Spark: memory of its JVM.", 512)
    poll_s: float = setting(0.05, "s", "A job without new rows checks for new rows at this interval.", 0.01, 60)
    retries: int = setting(
        5, "times", "A job with a deterministic error is started again this often in a row, then it is failed.", 0
    )
    back_off_s: float = setting(
        1.0, "s", "Wait before a job is started again; the wait doubles with each failure in a row.", 0, 3600
    )
    back_off_limit_s: float = setting(
        60.0, "s", "Longest wait before a job with a deterministic error is started again.", 0
    )
    outage_retry_s: float = setting(
        10.0,
        "s",
        "Longest wait before a job is started again after an outage, such as a refused connection; outages are retried without limit.",
        0,
    )
    starts_at_once: int = setting(
        2,
        "jobs",
        "Jobs that start at the same time; Spark gives the Python process of each job 10 s to start, which a busy machine needs.",
        1,
        64,
    )
    answer_s: float = setting(
        30.0, "s", "Spark counts as lost, and its Java process is ended, after this long without an answer.", 8
    )
    ask_s: float = setting(
        1.0, "s", "A round waits this long for counts of arrived rows; a later answer counts in the next round.", 0
    )
    source_stale_s: float = setting(
        30.0, "s", "A job is not judged once a source has stopped reporting its arrived rows for this long.", 1
    )
    stop_s: float = setting(60.0, "s", "Longest wait of a stop for the epoch in flight; the epoch is then cut off.", 0)
    exit_s: float = setting(30.0, "s", "Longest wait for the JVM of Spark to end; the JVM is then killed.", 0)
    sampled_epochs: int = setting(
        3, "epochs", "Epochs of each job per round whose tasks are read for their busy time.", 1, 100
    )
    first_pace_s: float = setting(
        5.0, "s", "Longest pace that a job starts with, within its intent; the control loop changes it later.", 0
    )
    longest_epoch_s: float = setting(
        5.0,
        "s",
        "An epoch reads no more rows than the last epoch would have processed in this time, so that changes take effect soon.",
        0.1,
    )
    first_rows: int = setting(
        10_000, "rows", "Rows that the first epoch of a job reads at most; its time per row is not yet known.", 1
    )
    read_limit: int = setting(
        1_000_000, "rows", "Rows that an epoch reads at most from one of Headgate's own sources.", 1
    )
    redis_connect_s: float = setting(3.0, "s", "Redis: longest wait of a source or sink for a connection.", 0.1, 3600)
    redis_answer_s: float = setting(
        10.0, "s", "Redis: longest wait of a source or sink for one answer; the job then retries.", 0.1, 3600
    )
    redis_look_s: float = setting(
        2.0, "s", "Redis: longest wait of a round for the number of rows that have arrived.", 0.1, 3600
    )
    place_wait_s: float = setting(
        10.0, "s", "Clusters: a lane waits this long for a slot on its own host; then it runs on any host.", 0, 3600
    )
    largest_batch_mb: int = setting(
        0,
        "MB",
        "Size at which batches of 10,000 rows for lanes are also cut; 0 switches this off. A limit costs a third of the throughput:"
        " set it only for large rows, such as pictures.",
        0,
        2047,
    )
    log_mb: float = setting(
        10.0, "MB", "The service rotates `spark.log` and `spark.out` when they exceed this size.", 0.01
    )
    log_files: int = setting(3, "files", "Rotated files of `spark.log`, and of `spark.out`, that are kept.", 1, 1000)
    state: StateSettings = StateSettings()


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How `headgate run` is supervised, and what its API takes."""

    restart_s: float = setting(
        1.0,
        "s",
        "Wait before a service that was killed, or whose Spark was lost, starts again; the wait doubles with each restart.",
        0,
        3600,
    )
    restart_limit_s: float = setting(60.0, "s", "Longest wait before a service starts again.", 0, 86400)
    restart_calm_s: float = setting(
        30.0, "s", "A service that ran for this long starts again after the shortest wait.", 0
    )
    api_body_kb: int = setting(1024, "KB", "The API refuses a request with a larger body than this.", 1)
    api_request_s: float = setting(
        10.0, "s", "The API closes a connection whose request is not complete after this time.", 0.1, 3600
    )
    api_connections: int = setting(
        64,
        "connections",
        "Open connections to the API; beyond this number, the API closes the connection that has waited longest for a request.",
        2,
    )


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How hosts are leased and released; the defaults are VISP's, from its paper or, where that has none, from its code."""

    provision_s: float = setting(20.0, "s", "Time between two decisions about hosts.", 0.1)
    trend: int = setting(
        5, "observations", "BTU-based: durations from which the trend of an operator is computed (algorithm 1).", 2
    )
    scaling_queue: float = setting(
        100.0, "rows", "BTU-based: an operator gets a lane only if more rows than this wait for it (algorithm 1)."
    )
    cached_factor: float = setting(
        0.01,
        "times",
        "Placing a lane: factor on the score of a host that already has the image; lower scores are better (algorithm 2).",
        0,
        1,
    )
    instances_weight: float = setting(
        2.0, "weight", "Freeing room: weight of many lanes in favour of removing an operator's lane (algorithm 3)."
    )
    delay_weight: float = setting(
        1.5, "weight", "Freeing room: weight of a delay against removing an operator's lane (algorithm 3)."
    )
    scalings_weight: float = setting(
        2.5, "weight", "Freeing room: weight of frequent changes against removing an operator's lane (algorithm 3)."
    )
    queue_weight: float = setting(
        10.0, "weight", "Freeing room: weight of an empty queue in favour of removing an operator's lane (algorithm 3)."
    )
    penalty: float = setting(
        1.0, "weight", "Freeing room: factor on an operator's delay, besides `delay_weight` (algorithm 3)."
    )
    lanes_ahead: int = setting(
        2, "lanes", "BTU-based: an operator gets no further lane while this many of its lanes have not started yet.", 1
    )
    spare_busy: float = setting(
        0.85,
        "share",
        "No lane is removed if the remaining lanes would be busy for more than this share of their time; 10 switches this rule off.",
        0.05,
        10,
    )
    release_share: float = setting(
        0.05, "share", "Least share of a BTU, at its end, in which it is decided whether a host stays.", 0, 1
    )
    lane_start_s: float = setting(10.0, "s", "Longest time that a lane takes to start on a ready host.")
    lane_drain_s: float = setting(
        20.0, "s", "Time in which a lane that is removed drains: it finishes the rows that it has begun."
    )
    lease_retries: int = setting(
        3, "times", "The provisioner pauses for `lease_retry_s` after more failed leases in a row than this.", 0
    )
    lease_retry_s: float = setting(
        300.0,
        "s",
        "The provisioner adds no host for this long after too many failed leases in a row. Without any host it goes on leasing.",
    )
    queue_high: float = setting(
        250.0, "rows", "Threshold baseline: an operator gets one lane when more rows than this wait."
    )
    queue_higher: float = setting(
        1000.0,
        "rows",
        "BTU-based and threshold baseline: an operator gets two lanes at once, instead of one, when more rows than this wait.",
    )
    queue_low: float = setting(
        1.0, "rows", "Threshold baseline: an operator loses one lane when fewer rows than this wait."
    )
    host_log_mb: float = setting(
        10.0, "MB", "Leased hosts: a log of the master, a worker or an executor is rotated above this size.", 0.01
    )
    host_log_files: int = setting(
        3, "files", "Leased hosts: rotated files of each log of a master, worker or executor that are kept.", 1, 1000
    )
    released_logs: int = setting(
        10, "hosts", "Leased hosts: number of released hosts whose logs are kept, those released last.", 0
    )
    point_price: float = setting(
        1.0, "money per hour", "Value of one point of utility; a host is leased for intents only if it earns its price."
    )


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What `headgate run --hosts` leases, and what it may cost."""

    host_cores: int = setting(2, "slots", "Tasks that run at once on a leased host.", 1, 1024)
    host_memory_mb: int = setting(1024, "MB", "Memory of the executor on a leased host.", 512)
    host_price: float = setting(1.0, "money", "Price of a leased host for each BTU that has begun.")
    btu_s: float = setting(600.0, "s", "Length of a billing time unit (BTU), in which leased hosts are paid.", 1)
    startup_s: float = setting(20.0, "s", "Usual time from the lease of a host until it runs lanes.")
    most_per_hour: float = setting(
        UNLIMITED,
        "money per hour",
        "Budget: most money per hour for leased hosts, unlimited by default; a paid BTU counts until it ends.",
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
FAST_HOSTS: Mapping[str, float] = {"provision_s": 4.0, "lane_start_s": 1.0, "lane_drain_s": 10.0}
"""Settings of `--fast` for leased hosts."""


def snapshots_needed(settings: Settings) -> int:
    """Snapshots that a restarted controller needs to go on with full windows."""
    longest_s = max(settings.window_s, settings.health_window_s)
    return math.ceil(longest_s / settings.round_s) + 2
