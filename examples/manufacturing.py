"""Computes the overall equipment effectiveness (OEE) of machines in a factory: the topology of VISP's evaluation (PeerJ CS 2017, figure 1).

Run it: headgate run examples/manufacturing.py --param machines=4

A camera takes pictures of the machines' displays. An OCR engine (tesseract; Debian: tesseract-ocr) reads the pictures. The job computes
availability, performance, quality and their product, the OEE, and writes a PDF report every minute. Two sensors per machine raise a
warning when the machine is defective or too hot. Operators O1 to O9 have the names of the paper's table 2.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from work import arriving

from headgate import Intent, Topology, sinks
from headgate.errors import InputError
from headgate.state.library import Items, Value
from headgate.state.operators import Events

CYCLE_S = 10
"""Between two pictures of a display."""
IDEAL_S = 0.1
"""Production time of an item, if nothing goes wrong."""
TOO_HOT = 90
AVAILABLE, PLANNED, DEFECT = "available", "planned downtime", "defect"

SHOWN = ("machine", "cycle", "produced", "total", "defective", "planned", "unplanned")
"""What a display shows, a line each: items of this cycle, and since the start items, defective ones, and seconds of downtime."""
PARTS = ("availability", "performance", "quality", "oee")

PICTURE = "row long, picture binary, arrived timestamp"
READ = f"row long, {', '.join(f'{name} long' for name in SHOWN)}, arrived timestamp"
REPORT = f"from_s long, machine long, pictures long, {', '.join(f'{part} double' for part in PARTS)}"
WARNING = "machine long, text string, arrived timestamp"

Emit = Callable[[Mapping[str, Any]], None]


def topology(
    machines: int = 2,
    load: float | Mapping[str, Any] | None = None,
    report_s: int = 60,
    lanes: int = 2,
    out: str = "out/manufacturing",
) -> Topology:
    """Every cycle, a machine gives a picture, 5 states and 10 temperatures (table 1); or each source gets the rows of `load`."""
    if shutil.which("tesseract") is None:
        raise InputError("tesseract is needed to read pictures, and it is not installed (Debian: tesseract-ocr)")
    job = Topology("manufacturing", Intent(latency="10s", worth=40))
    pictures, states, temperatures = (
        job.source(name, arriving(times * machines / CYCLE_S if load is None else load))
        for name, times in (("production", 1), ("availability-sensor", 5), ("temperature-sensor", 10))
    )

    taken = job.batches("camera", camera(machines), pictures, schema=PICTURE)
    parsed = job.events("parse", parse, taken, schema=READ, lanes=lanes, dead_letter=f"{out}/unreadable")
    parts = [job.transform(one.__name__, column_of(one), parsed) for one in (availability, performance, quality)]
    oee = job.transform("oee", multiply, *parts, by="row", lanes=1)
    job.sink("values", sinks.files(f"{out}/oee"), oee)

    minutes = job.transform("minutes", begins(report_s), oee)
    means = Events({"values": Items()}, collect(report_s), on_timer=add_up)
    reports = job.keyed("report", means, minutes, key="from_s", time="arrived", schema=REPORT, slices=1)
    job.sink("pdf", pdfs(Path(out, "reports")), reports)

    # One lane, so that the rows of a machine stay in their order however many lanes the source has.
    seen = job.transform("states", sensed(machines, "state", state_at), states, lanes=1, max_lanes=1)
    felt = job.transform("temperatures", sensed(machines, "degrees", degrees_at), temperatures, lanes=1, max_lanes=1)
    defects = Events({"last": Value(AVAILABLE)}, new_defect)
    heat = Events({"hot": Value(False)}, new_heat)
    warnings = job.merge(
        "inform",
        job.keyed("filter-availability", defects, seen, key="machine", schema=WARNING, slices=16),
        job.keyed("monitor-temperature", heat, felt, key="machine", schema=WARNING, slices=16),
    )
    job.sink("warnings", sinks.files(f"{out}/warnings", format="json"), warnings)
    return job


# -- pictures to numbers: O1 -----------------------------------------------------------------------------------------------------


def parse(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """O1: what a picture says; nothing about a machine that has not begun to work.

    A picture that cannot be read goes to the directory `unreadable`, with the reason.
    """
    shown = numbers_in(row["picture"])
    return {"row": row["row"], **shown, "arrived": row["arrived"]} if shown["cycle"] and shown["total"] else None


def numbers_in(picture: bytes) -> dict[str, int]:
    """By tesseract, on one core: lanes are what runs side by side."""
    command = ["tesseract", "stdin", "stdout", "--psm", "6"]  # 6: lines of text, one below the other
    alone = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    said = subprocess.run(command, input=picture, capture_output=True, check=True, env=alone).stdout.decode()
    words = dict(line.split() for line in said.splitlines() if len(line.split()) == 2)
    missing = [name for name in SHOWN if not words.get(name, "").isdecimal()]
    if missing:
        raise ValueError(f"no number can be read for {', '.join(missing)}")
    return {name: int(words[name]) for name in SHOWN}


# -- numbers to effectiveness: O3, O4, O5, O7 ------------------------------------------------------------------------------------
# The formulas take what has columns of numbers, a DataFrame, or just numbers, such as a dict.


def performance(shown: Any) -> Any:
    """O3, equation 2: of the last cycle."""
    return shown["produced"] * IDEAL_S / CYCLE_S


def availability(shown: Any) -> Any:
    """O4, equation 3: since the start."""
    total_s = shown["cycle"] * CYCLE_S
    return (total_s - shown["planned"] - shown["unplanned"]) / total_s


def quality(shown: Any) -> Any:
    """O5, equation 4: since the start."""
    return (shown["total"] - shown["defective"]) / shown["total"]


def column_of(formula: Callable[[DataFrame], Any]) -> Callable[[DataFrame], DataFrame]:
    """The result of a formula as a column of its name."""
    return lambda rows: rows.select("row", "machine", formula(rows).alias(formula.__name__), "arrived")


def multiply(availability: DataFrame, performance: DataFrame, quality: DataFrame) -> DataFrame:
    """O7, equation 5: the three parts of the same picture."""
    parts = availability.join(performance.select("row", "performance"), "row").join(
        quality.select("row", "quality"), "row"
    )
    return parts.withColumn("oee", F.col("availability") * F.col("performance") * F.col("quality"))


# -- effectiveness to reports: O9 ------------------------------------------------------------------------------------------------


def begins(report_s: int) -> Callable[[DataFrame], DataFrame]:
    """When the minute began in which a picture was taken."""
    return lambda rows: rows.withColumn("from_s", F.floor(F.unix_seconds("arrived") / report_s) * report_s)


def collect(report_s: int) -> Callable[[int, Mapping[str, Any], Any, Emit], None]:
    """O9: keep the values of a minute until it is over."""

    def kept(from_s: int, row: Mapping[str, Any], state: Any, emit: Emit) -> None:
        state.values.append([row["machine"], *(row[part] for part in PARTS)])
        state.wake_at(1000 * (from_s + report_s))

    return kept


def add_up(from_s: int, at_ms: int, state: Any, emit: Emit) -> None:
    """The means of a minute, machine by machine."""
    for machine, rows in groupby(sorted(state.values), key=lambda row: row[0]):
        _, *columns = zip(*rows, strict=True)
        means = dict(zip(PARTS, map(fmean, columns), strict=True))
        emit({"from_s": from_s, "machine": machine, "pictures": len(columns[0]), **means})
    state.values.clear()


def pdfs(place: Path) -> Callable[[DataFrame, int], None]:
    """A file per minute, named after it; an epoch that is run again writes the same one again."""

    def write(rows: DataFrame, epoch: int) -> None:
        found = sorted(rows.collect(), key=lambda row: (row["from_s"], row["machine"]))
        for from_s, means in groupby(found, key=lambda row: row["from_s"]):
            place.mkdir(parents=True, exist_ok=True)
            begun = datetime.fromtimestamp(from_s)
            draw(place / f"{begun:%Y-%m-%dT%H-%M-%S}.pdf", f"{begun:%d %B %Y, %H:%M:%S}", list(means))

    return write


def draw(path: Path, begun: str, means: Iterable[Mapping[str, Any]]) -> None:
    """A page with a table of machines."""
    from matplotlib.figure import Figure

    cells = [[row["machine"], row["pictures"], *(f"{row[part]:.1%}" for part in PARTS)] for row in means]
    figure = Figure(figsize=(8, 1.5 + 0.3 * len(cells)), layout="constrained")
    figure.suptitle(f"Overall equipment effectiveness\n{begun}")
    axes = figure.subplots()
    axes.axis("off")
    axes.table(cells, colLabels=["machine", "pictures", *PARTS], loc="upper center").scale(1, 1.4)
    figure.savefig(path)


# -- sensors to warnings: O2, O6 -------------------------------------------------------------------------------------------------


def new_defect(machine: int, row: Mapping[str, Any], state: Any, emit: Emit) -> None:
    """O2: a warning when a machine becomes defect, and none as long as it is."""
    if row["state"] == DEFECT and state.last.get() != DEFECT:
        emit({"machine": machine, "text": "is defect", "arrived": row["arrived"]})
    state.last.set(row["state"])


def new_heat(machine: int, row: Mapping[str, Any], state: Any, emit: Emit) -> None:
    """O6: a warning when a machine becomes too hot, and none as long as it is."""
    hot = row["degrees"] > TOO_HOT
    if hot and not state.hot.get():
        emit({"machine": machine, "text": f"has {row['degrees']} degrees", "arrived": row["arrived"]})
    state.hot.set(hot)


# -- what the machines do, made from the numbers of rows: the same again when an epoch is read again -----------------------------


def display(row: int, machines: int) -> dict[str, int]:
    """A machine stands still for 3 s in every seventh cycle, and as planned for 2 s in every eleventh."""
    machine, cycle = row % machines, row // machines + 1
    return {
        "machine": machine,
        "cycle": cycle,
        "produced": made(machine, cycle) - made(machine, cycle - 1),
        "total": made(machine, cycle),
        "defective": cycle + machine,
        "planned": 2 * (cycle // 11),
        "unplanned": 3 * (cycle // 7),
    }


def made(machine: int, cycles: int) -> int:
    """Items since the start: 93 or 73 per cycle, of the 100 that a cycle has time for."""
    return 90 * cycles + (7 * machine + 3 * cycles) % 20 - 7 * machine % 20


def camera(machines: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pictures of displays."""

    def taken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shots = [picture(display(row, machines)) for row in batch["row"].to_pylist()]
            columns = [batch["row"], pa.array(shots, pa.binary()), batch["arrived"]]
            yield pa.RecordBatch.from_arrays(columns, ["row", "picture", "arrived"])

    return taken


