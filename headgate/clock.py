"""Wall time that never goes back: the wall time at the start, plus the time that a monotonic clock measured since.

Rounds, windows and the journal use it, so that a clock that is set back or forward during a run moves none of them. Waits and
deadlines use `time.monotonic`. Only the arrival times of rows are compared with `time.time`, which producers use too.
"""

from __future__ import annotations

import time

_STARTED_S = time.time() - time.monotonic()


def now_s() -> float:
    """Seconds since 1970, by the clock as it was when this process started."""
    return _STARTED_S + time.monotonic()
