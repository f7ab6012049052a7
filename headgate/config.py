"""Every number a person may want to change: name, default, unit, range and a sentence, in one place.

`docs/settings.md` is generated from this file; a test fails when it is stale or when a setting lacks its sentence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeVar

from headgate.errors import SettingError

UNLIMITED = math.inf


def setting(
    default: Any, unit: str, text: str, low: float = 0.0, high: float = UNLIMITED, choices: tuple[str, ...] = ()
) -> Any:
    """Declare one setting: numbers have an inclusive range, words a list of choices."""
    return field(default=default, metadata={"unit": unit, "text": text, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """How the control loop measures and decides; the defaults are the Henge papers' where they give a number."""

    round_s: float = setting(10.0, "s", "Time between two rounds of the control loop, and length of a sub-window.", 0.1)
    window_s: float = setting(
        60.0, "s", "Length of the sliding window that juice, latency and capacity are measured over.", 0.1
    )
    capacity_threshold: float = setting(
        0.3,
        "share",
        "An operator whose busiest lane is busy for more than this share of the window is congested.",
        0.01,
        1,
    )
    lanes_per_congestion: float = setting(
        10.0,
        "lanes",
        "Paper sizing: lanes added per multiple of the capacity threshold that an operator is above it (eq. 4).",
        0.1,
    )
    improvement: float = setting(
        0.05, "share", "A reconfigured job that gains less than this share of its utility is skipped for a while.", 0, 1
    )
    skip_s: float = setting(3600.0, "s", "How long such a job is skipped.")
    skip_doublings: int = setting(
        5, "times", "A job that is skipped again and again is skipped for twice as long each time, this often.", 0, 10
    )
    load_change: float = setting(
        0.2,
        "share",
        "A change of a job's input by more than this share ends its being skipped, and clears its last action of blame.",
        0,
    )
    reduction: float = setting(
        0.8,
        "share",
        "Share of lanes that a reduction takes from each idle operator of the jobs that meet their intents.",
        0,
        1,
    )
    hopeless: float = setting(
        0.1,
        "share",
        "A job that gets less than this share of its worth and cannot be helped may be throttled for the others.",
        0,
        1,
    )
    crush: float = setting(
        3.0,
        "lanes per core",
        "From this many runnable lanes per core on, hopeless jobs are throttled before others are helped.",
        1,
    )
    drop: float = setting(
        0.05,
        "share",
        "A loss of more than this share, of the total or of one job's utility, ends the Converged state.",
        0,
        1,
    )
    noise: float = setting(
        0.01, "share", "Changes of the total utility below this share of its maximum are taken for noise.", 0, 1
    )
    stable_rounds: int = setting(
        4, "rounds", "Rounds in a row in which all intents hold before the cluster counts as Converged.", 1
    )
    outage_data_s: float = setting(
        300.0, "s", "After measurements were missing, this much fresh data is collected before the next decision."
    )
    warm_up_s: float = setting(30.0, "s", "A job is judged only on at least this much data.")
    settle_min_s: float = setting(30.0, "s", "After an action, wait at least this long before judging it.")
    settle_max_s: float = setting(180.0, "s", "After an action, judge it at the latest after this long.")
    settle_change: float = setting(
        0.1, "share", "Measurements have settled when two sub-windows in a row differ by less than this share.", 0, 1
    )
    sizing: str = setting(
        "model",
        "",
        "How many lanes a congested operator gets: `model` (from measured true rates, with catch-up of the backlog) or `paper` (eq. 4).",
        choices=("model", "paper"),
    )
    target_busy: float = setting(
        0.6, "share", "Model sizing: share of its time that a lane should be busy after a reconfiguration.", 0.05, 1
    )
    catch_up_s: float = setting(120.0, "s", "Model sizing: time in which the backlog should be worked off.", 1)
    catch_up_limit: float = setting(
        1.0,
        "share",
        "Model sizing: lanes for working off the backlog are added for at most this multiple of the input.",
        0,
    )
    patience_s: float = setting(
        1200.0, "s", "A job that will have worked off its backlog within this time is left alone until it has."
    )
    growth_limit: float = setting(
        5.0, "times", "Model sizing: an operator gets at most this many times its lanes in one step.", 1
    )
    brink: float = setting(
        0.9,
        "share",
        "A job whose latency is above this share of its intent is helped before it misses it, if cores are free.",
        0,
        1,
    )
    crowded_growth: float = setting(
        2.0, "times", "Model sizing: the same on a congested cluster, where lanes compete for cores.", 1
    )
    retry_s: float = setting(
        300.0,
        "s",
        "An action that could not be carried out, or was only observed, is not asked for again for this long.",
    )
    smallest_step: float = setting(
        0.1,
        "share",
        "Model sizing: a change of an operator's lanes by less than this share is not worth a reconfiguration.",
        0,
        1,
    )
    linger_s: float = setting(
        300.0, "s", "A job that misses its intent by less than the drop is helped after it has missed it for this long."
    )
    max_lanes: int = setting(1024, "lanes", "No operator ever gets more lanes than this.", 1)
    objective: str = setting(
        "total",
        "",
        "What is maximised: `total` utility, or the `lowest` job's share of its utility (max-min fairness).",
        choices=("total", "lowest"),
    )
    juice_tolerance: float = setting(
        0.005,
        "share",
        "Juice this close below its threshold counts as met: both ends of an edge are never read at the very same moment.",
        0,
        0.1,
    )
    pace_margin: float = setting(
        0.7,
        "share",
        "A job with time to spare is paced so that its latency stays below this share of its intent.",
        0.1,
        1,
    )
    pace_step: float = setting(
        0.25, "share", "The pace of a job with time to spare is lengthened only if it becomes longer by this share.", 0
    )
    hungry_steps: int = setting(
        2, "actions", "A job is called hungry after this many reconfigurations when the last one gained too little.", 1
    )
    crowded_share: float = setting(
        0.5,
        "share",
        "The cluster counts as oversubscribed when it rests for this share of an hour below its maximum utility.",
        0,
        1,
    )
    journal_keep_h: float = setting(
        168.0, "h", "Rounds older than this are deleted from the journal; actions are kept."
    )
    remedies: str = setting(
        "diagnosed",
        "",
        "What a job in trouble gets: what the diagnosis asks for (slices re-assigned, lanes moved, lanes), or only ever `lanes`.",
        choices=("diagnosed", "lanes"),
    )
    health_window_s: float = setting(300.0, "s", "Health: length of the window that symptoms are looked for in.", 1)
    health_least_s: float = setting(
        120.0, "s", "Health: least part of that window, since the last change, on which trouble is diagnosed.", 1
    )
    health_pause_s: float = setting(
        120.0, "s", "Health: after an action nothing is measured for this long, so that the job can stabilise."
    )
    held_least: float = setting(
        0.02, "share", "Health: input that is held back for less than this share of the window is no symptom.", 0, 1
    )
    alike: float = setting(
        0.25, "share", "Health: lanes whose figures differ from their peers' by no more than this count as alike.", 0
    )
    outlier_cut: float = setting(
        3.5, "deviations", "Health: and they must differ by more than this many (robust) standard deviations.", 0
    )
    pending_least_s: float = setting(
        1.0, "s", "Health: less work than this waiting in front of a lane, on average, counts as almost nothing."
    )
    spare_window_s: float = setting(
        900.0, "s", "Health: lanes are spare only if they have been for this long, its busiest minute included.", 1
    )
    spare_below: float = setting(
        0.95,
        "share",
        "Health: lanes are spare if the others would be busy for no more than this share without them.",
        0.05,
        1,
    )
    scale_down: float = setting(0.2, "share", "Health: share of an operator's lanes taken away at once, at most.", 0, 1)
    scale_up_headroom: float = setting(
        0.02, "share", "Health: lanes are added for the input that could not be handled and this share more.", 0
    )
    source_step: float = setting(
        4.0,
        "times",
        "Health: a source gets at most this many times its lanes at once, so that the load grows gradually.",
        1,
    )
    source_headroom: float = setting(
        0.05, "share", "Health: a source gets lanes for its throughput target and this share more.", 0
    )
    blacklist_ratio: float = setting(
        0.5,
        "share",
        "Health: a remedy is refused for a diagnosis once more than this share of its tries was useless.",
        0,
        1,
    )
    log_entries: int = setting(1000, "entries", "Health: the action log keeps this many of its newest entries.", 1)
    log_keep_h: float = setting(168.0, "h", "Health: and none that is older than this.")
    policy_patience_s: float = setting(
        5.0,
        "s",
        "Health: a policy of the user's that takes longer than this for all its answers of a round is switched off.",
        0.1,
    )


