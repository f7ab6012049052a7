"""Settings of jobs on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.config.declaring import setting
from headgate.config.state import StateSettings

OTLP = "otlp"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How jobs run on Spark."""

    slots: int = setting(
        16,
        "slots",
        "Tasks of all jobs that run at once on embedded Spark; also `spark.sql.shuffle.partitions`, if `spark-defaults.conf` has none.",
        1,
        1024,
    )
    heartbeat_s: float = setting(
        3.0,
        "s",
        "Time between two heartbeats of an executor, unless spark-defaults.conf sets `spark.executor.heartbeatInterval`.",
        0.1,
        60,
    )
    suspect_heartbeats: float = setting(
        2.5,
        "heartbeats",
        "A host that has been silent for this long is suspect: its jobs are not judged, and its epochs run on other hosts.",
        1,
        100,
    )
    driver_memory_mb: int = setting(2048, "MB", "Embedded Spark: memory of the JVM.", 512)
    poll_s: float = setting(0.05, "s", "A job without new rows checks for new rows at this interval.", 0.01, 60)
    wait_s: float = setting(
        0.5,
        "s",
        "The only source of a job waits this long for a row before it reports that there is none (load and Redis); the wait ends early"
        " when a row arrives.",
        0,
        5,
    )
    plan_s: float = setting(
        60.0,
        "s",
        "Epochs of a job share a plan for so long; then Headgate calls the functions on DataFrames again. 0 calls them in each epoch.",
        0,
    )
    retries: int = setting(
        5,
        "times",
        "Headgate restarts a job with a deterministic error this many times in a row; then the job is failed.",
        0,
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
        "Jobs that start at the same time, the most valuable first; Spark gives the Python process of each job 10 s to start.",
        1,
        64,
    )
    slow_start_s: float = setting(
        4.0, "s", "Jobs start one at a time after a start that took longer than this, instead of `starts_at_once`.", 0
    )
    start_free_mb: float = setting(
        256.0, "MB", "A job starts only while this machine has this much free memory; until then, it waits.", 0
    )
    start_failures: int = setting(
        5,
        "times",
        "A job whose processes did not start in time is *starting* for this many failures in a row, then *retrying*.",
        0,
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
    busy_read_s: float = setting(
        0.3,
        "s",
        "A round reads the busy time of lanes for about this long; jobs for which there was no time come first in the next round.",
        0.01,
    )
    first_pace_s: float = setting(
        20.0, "s", "Longest pace that a job starts with, within its intent; the control loop changes the pace later.", 0
    )
    phase_slack: float = setting(
        0.1,
        "share",
        "An epoch starts earlier than due by at most this share of its pace, when fewer other jobs start epochs; 0 switches this off.",
        0,
        0.5,
    )
    longest_epoch_s: float = setting(
        5.0,
        "s",
        "An epoch reads no more rows than take this long, beyond the fixed time of an epoch, so that changes take effect soon.",
        0.1,
    )
    first_rows: int = setting(
        10_000,
        "rows",
        "Rows that the first epoch of a job reads at most, because the time per row is not known yet.",
        1,
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
    kafka_answer_s: float = setting(
        30.0, "s", "Kafka: longest wait of a source or sink for an answer or for rows; the job then retries.", 0.1, 3600
    )
    kafka_look_s: float = setting(
        2.0, "s", "Kafka: longest wait of a round for the number of rows that have arrived.", 0.1, 3600
    )
    kafka_discovery_s: float = setting(
        30.0,
        "s",
        "Kafka: a source looks for new partitions, and for new topics of its pattern, at this interval.",
        0,
        3600,
    )
    table_answer_s: float = setting(
        60.0,
        "s",
        "Tables: longest wait for one answer of PostgreSQL, an object store or an Iceberg REST catalog; the job then retries.",
        0.1,
        3600,
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
    kept_epochs: int = setting(
        50, "epochs", "Finished epochs of each job whose timings the engine keeps for `headgate epochs`.", 1, 10_000
    )
    listener_events: int = setting(
        50_000,
        "events",
        "Spark drops events of its tasks, which tell how busy lanes are, when more than this many wait in one of its queues.",
        1000,
    )
    retained_stages: int = setting(
        1000,
        "stages",
        "Stages, and as many Spark jobs, of all jobs together that Spark remembers; a round reads the busy time of lanes from them.",
        100,
    )
    retained_tasks: int = setting(
        20_000, "tasks", "Tasks of all remembered stages together that Spark remembers.", 1000
    )
    retained_executions: int = setting(
        20, "queries", "Plans of epochs that Spark remembers for its own page, which Headgate does not show.", 1
    )
    kept_classes: int = setting(
        2000,
        "classes",
        "Compiled plans that Spark keeps. A job needs a few; if the jobs need more than Spark keeps, each epoch compiles its plans again.",
        100,
    )
    clean_up_s: float = setting(
        600.0,
        "s",
        "Interval at which Spark collects garbage in the driver, so that it frees what epochs shuffled and kept.",
        10,
    )
    kept_batches: int = setting(
        100, "epochs", "Finished epochs of each job whose offsets and commits stay in the checkpoint.", 2
    )
    log_mb: float = setting(
        10.0, "MB", "The service rotates `spark.log` and `spark.out` when they exceed this size.", 0.01
    )
    traces: str = setting(
        "off",
        "",
        "`otlp` sends a trace of each epoch by OpenTelemetry, to the address in `OTEL_EXPORTER_OTLP_ENDPOINT`; needs `headgate[otel]`.",
        choices=("off", OTLP),
    )
    log_files: int = setting(3, "files", "Rotated files of `spark.log`, and of `spark.out`, that are kept.", 1, 1000)
    state: StateSettings = StateSettings()  # noqa: RUF009  # a frozen value


FAST_SPARK: Mapping[str, float] = {"first_pace_s": 4.0}
"""Settings of `--fast` for jobs on Spark: a third of the window, which a pace never exceeds."""
