"""Settings of leased hosts: how they are leased and released, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.config.declaring import UNLIMITED, setting


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How hosts are leased and released; the defaults are VISP's, from its paper or, where that has none, from its code."""

    provision_s: float = setting(20.0, "s", "Time between two decisions about hosts.", 0.1)
    trend: int = setting(
        5,
        "observations",
        "BTU-based: number of recent durations from which the trend of an operator is computed (algorithm 1).",
        2,
    )
    scaling_queue: float = setting(
        100.0,
        "rows",
        "BTU-based: an operator gets a lane only if more rows than this wait for the operator (algorithm 1).",
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
        0.05,
        "share",
        "The provisioner decides whether a host stays in the last part of its BTU: at least this share of the BTU.",
        0,
        1,
    )
    lane_start_s: float = setting(10.0, "s", "Longest time that a lane takes to start on a ready host.")
    lane_drain_s: float = setting(20.0, "s", "A lane that is removed finishes the rows that it holds within this time.")
    lease_retries: int = setting(
        3, "times", "The provisioner pauses for `lease_retry_s` after more failed leases in a row than this.", 0
    )
    lease_retry_s: float = setting(
        300.0,
        "s",
        "The provisioner adds no host for this long after too many failed leases in a row, unless no host is left.",
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
    lease_wait_s: float = setting(
        300.0,
        "s",
        "Executors and machines that a command leases: a host that is not ready this long after its lease has failed.",
        1,
    )
    command_s: float = setting(
        30.0, "s", "Each call of the command of `--hosts command:FILE` must end within this time.", 0.1
    )
    host_log_mb: float = setting(
        10.0, "MB", "Leased hosts: a log of the master, a worker or an executor is rotated above this size.", 0.01
    )
    host_log_files: int = setting(
        3, "files", "Leased hosts: rotated files of each log of a master, worker or executor that are kept.", 1, 1000
    )
    released_logs: int = setting(
        10,
        "hosts",
        "Leased hosts: the service keeps the logs of this many released hosts, beginning with the newest.",
        0,
    )
    point_price: float = setting(
        1.0, "money per hour", "Value of one point of utility; a host is leased for intents only if it earns its price."
    )


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Hosts that `headgate run --hosts` leases, and the budget for these hosts."""

    host_cores: int = setting(2, "slots", "Tasks that run at once on a leased host.", 1, 1024)
    host_memory_mb: int = setting(1024, "MB", "Memory of the executor on a leased host.", 512)
    host_price: float = setting(1.0, "money", "Price of a leased host for each started BTU.")
    btu_s: float = setting(600.0, "s", "Length of a billing time unit (BTU), in which leased hosts are paid.", 1)
    startup_s: float = setting(20.0, "s", "Usual time from the lease of a host until it runs lanes.")
    most_hosts: int = setting(10, "hosts", "Most hosts that `--hosts command:FILE` leases at once.", 1, 10_000)
    most_per_hour: float = setting(
        UNLIMITED,
        "money per hour",
        "Budget: most money per hour for leased hosts, unlimited by default; a paid BTU counts until it ends.",
    )


FAST_HOSTS: Mapping[str, float] = {"provision_s": 4.0, "lane_start_s": 1.0, "lane_drain_s": 10.0}
"""Settings of `--fast` for leased hosts."""
