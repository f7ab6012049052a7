"""Settings of keyed state."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.config.declaring import setting


@dataclass(frozen=True, slots=True)
class StateSettings:
    """How keyed state is kept."""

    slices_per_core: int = setting(
        4,
        "slices",
        "Slices of a keyed operator for each core that the operator may ever use, unless the operator sets `slices`.",
        1,
        256,
    )
    checkpoint: str = setting(
        "",
        "path or URI",
        "Directory or object store (`s3://BUCKET/FOLDER`) that all hosts reach, for keyed state, the records of epochs and placement;"
        " empty: the home directory.",
    )
    state_dir: str = setting(
        "",
        "path",
        "Directory on a local disk of each host, for the slices of keyed operators; empty: on a cluster Spark's local directory"
        " (`spark.local.dir`), on one machine the home directory.",
    )
    backups: int = setting(1, "copies", "Backup copies of each slice on other hosts of a cluster.", 0, 16)
    backup_epochs: int = setting(5, "epochs", "Interval at which backup copies of slices are brought up to date.", 1)
    rebuilt_at_once: int = setting(
        4, "slices", "Slices that a host rebuilds together, reading their deltas once for all of them.", 1
    )
    copy_work_s: float = setting(
        1.0, "s", "A host interrupts the upkeep of its copies after this time, to free its slots for lanes.", 0, 3600
    )
    hot_share: float = setting(
        0.1, "share", "Slices move between lanes only if the busiest lane then has this share less work.", 0, 1
    )
    chunk_items: int = setting(
        64, "items", "Items of a list or window that are stored and rewritten together.", 1, 65536
    )
    largest_slice_mb: int = setting(
        16_384,
        "MB",
        "Largest size of one slice with values of varying length; the size reserves addresses, not memory.",
        1,
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
    combine_rows: int = setting(
        10_000,
        "rows",
        "An aggregation combines rows before the exchange from this many rows per epoch on; fewer cost less than the tasks that combine.",
        1,
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
