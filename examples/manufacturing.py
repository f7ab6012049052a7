"""Overall equipment effectiveness (OEE) of manufacturing machines: the evaluation topology of VISP (PeerJ CS 2017, figure 1).

headgate run examples/manufacturing.py --param machines=4 --hosts local:2

A camera takes pictures of displays, which a real OCR engine reads (Debian's tesseract-ocr); what they say becomes performance,
availability, quality and OEE (equations 2 to 5), and a PDF per epoch. Two sensors of each machine warn of defects and of heat.
"""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks, sources
from headgate.state.library import Value
from headgate.state.operators import Events

CYCLE_S = 10
"""Between two pictures of a display."""
IDEAL_S = 0.1
"""Production time of an item, if nothing goes wrong."""
TOO_HOT = 90
STATES = ("available", "planned downtime", "defect")
SHOWN = ("machine", "cycle", "produced", "total", "defective", "planned", "unplanned")
"""What a display shows: a name and a number of five digits per line; downtimes in seconds."""
PICTURE = "row long, picture binary, arrived timestamp"
READ = f"row long, {', '.join(f'{name} long' for name in SHOWN)}, arrived timestamp"
WARNING = "machine long, text string, arrived timestamp"


def topology(machines: int = 2, load: Any = None, out: str = "out/manufacturing", lanes: int = 2) -> Topology:
    """Nine operators and three sources; a picture, 5 states and 10 temperatures of each machine per cycle."""
    job = Topology("manufacturing", Intent(latency="10s", worth=40))
    every = machines / CYCLE_S
    displays = job.source("production", sources.load(load or every))
    pictures = job.batches("camera", camera(machines), displays, schema=PICTURE)
    parsed = job.events("parse", read, pictures, schema=READ, lanes=lanes, dead_letter=f"{out}/unreadable")
    performance = job.transform("performance", lambda rows: share(rows, f"produced * {IDEAL_S} / {CYCLE_S}"), parsed)
    availability = job.transform(
        "availability", lambda rows: share(rows, f"1 - (planned + unplanned) / {TOTAL_S}"), parsed
    )
    quality = job.transform("quality", lambda rows: share(rows, "(total - defective) / total"), parsed)
    effectiveness = job.transform("oee", together, performance, availability, quality, lanes=1, by="row")
    job.sink("oee-files", sinks.files(f"{out}/oee"), effectiveness)
    job.sink("report", report(Path(out) / "reports"), effectiveness)

    states = job.transform(
        "states", state_of(machines), job.source("availability-sensor", sources.load(load or 5 * every))
    )
    warned = Events({"last": Value("available")}, new_defects)
    defects = job.keyed("filter-availability", warned, states, key="machine", schema=WARNING, slices=16)
    heat = job.transform("heat", heat_of(machines), job.source("temperature-sensor", sources.load(load or 10 * every)))
    hot = job.keyed(
        "temperature", Events({"hot": Value(False)}, new_heat), heat, key="machine", schema=WARNING, slices=16
    )
    job.sink(
        "inform",
        sinks.files(f"{out}/warnings"),
        job.transform("warnings", lambda one, other: one.unionByName(other), defects, hot),
    )
    return job


# -- what the machines do, made from the number of a row -------------------------------------------------------------------------


