"""A story as text for people, or as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo

import msgspec

from headgate.explain.lines import Line

START_KEY, CLOCK_KEY, WALL_CLOCK = "start_s", "clock", "wall"
"""Keys and a value of the journal's notes that determine how the times of a run are shown."""


def as_json(lines: Iterable[Line]) -> str:
    """The lines as a JSON list of objects with `at_s`, `text` and `facts`."""
    return msgspec.json.format(msgspec.json.encode(list(lines)), indent=2).decode()


def as_text(lines: Iterable[Line], about: Mapping[str, str], zone: tzinfo | None = None) -> str:
    """The lines as text: with clock time for a run by the wall clock, with the time since the start for a simulated run.

    >>> as_text([Line(900.0, "latency passed 60 ms (now 412 ms), utility 90 -> 13.1")], {})
    '0:15:00  latency passed 60 ms (now 412 ms), utility 90 -> 13.1'
    """
    if about.get(CLOCK_KEY) == WALL_CLOCK:
        return "\n".join(_by_the_clock(list(lines), zone))
    start_s = float(about.get(START_KEY, 0.0))
    return "\n".join(f"{_since_start(line.at_s - start_s)}  {line.text}" for line in lines)


def _by_the_clock(lines: Sequence[Line], zone: tzinfo | None) -> Iterator[str]:
    """The lines with clock time; a story of several days names each day once, above the lines of that day."""
    times = [datetime.fromtimestamp(line.at_s, zone) for line in lines]
    several_days = len({time.date() for time in times}) > 1
    day = None
    for time, line in zip(times, lines, strict=True):
        if several_days and time.date() != day:
            day = time.date()
            yield day.isoformat()
        yield f"{time:%H:%M:%S}  {line.text}"


def _since_start(elapsed_s: float) -> str:
    minutes, seconds = divmod(round(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
