"""The one set of constants of the simulator: the same for every scenario, never tuned to one."""

from __future__ import annotations

from typing import Final

STEP_S: Final = 2.0
"""Step of the continuous model."""

# -- both models
LOAD_NOISE: Final = 0.03
"""Standard deviation of the input rate around its pattern, as a share."""
LOAD_NOISE_MEMORY: Final = 0.7
"""Correlation of that noise from one 10 s interval to the next."""
HOST_NOISE: Final = 0.02
"""Standard deviation of the speed of the hosts, all together, as a share."""
FAILOVER_S: Final = 30.0
"""Time until the lanes of a dead host run elsewhere."""

# -- continuous model (lanes are threads that live on, as in Storm)
HOP_S: Final = 0.006
"""Time a row takes from one operator to the next: buffers, serialisation, network."""
VARIABILITY: Final = 8.0
"""Mean of the squared coefficients of variation of arrivals and service (Allen-Cunneen); rows come in bursts."""
IDLE_LANE_CORES: Final = 0.005
"""Cores a lane takes without doing anything: polling, heartbeats, timers."""
MOST_IDLE: Final = 0.3
"""Share of a host's cores that idle lanes take at most."""
OVERSUBSCRIPTION_COST: Final = 0.01
"""Share of a host's cores lost to switching, per runnable lane and core beyond the first."""
MOST_STRETCH: Final = 1000.0
"""A row's core time never takes longer than this multiple."""
MOST_SWITCHING: Final = 0.5
"""Switching never makes work longer than by this share."""
STRETCH_POWER: Final = 8.0
"""A row's core time is stretched by 1 + used^8 on a host of which the share `used` is busy: little until it is nearly full."""
FULL_HOST: Final = 0.97
"""Share of its cores a host can give to lanes at most."""
PAUSE_S: Final = 4.0
"""Time for which a job stands still when its lanes change."""
RESTORE_MB_S: Final = 50.0
"""Rate at which a stateful operator's state is restored after that."""
LANE_MB: Final = 32.0
"""Memory of a lane."""
MOST_BUSY: Final = 0.98
"""Share of its time that a queue's lanes count as busy at most; what does not fit is a backlog."""
MEMORY_PRESSURE: Final = 0.85
"""Share of a host's memory from which on lanes slow down."""
MEMORY_SLOPE: Final = 3.0
"""Share of their speed that lanes lose per share of memory beyond that."""
LEAST_SPEED: Final = 0.1
"""Share of their speed that they keep in any case."""

# -- epoch model (one micro-batch after another, as in Spark)
EPOCH_FIXED_S: Final = 0.13
"""Fixed time of an epoch: planning, offsets, commit."""
EPOCH_FIXED_CORES_S: Final = 0.16
"""Fixed core seconds of an epoch."""
TASK_CORES_S: Final = 0.004
"""Core seconds to launch one task."""
EPOCH_SLOTS_PER_CORE: Final = 4
"""Tasks that a host runs at once for each of its cores, for a scenario that was written for threads: many tasks only wait."""
EPOCH_LATENCY_TIMES: Final = 50.0
"""Latency intents of a scenario that was written for threads are this many times longer in epochs: 3 s instead of 60 ms."""
PHASE_SLACK: Final = 0.1
"""Share of its pace by which an epoch starts earlier than due at most, when fewer other jobs start epochs."""
LONGEST_EPOCH_S: Final = 5.0
"""An epoch reads no more rows than take this long, beyond its fixed time."""
FIRST_EPOCH_ROWS: Final = 10000.0
"""Rows that the first epoch of a job reads at most."""
LEAST_EPOCH_ROWS: Final = 100.0
"""Rows that an epoch may read in any case."""
HEARTBEAT_S: Final = 3.0
"""Time between two heartbeats of an executor."""
SUSPECT_S: Final = 2.5 * HEARTBEAT_S
"""A host that has been silent for this long is suspect: its epochs are planned again on other hosts."""

# -- lane model (every lane with its own queue, which holds back the sources when it is full, as in Heron)
LANE_STEP_S: Final = 1.0
"""Step of the lane model while anything is held back or close to it; else a step is as long as the load stays the same."""
HIGH_WATER_MB: Final = 100.0
"""A lane in front of which this much waits holds back the sources of its job (Heron's default)."""
LOW_WATER_MB: Final = 50.0
"""Until no more than this waits (Heron's default)."""
LANE_SPREAD: Final = 0.02
"""Standard deviation of the speeds of lanes of the same operator, as a share: no two places are quite alike."""
SLICE_SPREAD: Final = 0.025
"""Standard deviation of the rows of slices whose keys are spread by a hash, as a share."""

# -- leased hosts (lanes have cores and memory kept for them, as in containers; VISP, section 5)
LEASED_STEP_S: Final = 1.0
"""Step of this model."""
STARTUP_SPREAD: Final = 0.3333
"""A host takes its usual time to start, give or take this share of it: 30 to 60 s around 45 s."""
STARTUP_PATIENCE: Final = 4.0
"""A host that is not ready after this many times its usual time never will be."""
LANE_START_CACHED_S: Final = 5.0
"""Time until a lane works on a host that has its image."""
LANE_START_S: Final = 10.0
"""Time until it does on a host that has to load the image first."""
LANES_TO_SPARE: Final = 0.6
"""Share of their time that lanes are busy when there are enough of them; the time that a row is expected to take is measured so."""
DURATION_SPREAD: Final = 0.4
"""Spread (sigma, lognormal) of the time that a row takes: 58 % of the rows are then within the mean, VISP's best figure."""
DELAYED: Final = 0.1
"""An operator counts as delayed while rows wait for more than this share of the time they take."""
