"""Counts words: the first job of the guide.

headgate run examples/wordcount.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks, sources

LINES = ("a gate lets water in", "a gate keeps water out", "who opens the gate")


def topology(rate: float = 1000, out: str = "out/wordcount") -> Topology:
    """Lines in; for each epoch, how often every word came."""
    job = Topology("wordcount", Intent(latency="2s", worth=10))
    lines = job.source("lines", sources.load(rate))
    words = job.transform("words", split, lines)
    counts = job.transform("counts", count, words, by="word", lanes=2)
    job.sink("files", sinks.files(out, format="json"), counts)
    return job


def split(lines: DataFrame) -> DataFrame:
    """One row per word; `arrived` stays with it, so that its latency can be told."""
    line = F.get(F.array(*map(F.lit, LINES)), F.col("row") % len(LINES))
    return lines.select(F.explode(F.split(line, " ")).alias("word"), "arrived")


def count(words: DataFrame) -> DataFrame:
    """A count is as late as the latest word in it."""
    return words.groupBy("word").agg(F.count("*").alias("count"), F.max("arrived").alias("arrived"))