def picture(shown: Mapping[str, int]) -> bytes:
    """A display as a PNG file: about 15 kB."""
    from matplotlib.font_manager import findfont
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (640, 60 * len(shown) + 40), 255)
    font = ImageFont.truetype(findfont("DejaVu Sans Mono"), 40)
    for line, (name, value) in enumerate(shown.items()):
        ImageDraw.Draw(image).text((30, 20 + 60 * line), f"{name} {value:05d}", 0, font)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def sensed(machines: int, name: str, reading: Callable[[Column], Column]) -> Callable[[DataFrame], DataFrame]:
    """What a sensor reads, in order: all machines by turns."""

    def rows_of(rows: DataFrame) -> DataFrame:
        read = reading(F.floor(F.col("row") / machines)).alias(name)
        return rows.sortWithinPartitions("row").select((F.col("row") % machines).alias("machine"), read, "arrived")

    return rows_of


def state_at(turn: Column) -> Column:
    """Of 20 times, once planned downtime, and two times in a row defect."""
    return F.when(turn % 20 == 7, PLANNED).when((turn % 20).isin(11, 12), DEFECT).otherwise(AVAILABLE)


def degrees_at(turn: Column) -> Column:
    """From 95 down to 60 and back, over 70 readings."""
    return 60 + F.abs(turn % 70 - 35)
