"""Finds the most similar recent tweet from the same place for every tweet, in keyed state; a workload of ChronoStream (ICDE '15).

Run it: headgate run examples/tweets.py --param window=200

The job compares every tweet with the window of its place, so work and state grow with `window`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks, sources
from headgate.state.library import CountWindow
from headgate.state.operators import Events

OUTPUT = "place long, tweet long, similar long, shared long, arrived timestamp"


def topology(
    rate: float = 200, places: int = 50, window: int = 100, lanes: int = 2, out: str = "out/tweets"
) -> Topology:
    """Reads tweets; writes pairs of tweets with the number of shared words."""
    job = Topology("tweets", Intent(latency="5s", worth=10))
    tweets = job.transform("tweets", written(places), job.source("in", sources.load(rate)))
    searching = Events({"recent": CountWindow(window)}, search)
    pairs = job.keyed("pairs", searching, tweets, key="place", schema=OUTPUT, lanes=lanes, slices=64)
    job.sink("out", sinks.files(out), pairs)
    return job


def written(places: int) -> Callable[[DataFrame], DataFrame]:
    """Tweets of up to six different numbers below 60, derived from the row number."""

    def tweets(rows: DataFrame) -> DataFrame:
        words = F.expr("array_distinct(transform(sequence(1, 6), i -> cast(pmod(xxhash64(row, i), 60) as int)))")
        return rows.select(
            (F.col("row") % places).alias("place"), F.col("row").alias("tweet"), words.alias("words"), "arrived"
        )

    return tweets


def search(place: int, tweet: Mapping[str, Any], state: Any, emit: Callable[[Mapping[str, Any]], None]) -> None:
    """Emit the tweet with the most shared words; among equals, the newest."""
    words = set(tweet["words"])
    shared, similar = max(((len(words.intersection(other)), number) for number, other in state.recent), default=(0, -1))
    state.recent.append([tweet["tweet"], tweet["words"]])
    if shared:
        found = {"tweet": tweet["tweet"], "similar": similar, "shared": shared}
        emit({"place": place, **found, "arrived": tweet["arrived"]})
