"""Ranks the most frequent words of each category over a sliding window, in keyed state; a workload of ChronoStream (ICDE '15).

Run it: headgate run examples/topk.py --param window=10000

`window` is the number of words per category. It determines the size of the state.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks, sources
from headgate.state.library import CountWindow, TopK, Value
from headgate.state.operators import Events

STOP_WORDS = frozenset(("the", "of", "a"))
OUTPUT = "category long, words array<string>, counts array<long>, arrived timestamp"


def topology(
    rate: float = 500, categories: int = 100, window: int = 1000, best: int = 3, lanes: int = 2, out: str = "out/topk"
) -> Topology:
    """Reads abstracts; writes the ranking of a category whenever it changes."""
    job = Topology("topk", Intent(latency="5s", worth=10))
    abstracts = job.transform("abstracts", written(categories), job.source("in", sources.load(rate)))
    ranking = Events({"window": CountWindow(window), "ranking": TopK(best), "shown": Value([])}, rank)
    ranked = job.keyed("ranked", ranking, abstracts, key="category", schema=OUTPUT, lanes=lanes, slices=64)
    job.sink("out", sinks.files(out), ranked)
    return job


def written(categories: int) -> Callable[[DataFrame], DataFrame]:
    """Abstracts of eight words each, derived from the row number; words with low numbers are frequent."""
    word = "concat('word', cast(pow(40, pmod(xxhash64(row, i), 1000) / 1000) as int))"

    def abstracts(rows: DataFrame) -> DataFrame:
        text = F.expr(f"concat('the ', array_join(transform(sequence(1, 8), i -> {word}), ' '), ' of a')")
        return rows.select((F.col("row") % categories).alias("category"), text.alias("text"), "arrived")

    return abstracts


def rank(category: int, abstract: Mapping[str, Any], state: Any, emit: Callable[[Mapping[str, Any]], None]) -> None:
    """Add the new words to the ranking, and subtract the words that leave the window."""
    for word in abstract["text"].split():
        if word not in STOP_WORDS:
            state.ranking.add(word)
            for old in state.window.append(word):
                state.ranking.add(old, -1)
    best = [list(one) for one in state.ranking.best()]
    if best != state.shown.get():
        state.shown.set(best)
        words, counts = zip(*best, strict=True)
        emit({"category": category, "words": words, "counts": counts, "arrived": abstract["arrived"]})
