"""Runs Yahoo's PageLoad (Henge, SoCC '18, fig. 7): filter, transform, join with a database, filter, aggregate.

Run it: python examples/pageload.py redis://127.0.0.1:6379
        headgate run examples/pageload.py --param redis=redis://127.0.0.1:6379

The first command fills the database, a Redis, once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from redis import Redis
from work import arriving

from headgate import Intent, Topology, sinks

REDIS = "redis://127.0.0.1:6379"
PAGES, ADVERTISERS = 1000, 20
KEYS_AT_ONCE = 500

PARSED = "page string, seen_ms long, arrived timestamp"
JOINED = f"{PARSED}, advertiser string"
VIEW = pa.schema({"agent": pa.string(), "url": pa.string(), "seen_ms": pa.int64()})

Batches = Iterator[pa.RecordBatch]


def topology(
    load: float | Mapping[str, Any] = 1000, redis: str = REDIS, wait_us: float = 0, out: str = "out/pageload"
) -> Topology:
    """For each epoch, the views that every advertiser has to pay for.

    `wait_us` is added to the look-up of every row, as for a database that is further away.
    """
    job = Topology("page-load", Intent(latency="1.5s", worth=100))
    views = job.transform("views", made_up, job.source("web", arriving(load), lanes=2))
    people = job.transform("people", without_bots, views)
    pages = job.batches("pages", parse, people, schema=PARSED, lanes=None)
    joined = job.batches("look-up", look_up(redis, wait_us), pages, schema=JOINED, lanes=2)
    paid = job.transform("paid", lambda rows: rows.where("advertiser IS NOT NULL AND seen_ms >= 1000"), joined)
    bills = job.transform("bills", total, paid, by="advertiser", lanes=1)
    job.sink("files", sinks.files(out), bills)
    return job


def made_up(rows: DataFrame) -> DataFrame:
    """Page views as a web server logs them, one JSON text each; the same again when an epoch is read again."""
    number = F.col("row")
    view = F.struct(
        F.when(number % 7 == 0, "SomeBot/2.1").otherwise("Mozilla/5.0").alias("agent"),
        F.format_string("https://news.example/page/%d?from=mail", number * 31 % PAGES).alias("url"),
        (number % 11 * 400).alias("seen_ms"),
    )
    return rows.select(F.to_json(view).alias("view"), "arrived")


def without_bots(views: DataFrame) -> DataFrame:
    """Early, and without leaving the JVM: what is dropped here is never sent to Python."""
    return views.where(~F.get_json_object("view", "$.agent").contains("Bot"))


def parse(batches: Batches) -> Batches:
    """JSON texts to columns, a whole record batch at a time."""
    for batch in batches:
        texts = "\n".join(batch.column("view").to_pylist()).encode()
        views = json.read_json(pa.BufferReader(texts), parse_options=json.ParseOptions(explicit_schema=VIEW))
        page = pc.struct_field(pc.extract_regex(views["url"], r"//[^/]+(?P<page>/[^?#]*)"), "page")
        yield pa.RecordBatch.from_pydict(
            {
                "page": page.combine_chunks(),
                "seen_ms": views["seen_ms"].combine_chunks(),
                "arrived": batch.column("arrived"),
            }
        )


def look_up(url: str, wait_us: float) -> Callable[[Batches], Batches]:
    """Adds the advertiser of the page; each page is asked for once per record batch, all of them in one round trip."""

    def lane(batches: Batches) -> Batches:
        with Redis.from_url(url, decode_responses=True) as client:
            for batch in batches:
                pages = batch.column("page").dictionary_encode()
                advertisers = pa.array(advertisers_of(client, pages.dictionary.to_pylist()), pa.string())
                time.sleep(batch.num_rows * wait_us / 1e6)
                yield batch.append_column("advertiser", advertisers.take(pages.indices))

    return lane


def advertisers_of(client: Redis, pages: list[str]) -> list[str | None]:
    """None for a page without advertisements."""
    pipeline = client.pipeline(transaction=False)
    for first in range(0, len(pages), KEYS_AT_ONCE):
        pipeline.mget([f"advertiser:{page}" for page in pages[first : first + KEYS_AT_ONCE]])
    return [advertiser for answer in pipeline.execute() for advertiser in answer]


def total(paid: DataFrame) -> DataFrame:
    """A bill is as late as the latest view on it."""
    return paid.groupBy("advertiser").agg(
        F.count("*").alias("views"), F.sum("seen_ms").alias("seen_ms"), F.max("arrived").alias("arrived")
    )


def fill(url: str = REDIS) -> None:
    """The look-up table: four pages of five carry advertisements."""
    pages = (page for page in range(PAGES) if page % 5 > 0)
    with Redis.from_url(url) as client:
        client.mset({f"advertiser:/page/{page}": f"advertiser-{page % ADVERTISERS}" for page in pages})


if __name__ == "__main__":
    fill(*sys.argv[1:])
