"""Wall time that never goes back: the wall time at the start, plus the time that a monotonic clock measured since.

Rounds, windows and the journal use this time, so that setting the clock back or forward during a run changes none of these. Waits and
deadlines use `time.monotonic`. Only the arrival times of rows are compared with `time.time`, which producers use too.
"""

from __future__ import annotations

import time

_STARTED_S = time.time() - time.monotonic()


def now_s() -> float:
    """Seconds since 1970: the wall time at the start of this process, plus the monotonic time since."""
    return _STARTED_S + time.monotonic()