def display_of(row: int, machines: int) -> dict[str, int]:
    """What a machine's display shows; every seventh cycle it stands still for 3 s, every eleventh as planned for 2 s."""
    machine, cycle = row % machines, row // machines + 1
    produced = 80 + (machine * 7 + cycle * 3) % 20
    return {
        "machine": machine,
        "cycle": cycle,
        "produced": produced,
        "total": 90 * cycle,
        "defective": cycle + machine,
        "planned": 2 * (cycle // 11),
        "unplanned": 3 * (cycle // 7),
    }


TOTAL_S = f"(cycle * {CYCLE_S})"


def camera(machines: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pictures of displays."""

    def taken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shots = [picture(display_of(row, machines)) for row in batch["row"].to_pylist()]
            columns = [batch["row"], pa.array(shots, pa.binary()), batch["arrived"]]
            yield pa.RecordBatch.from_arrays(columns, ["row", "picture", "arrived"])

    return taken


def picture(shown: Mapping[str, int]) -> bytes:
    """A display as a PNG file."""
    from matplotlib.font_manager import findfont
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (640, 60 * len(shown) + 40), 255)
    font = ImageFont.truetype(findfont("DejaVu Sans Mono"), 40)
    for line, (name, value) in enumerate(shown.items()):
        ImageDraw.Draw(image).text((30, 20 + 60 * line), f"{name} {value:05d}", 0, font)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def state_of(machines: int) -> Callable[[DataFrame], DataFrame]:
    """Mostly available; every twentieth time planned downtime, and two times in a row defect."""

    def states(rows: DataFrame) -> DataFrame:
        turn = F.floor(F.col("row") / machines) % 20
        state = F.when(turn == 7, STATES[1]).when(turn.isin(11, 12), STATES[2]).otherwise(STATES[0])
        return rows.select("row", (F.col("row") % machines).alias("machine"), state.alias("state"), "arrived")

    return states


def heat_of(machines: int) -> Callable[[DataFrame], DataFrame]:
    """From 95 degrees down to 60 and back, over 70 readings."""

    def heat(rows: DataFrame) -> DataFrame:
        degrees = 60 + F.abs(F.floor(F.col("row") / machines) % 70 - 35)
        return rows.select("row", (F.col("row") % machines).alias("machine"), degrees.alias("degrees"), "arrived")

    return heat


# -- operators -------------------------------------------------------------------------------------------------------------------


def read(row: Mapping[str, Any]) -> dict[str, Any]:
    """O1: what a picture says, by tesseract; a display that cannot be read goes where unreadable ones are kept."""
    command = ["tesseract", "stdin", "stdout", "--psm", "6"]
    alone = {**os.environ, "OMP_THREAD_LIMIT": "1"}  # lanes are what runs side by side
    told = subprocess.run(command, input=row["picture"], capture_output=True, check=True, env=alone).stdout.decode()
    words = dict(line.split() for line in told.splitlines() if len(line.split()) == 2)
    return {"row": row["row"], **{name: int(words[name]) for name in SHOWN}, "arrived": row["arrived"]}


def share(rows: DataFrame, formula: str) -> DataFrame:
    """O3 to O5: equations 2 to 4."""
    return rows.select("row", "machine", F.expr(f"CAST({formula} AS DOUBLE)").alias("share"), "arrived")


def together(performance: DataFrame, availability: DataFrame, quality: DataFrame) -> DataFrame:
    """O7: equation 5, of the three parts of the same picture."""
    parts = {"availability": availability, "quality": quality}
    rows = performance.withColumnRenamed("share", "performance")
    for name, part in parts.items():
        rows = rows.join(part.select("row", F.col("share").alias(name)), "row")
    return rows.withColumn("oee", F.col("availability") * F.col("performance") * F.col("quality"))


def new_defects(machine: int, row: Mapping[str, Any], state: Any, emit: Callable[[Mapping[str, Any]], None]) -> None:
    """O2: a warning when a machine becomes defect, not as long as it is."""
    if row["state"] == STATES[2] != state.last.get():
        emit({"machine": machine, "text": "is defect", "arrived": row["arrived"]})
    state.last.set(row["state"])


def new_heat(machine: int, row: Mapping[str, Any], state: Any, emit: Callable[[Mapping[str, Any]], None]) -> None:
    """O6: a warning when a machine becomes too hot, not as long as it is."""
    hot = row["degrees"] > TOO_HOT
    if hot and not state.hot.get():
        emit({"machine": machine, "text": f"{row['degrees']} degrees", "arrived": row["arrived"]})
    state.hot.set(hot)


def report(place: Path) -> Callable[[DataFrame, int], None]:
    """O9: the means of an epoch as a PDF; an epoch that is run again writes the same file again."""

    def write(rows: DataFrame, epoch: int) -> None:
        names = ("availability", "performance", "quality", "oee")
        means = rows.groupBy("machine").agg(*(F.mean(name).alias(name) for name in names)).orderBy("machine").collect()
        if means:
            place.mkdir(parents=True, exist_ok=True)
            draw(place / f"{epoch}.pdf", names, {row["machine"]: [row[name] for name in names] for row in means})

    return write


def draw(path: Path, names: tuple[str, ...], means: Mapping[int, list[float]]) -> None:
    """A table of machines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 0.4 * len(means)))
    axes = figure.subplots()
    axes.axis("off")
    cells = [[str(machine), *(f"{mean:.1%}" for mean in row)] for machine, row in means.items()]
    axes.table(cells, colLabels=["machine", *names], loc="center")
    figure.savefig(path)
