"""Timers of the keys of one slice, by minute, with an index of minutes by day: the cost of a timer does not depend on their number."""

from __future__ import annotations

from headgate.state.fields import ManyByName, Part, Rows

TIMERS = b"\xff\xff\xff\xfftimers"
"""Prefix of the rows of timers. A row of a key begins with the length of the key, and no key is as long as this prefix says."""
_MINUTE_MS, _DAY = 60_000, 1440
_TIMERS_A_ROW = 64


class Timers:
    """The timers of the keys of one slice."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._index = Part(rows, TIMERS)
        """Days that have timers, and for each day the minutes that have timers."""
        self._minutes: dict[int, ManyByName] = {}

    def set(self, key: bytes, at_ms: int) -> None:
        """Set a timer; a timer that is set twice fires once."""
        minute = at_ms // _MINUTE_MS
        timers = self._of(minute)
        timers.set(at_ms.to_bytes(8, "big", signed=True) + key, None)
        if len(timers) == 1:
            self._enter(b"", minute // _DAY)
            self._enter(b"%d" % (minute // _DAY), minute)

    def due(self, watermark_ms: int) -> list[tuple[int, bytes]]:
        """Remove and return the timers that the watermark has passed, in order."""
        last = watermark_ms // _MINUTE_MS
        days = [day for day in self._entries(b"") if day <= last // _DAY]
        minutes = [minute for day in days for minute in self._entries(b"%d" % day) if minute <= last]
        return [timer for minute in minutes for timer in self._taken(minute, watermark_ms)]

    def all(self) -> list[tuple[int, bytes]]:
        """Every timer with its key."""
        days = self._entries(b"")
        return [timer for day in days for minute in self._entries(b"%d" % day) for timer in self._in(minute)]

    def next_ms(self) -> int | None:
        """The time of the next timer, in milliseconds; None without timers."""
        for day in self._entries(b""):
            for minute in self._entries(b"%d" % day):
                return min(at_ms for at_ms, _ in self._in(minute))
        return None

    def flush(self) -> None:
        self._index.flush()
        for timers in self._minutes.values():
            timers.flush()

    def _of(self, minute: int) -> ManyByName:
        if minute not in self._minutes:
            self._minutes[minute] = ManyByName(Part(self._rows, TIMERS + b"%d/" % minute), _TIMERS_A_ROW)
        return self._minutes[minute]

    def _in(self, minute: int) -> list[tuple[int, bytes]]:
        return [(int.from_bytes(name[:8], "big", signed=True), name[8:]) for name, _ in self._of(minute).items()]

    def _taken(self, minute: int, watermark_ms: int) -> list[tuple[int, bytes]]:
        found = sorted(timer for timer in self._in(minute) if timer[0] <= watermark_ms)
        timers = self._of(minute)
        if len(found) == len(timers):
            timers.clear()
            self._leave(minute)
        else:
            for at_ms, key in found:
                timers.remove(at_ms.to_bytes(8, "big", signed=True) + key)
        return found

    def _leave(self, minute: int) -> None:
        day = b"%d" % (minute // _DAY)
        left = [other for other in self._entries(day) if other != minute]
        self._index.put(day, left or None)
        if not left:
            days = [other for other in self._entries(b"") if other != minute // _DAY]
            self._index.put(b"", days or None)

    def _enter(self, row: bytes, number: int) -> None:
        entries = self._entries(row)
        if number not in entries:
            self._index.put(row, sorted([*entries, number]))

    def _entries(self, row: bytes) -> list[int]:
        entries: list[int] = self._index.load(row, list)
        return entries
