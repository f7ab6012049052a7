"""Counts views per campaign in windows of 10 s: the Yahoo Streaming Benchmark, entirely in the JVM.

Run it: headgate run examples/ysb.py --param rate=5000

Each epoch writes its increments of a window; a reader sums the increments. For windows that Spark keeps and writes once, see
existing_query.py.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks, sources

CAMPAIGNS, ADS_PER_CAMPAIGN = 100, 10
ADS = CAMPAIGNS * ADS_PER_CAMPAIGN
TYPES = ("view", "click", "purchase")
AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
EVENT = "user_id string, page_id string, ad_id string, ad_type string, event_type string, event_time long, ip_address string"


def topology(rate: float = 2000, out: str = "out/ysb") -> Topology:
    """Parse, filter, project, join, count."""
    job = Topology("ysb", Intent(latency="3s", worth=50))
    events = job.transform("events", made_up, job.source("ads", sources.load(rate), lanes=2))
    parsed = job.transform("parse", parse, events)
    views = job.transform("views", lambda rows: rows.where("event_type = 'view'"), parsed)
    needed = job.transform("needed", lambda rows: rows.select("ad_id", "event_time", "arrived"), views)
    joined = job.transform("campaign", with_campaign, needed)
    counts = job.transform("counts", count, joined)
    job.sink("files", sinks.files(out), counts)
    return job


def made_up(rows: DataFrame) -> DataFrame:
    """Events as JSON texts, derived from the row number, so that an epoch that runs again has the same events."""
    number = F.col("row")
    event = F.struct(
        F.format_string("user-%d", number % 997).alias("user_id"),
        F.format_string("page-%d", number % 101).alias("page_id"),
        F.format_string("ad-%d", number * 31 % ADS).alias("ad_id"),
        one_of(AD_TYPES).alias("ad_type"),
        one_of(TYPES).alias("event_type"),
        F.unix_millis("arrived").alias("event_time"),
        F.lit("192.0.2.1").alias("ip_address"),
    )
    return rows.select(F.to_json(event).alias("event"), "arrived")


def one_of(names: tuple[str, ...]) -> F.Column:
    """Each name in turn, by row number."""
    return F.get(F.array(*map(F.lit, names)), F.col("row") % len(names))


def parse(events: DataFrame) -> DataFrame:
    """The columns of the JSON text; invalid JSON becomes nulls, which the next operator drops."""
    return events.select(F.from_json("event", EVENT).alias("event"), "arrived").select("event.*", "arrived")


def with_campaign(views: DataFrame) -> DataFrame:
    """Joins the table of campaigns, which is small enough to broadcast."""
    ads = views.sparkSession.range(0, ADS, 1, 1)
    campaigns = ads.select(
        F.format_string("ad-%d", "id").alias("ad_id"),
        F.format_string("campaign-%d", F.floor(F.col("id") / ADS_PER_CAMPAIGN)).alias("campaign"),
    )
    return views.join(F.broadcast(campaigns), "ad_id")


def count(views: DataFrame) -> DataFrame:
    """Views per campaign and window; Spark counts within each lane first, which keeps the exchange small."""
    window = F.window(F.timestamp_millis("event_time"), "10 seconds").start.alias("window")
    return views.groupBy("campaign", window).agg(F.count("*").alias("views"), F.max("arrived").alias("arrived"))
