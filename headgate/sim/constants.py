"""Constants of the simulator: every scenario has the same values, and no value is tuned to a scenario."""

from __future__ import annotations

from typing import Final

STEP_S: Final = 2.0
"""Step of the continuous model."""

# -- both models
LOAD_NOISE: Final = 0.03
"""Standard deviation of the input rate around its pattern, as a share."""
LOAD_NOISE_MEMORY: Final = 0.7
"""Correlation of the load noise from one 10 s interval to the next."""
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
"""A row's core time is stretched at most by this factor."""
MOST_SWITCHING: Final = 0.5
"""Switching lengthens work at most by this share."""
STRETCH_POWER: Final = 8.0
"""A row's core time is stretched by 1 + used^8 on a host of which the share `used` is busy: little until it is nearly full."""
FULL_HOST: Final = 0.97
"""Share of its cores a host can give to lanes at most."""
PAUSE_S: Final = 4.0
"""Time for which a job stands still when its lanes change."""
RESTORE_MB_S: Final = 50.0
"""Megabytes per second at which the state of a stateful operator is restored after the pause."""
LANE_MB: Final = 32.0
"""Memory of a lane."""
MOST_BUSY: Final = 0.98
"""The largest share of time that the lanes of a queue count as busy; more work becomes backlog."""
MEMORY_PRESSURE: Final = 0.85
"""Share of a host's memory from which on lanes slow down."""
MEMORY_SLOPE: Final = 3.0
"""Share of their speed that lanes lose per share of memory beyond `MEMORY_PRESSURE`."""
LEAST_SPEED: Final = 0.1
"""The least share of their speed that lanes keep under memory pressure."""

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
"""The largest share of its pace by which an epoch starts early, to start when fewer other jobs start epochs."""
LONGEST_EPOCH_S: Final = 5.0
"""An epoch reads no more rows than take this long, beyond its fixed time."""
FIRST_EPOCH_ROWS: Final = 10000.0
"""Rows that the first epoch of a job reads at most."""
LEAST_EPOCH_ROWS: Final = 100.0
"""The read limit of an epoch is never below this number of rows."""
HEARTBEAT_S: Final = 3.0
"""Time between two heartbeats of an executor."""
SUSPECT_S: Final = 2.5 * HEARTBEAT_S
"""A host that has been silent for this long is suspect: its epochs are planned again on other hosts."""

# -- lane model (every lane with its own queue, which holds back the sources when it is full, as in Heron)
LANE_STEP_S: Final = 1.0
"""Seconds of a step of the lane model while input is held back or nearly so; otherwise a step lasts as long as the load is constant."""
HIGH_WATER_MB: Final = 100.0
"""A lane with more megabytes of waiting rows than this holds back the sources of its job (Heron's default)."""
LOW_WATER_MB: Final = 50.0
"""A lane stops holding back the sources once no more megabytes than this wait (Heron's default)."""
LANE_SPREAD: Final = 0.02
"""Standard deviation of the speeds of the lanes of an operator, as a share: machines are never exactly alike."""
SLICE_SPREAD: Final = 0.025
"""Standard deviation of the rows of slices whose keys are spread by a hash, as a share."""

# -- leased hosts (lanes have cores and memory kept for them, as in containers; VISP, section 5)
LEASED_STEP_S: Final = 1.0
"""Seconds of a step of the leased model."""
STARTUP_SPREAD: Final = 0.3333
"""Largest deviation of a host's start-up time from the usual time, as a share: 30 to 60 s around 45 s."""
STARTUP_PATIENCE: Final = 4.0
"""A host that is not ready after this multiple of its usual start-up time has failed."""
LANE_START_CACHED_S: Final = 5.0
"""Seconds until a new lane processes rows on a host that has the lane's image."""
LANE_START_S: Final = 10.0
"""Seconds until a new lane processes rows on a host that has to load the lane's image first."""
LANES_TO_SPARE: Final = 0.6
"""Share of their time that lanes are busy when a row takes its expected duration; only lanes that are busier add waits for bursts."""
DURATION_SPREAD: Final = 0.4
"""Spread (sigma, lognormal) of the time that a row takes: 58 % of the rows are then within the mean, VISP's best figure."""
DELAYED: Final = 0.1
"""An operator counts as delayed while rows wait for more than this share of their expected duration."""