@dataclass(frozen=True, slots=True)
class StateSettings:
    """How keyed state is kept."""

    slices_per_core: int = setting(
        4, "slices", "Slices of a keyed operator per core that it may ever use, unless it says how many.", 1, 256
    )
    backups: int = setting(1, "copies", "Copies of each slice on other hosts of a cluster.", 0, 16)
    backup_epochs: int = setting(5, "epochs", "How often these copies are brought up to date.", 1)
    rebuilt_at_once: int = setting(
        4, "slices", "Slices that a host rebuilds together; their deltas are read once for all of them.", 1
    )
    tend_s: float = setting(
        1.0, "s", "A host leaves copies for later after this long, so that its slots are free for lanes again.", 0, 3600
    )
    hot_share: float = setting(
        0.1, "share", "Slices are moved between lanes only if the busiest lane gets this much less to do.", 0, 1
    )
    chunk_items: int = setting(
        64, "items", "Items of a list or window that are stored, and rewritten, together.", 1, 65536
    )
    largest_slice_mb: int = setting(
        16_384, "MB", "Largest size of one slice with values of varying length (addresses, not memory).", 1
    )
    lock_wait_s: float = setting(
        10.0, "s", "How long a lane waits for a slice that another process still holds.", 0, 3600
    )
    hand_over_epochs: int = setting(
        20, "epochs", "Slices that move to other hosts change hands together; for so long they wait for each other.", 1
    )
    hosts_wait_s: float = setting(
        30.0,
        "s",
        "After a start, slices wait so long for the hosts that have them before others rebuild them.",
        0,
        3600,
    )
    combine_ratio: float = setting(
        3.5, "rows", "Aggregations combine rows before the exchange where an epoch has this many of each key.", 1
    )
    combine_epochs: int = setting(
        20, "epochs", "Those that do look again after this many epochs whether it is still worth it.", 1
    )
    upkeep_epochs: int = setting(10, "epochs", "How often it is looked whether deltas should be merged.", 1)
    merge_ratio: float = setting(
        1.0, "times", "Deltas of a slice are merged into a new snapshot once they are this many times its size.", 0.01
    )
    merge_epochs: int = setting(100, "epochs", "Deltas of a slice are merged at the latest after this many epochs.", 1)
    kept_snapshots: int = setting(
        2, "snapshots", "Snapshots of each slice that are kept, with the deltas since.", 1, 64
    )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How jobs run on Spark."""

    slots: int = setting(16, "slots", "Embedded Spark: tasks that run at once, of all jobs together.", 1, 1024)
    driver_memory_mb: int = setting(2048, "MB", "Embedded Spark: memory of its JVM.", 512)
    poll_s: float = setting(0.05, "s", "How often a job without new rows looks for some.", 0.01, 60)
    retries: int = setting(
        5, "times", "How often in a row a job that fails is started again before it counts as failed.", 0
    )
    back_off_s: float = setting(1.0, "s", "Wait before the first of these restarts; it doubles with each.", 0, 3600)
    back_off_limit_s: float = setting(60.0, "s", "Longest wait before a restart.", 0)
    stop_s: float = setting(60.0, "s", "How long a stop waits for the epoch in flight before it is cut off.", 0)
    sampled_epochs: int = setting(
        3, "epochs", "Epochs of each job per round whose tasks are looked at for their busy time.", 1, 100
    )
    first_pace_s: float = setting(
        5.0,
        "s",
        "Longest pace that a job starts with, as far as its intent allows; the control loop goes on from there.",
        0,
    )
    longest_epoch_s: float = setting(
        5.0,
        "s",
        "An epoch reads no more rows than the last one would have worked off in this time, so that levers take effect soon.",
        0.1,
    )
    first_rows: int = setting(
        10_000, "rows", "Rows that the first epoch reads at most: nobody knows yet how long they take.", 1
    )
    read_limit: int = setting(1_000_000, "rows", "Rows that an epoch reads at most from a source of Headgate's own.", 1)
    place_wait_s: float = setting(
        10.0,
        "s",
        "Clusters: a lane waits this long for a slot on the host that it belongs to; then it runs on any.",
        0,
        3600,
    )
    largest_batch_mb: int = setting(
        0,
        "MB",
        "Lanes get their rows in batches of 10,000, cut at this size as well; 0: not. Spark then looks at the size after every row,"
        " which costs a third of the throughput: for large rows only, such as pictures.",
        0,
        2047,
    )
    state: StateSettings = StateSettings()


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How hosts are leased and released; the defaults are VISP's, from its paper or, where that has none, from its code."""

    provision_s: float = setting(20.0, "s", "Time between two decisions about hosts.", 0.1)
    trend: int = setting(
        5, "observations", "BTU-based: durations that the trend of an operator is drawn through (algorithm 1).", 2
    )
    scaling_queue: float = setting(
        100.0, "rows", "BTU-based: an operator is given a lane only if more rows than this wait for it (algorithm 1)."
    )
    cached_factor: float = setting(
        0.01, "times", "Suitability of a host that has the image already, the lower the better (algorithm 2).", 0, 1
    )
    instances_weight: float = setting(2.0, "weight", "Weight of having many lanes when one must go (algorithm 3).")
    delay_weight: float = setting(1.5, "weight", "Weight of the delay against that (algorithm 3).")
    scalings_weight: float = setting(2.5, "weight", "Weight of frequent changes against that (algorithm 3).")
    queue_weight: float = setting(10.0, "weight", "Weight of an empty queue in favour of it (algorithm 3).")
    penalty: float = setting(1.0, "weight", "What a delay counts for, times the weight of the delay (algorithm 3).")
    lanes_ahead: int = setting(
        2, "lanes", "BTU-based: an operator gets no further lane while so many of its lanes have not started yet.", 1
    )
    spare_busy: float = setting(
        0.85,
        "share",
        "No lane goes if the others would then be busy for more than this share of their time; 10: never mind.",
        0.05,
        10,
    )
    release_share: float = setting(
        0.05, "share", "Last part of a BTU in which it is decided whether a host stays for another one.", 0, 1
    )
    lane_start_s: float = setting(10.0, "s", "Longest time that a lane takes to start on a host that is ready.")
    lane_drain_s: float = setting(20.0, "s", "Time in which a lane that goes finishes what it has begun.")
    lease_retries: int = setting(
        3, "times", "Leases in a row that may fail before the pool is left alone for a while.", 0
    )
    lease_retry_s: float = setting(300.0, "s", "How long it is left alone then.")
    queue_high: float = setting(250.0, "rows", "Threshold baseline: one lane more when more rows than this wait.")
    queue_higher: float = setting(1000.0, "rows", "Two lanes more, instead of one, when more rows than this wait.")
    queue_low: float = setting(1.0, "rows", "Threshold baseline: one lane less when fewer rows than this wait.")
    point_price: float = setting(
        1.0, "money per hour", "With intents: what one point of utility is worth; a host must earn its price."
    )


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What `headgate run --hosts` leases, and what it may cost."""

    host_cores: int = setting(2, "slots", "Tasks that run at once on a leased host.", 1, 1024)
    host_memory_mb: int = setting(1024, "MB", "Memory of a leased host, for its executor.", 512)
    host_price: float = setting(1.0, "money", "Price of a leased host for each BTU that is begun.")
    btu_s: float = setting(600.0, "s", "Length of a billing time unit (BTU).", 1)
    startup_s: float = setting(20.0, "s", "Time that a leased host usually takes until it runs lanes.")
    most_per_hour: float = setting(
        UNLIMITED,
        "money per hour",
        "Most that may be spent on hosts (inf: no limit); what is paid for counts until it runs out.",
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
"""Settings for a small machine and an impatient person: the loop turns five times as fast and judges on less data."""
FAST_HOSTS: Mapping[str, float] = {"provision_s": 4.0, "lane_start_s": 1.0, "lane_drain_s": 10.0}
"""The same where hosts are leased."""


def snapshots_needed(settings: Settings) -> int:
    """Snapshots that a restarted controller needs to go on with full windows."""
    longest_s = max(settings.window_s, settings.health_window_s)
    return math.ceil(longest_s / settings.round_s) + 2


def describe(kind: type = Settings) -> list[dict[str, Any]]:
    """All settings of a kind as rows: name, default, unit, text, range."""
    return [{"name": f.name, "default": f.default, **f.metadata} for f in dataclasses.fields(kind) if f.metadata]


def settings_from(values: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Settings with `values` in place of the defaults; text is converted to the setting's type.

    >>> settings_from({"round_s": "5"}).round_s
    5.0
    """
    return _consistent(_replaced(base or Settings(), values, describe()))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings that `headgate run` goes by."""

    loop: Settings
    spark: SparkSettings
    hosts: HostSettings
    pool: PoolSettings


def all_settings_from(values: Mapping[str, Any]) -> RunSettings:
    """Settings of every kind from one list of names.

    >>> all_settings_from({"slots": "4", "round_s": 5}).spark.slots
    4
    """
    rows = [row for kind in KINDS.values() for row in describe(kind)]
    for name in values:
        _known(name, {row["name"]: row for row in rows})
    kept = _replaced(StateSettings(), _among(values, StateSettings), rows)
    return RunSettings(
        _consistent(_replaced(Settings(), _among(values, Settings), rows)),
        dataclasses.replace(_replaced(SparkSettings(), _among(values, SparkSettings), rows), state=kept),
        _replaced(HostSettings(), _among(values, HostSettings), rows),
        _replaced(PoolSettings(), _among(values, PoolSettings), rows),
    )


def _among(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = {row["name"] for row in describe(kind)}
    return {name: value for name, value in values.items() if name in names}


def host_settings_from(values: Mapping[str, Any], base: HostSettings | None = None) -> HostSettings:
    """The same for hosts.

    >>> host_settings_from({"trend": "7"}).trend
    7
    """
    return _replaced(base or HostSettings(), values, describe(HostSettings))


Kind = TypeVar("Kind", Settings, SparkSettings, StateSettings, HostSettings, PoolSettings)


def _replaced(base: Kind, values: Mapping[str, Any], rows: list[dict[str, Any]]) -> Kind:
    by_name = {row["name"]: row for row in rows}
    return dataclasses.replace(base, **{name: _checked(name, value, by_name) for name, value in values.items()})


def _consistent(settings: Settings) -> Settings:
    """Numbers that are fine alone may make each other senseless."""
    order = ("round_s", "warm_up_s", "window_s")
    for shorter, longer in pairwise(order):
        if getattr(settings, shorter) > getattr(settings, longer):
            raise SettingError(
                f'setting "{shorter}" is {getattr(settings, shorter):g} and "{longer}" {getattr(settings, longer):g};'
                f" {' <= '.join(order)} must hold, or no job could ever be judged"
            )
    if settings.settle_min_s > settings.settle_max_s:
        raise SettingError(
            f'setting "settle_min_s" is {settings.settle_min_s:g}, above "settle_max_s" ({settings.settle_max_s:g})'
        )
    if settings.health_least_s > settings.health_window_s:
        raise SettingError(
            f'setting "health_least_s" is {settings.health_least_s:g},'
            f' above "health_window_s" ({settings.health_window_s:g})'
        )
    return settings


def _known(name: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    if name not in rows:
        close = get_close_matches(name, rows, 1)
        hint = f' Did you mean "{close[0]}"?' if close else " `headgate settings` lists them."
        raise SettingError(f'there is no setting "{name}".{hint}')


def _checked(name: str, value: Any, rows: Mapping[str, Mapping[str, Any]]) -> Any:
    _known(name, rows)
    row = rows[name]
    if row["choices"]:
        if value not in row["choices"]:
            raise SettingError(f'setting "{name}" is {value!r}; allowed are {", ".join(row["choices"])}')
        return value
    return _number(name, value, row)


def _number(name: str, value: Any, row: Mapping[str, Any]) -> float | int:
    whole = isinstance(row["default"], int)
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or (whole and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f'setting "{name}" is {value!r}; it must be a {"whole " if whole else ""}number') from None
    if not row["low"] <= number <= row["high"]:
        upper = "" if row["high"] == UNLIMITED else f" and at most {row['high']:g}"
        raise SettingError(f'setting "{name}" is {value!r}; it must be at least {row["low"]:g}{upper}')
    return int(number) if whole else number


def reference() -> str:
    """The settings reference as Markdown."""
    parts = [f"## {title}\n\n{_table(kind)}" for title, kind in KINDS.items()]
    return "\n".join(parts)


KINDS: Mapping[str, type] = {
    "The control loop": Settings,
    "Jobs on Spark": SparkSettings,
    "Keyed state": StateSettings,
    "Hosts": HostSettings,
    "Hosts of `headgate run --hosts`": PoolSettings,
}


def _table(kind: type) -> str:
    fast = {**FAST, **FAST_HOSTS}
    lines = ["| setting | default | unit | meaning | `--fast` |", "|---|---|---|---|---|"]
    for row in describe(kind):
        choices = f" One of {', '.join(row['choices'])}." if row["choices"] else ""
        lines.append(
            f"| `{row['name']}` | {row['default']} | {row['unit']} | {row['text']}{choices} | {fast.get(row['name'], '')} |"
        )
    return "\n".join(lines) + "\n"
