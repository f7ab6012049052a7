"""Counts words within each epoch: a source, two transforms and a sink.

Run it: headgate run examples/wordcount.py --fast
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks, sources

LINES = ("a gate lets water in", "a gate keeps water out", "who opens the gate")


def topology(rate: float = 1000, out: str = "out/wordcount") -> Topology:
    """Reads lines; writes how often each word occurred in each epoch."""
    job = Topology("wordcount", Intent(latency="2s", worth=10))
    lines = job.source("lines", sources.load(rate))
    words = job.transform("words", split, lines)
    counts = job.transform("counts", count, words, by="word", lanes=2)
    job.sink("files", sinks.files(out, format="json"), counts)
    return job


def split(lines: DataFrame) -> DataFrame:
    """One row per word, with the column `arrived`, from which Headgate measures the latency."""
    line = F.get(F.array(*map(F.lit, LINES)), F.col("row") % len(LINES))
    return lines.select(F.explode(F.split(line, " ")).alias("word"), "arrived")


def count(words: DataFrame) -> DataFrame:
    """Words by count; a count is as late as its latest word."""
    return words.groupBy("word").agg(F.count("*").alias("count"), F.max("arrived").alias("arrived"))
