"""Feeds rows to a job under chaos: rows are numbered within their keys, and each row is fed exactly once whatever happens to Redis."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from redis import Redis, RedisError

STREAMS = ("in1", "in2")
KEYS = 150
WEIGHTS = [1 / (key + 1) ** 1.1 for key in range(KEYS)]
"""A few keys have most of the rows (Zipf)."""
TICK_S = 0.05
LARGEST_BATCH = 500
"""The most rows of a batch; batches grow to this size after Redis was away."""
LEAST_VALUE, MOST_VALUE = -1000, 10_000

_FEED = """
local done = tonumber(redis.call('GET', 'fed') or '-1')
if done >= tonumber(ARGV[1]) then return 0 end
for i = 2, #ARGV, 4 do
  redis.call('XADD', ARGV[i], '*', 'key', ARGV[i + 1], 'seq', ARGV[i + 2], 'value', ARGV[i + 3])
end
redis.call('SET', 'fed', ARGV[1])
return 1
"""
"""The script that adds a batch; a batch that is sent again after a lost answer is recognised by its number."""


@dataclass(slots=True)
class Fed:
    """The rows in Redis, as the feeder knows them; owned by the feeder's thread, other threads read only the number of rows."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)


class Feeder:
    """Feeds rows at a constant rate until stopped; rows that were due while Redis was away are fed later."""

    def __init__(self, url: str, seed: int, rate_rows_s: float) -> None:
        self.fed = Fed()
        self.rate_rows_s = rate_rows_s
        self._client = Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop feeding; return when Redis has the last batch."""
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        begun_s, batch = time.monotonic(), 0
        while not self._stop.wait(TICK_S):
            due = int((time.monotonic() - begun_s) * self.rate_rows_s) - self.fed.rows
            if due > 0:
                self._feed(batch, min(due, LARGEST_BATCH))
                batch += 1

    def _feed(self, batch: int, rows: int) -> None:
        arguments: list[str | int] = [batch]
        keys = self._random.choices(range(KEYS), WEIGHTS, k=rows)
        for number in keys:
            key, value = f"k{number}", self._random.randrange(LEAST_VALUE, MOST_VALUE)
            arguments += [STREAMS[number % len(STREAMS)], key, self.fed.counts[key], value]
            self.fed.counts[key] += 1
            self.fed.sums[key] += value
        while not self._accepted(arguments):
            time.sleep(TICK_S)
        self.fed.rows += rows

    def _accepted(self, arguments: list[str | int]) -> bool:
        try:
            self._client.eval(_FEED, 0, *arguments)
        except RedisError:
            return False
        return True
