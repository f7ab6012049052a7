"""Words for the figures and lists of a story, and for the two goals of an intent: latency and juice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.core.quantities import show_seconds
from headgate.ports import JobRecord


def and_list(parts: Sequence[str]) -> str:
    """The parts as a list in a sentence: "a, b and c"."""
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def bracketed(text: str) -> str:
    """The text in brackets; empty if the text is empty."""
    return f" ({text})" if text else ""


def after_colon(text: str) -> str:
    """A colon and the text without its full stop; empty if the text is empty."""
    return f": {text.rstrip('.')}" if text else ""


def capitalised(text: str) -> str:
    """The text with a capital first letter and without its full stop."""
    return text[:1].upper() + text[1:].rstrip(".")


def lanes_text(number: int, more: str = "") -> str:
    """A number of lanes in words, such as `2 lanes`."""
    return f"{number} {more}lane{'' if number == 1 else 's'}"


def pace_text(pace_s: float) -> str:
    """How often epochs start, in words."""
    return "back to back" if pace_s == 0 else f"every {show_seconds(pace_s)}"


def points(utility: float) -> str:
    """The utility with one decimal, or with none if that decimal is zero."""
    return f"{utility:,.1f}".removesuffix(".0")


def share_text(value: float) -> str:
    """A share with up to three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def rate_text(rows_s: float, unit: str = " rows/s") -> str:
    """The rate as text, in rows per second."""
    return (f"{rows_s:,.0f}" if rows_s >= 10 else f"{rows_s:.2g}") + unit


def utility_change(words: str, before: float | None, after: float | None) -> str:
    """The utility before and after a change; only the new utility if both look the same, empty if the new utility is unknown."""
    if after is None:
        return ""
    if before is None or points(before) == points(after):
        return f"{words}{points(after)}"
    return f"{words}{points(before)} -> {points(after)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A measured goal of an intent, latency or juice, and the words that describe the goal."""

    name: str
    value: float
    wanted: float
    met: bool
    show: Callable[[float], str]
    passed: str
    beyond: str
    within: str

    def now(self) -> str:
        """The measured value; in words if rounding would make a missed value look equal to the goal."""
        alike = not self.met and self.show(self.value) == self.show(self.wanted)
        return f"just {self.beyond} it" if alike else self.show(self.value)


def goals(record: JobRecord) -> list[Goal]:
    """The measured goals of the intent: latency, juice, both or none."""
    goals = []
    value, wanted = record.latency_s, record.latency_intent_s
    if value is not None and wanted is not None:
        goals.append(Goal("latency", value, wanted, value <= wanted, show_seconds, "passed", "above", "within"))
    value, wanted = record.juice, record.juice_intent
    if value is not None and wanted is not None:
        goals.append(Goal("juice", value, wanted, value >= wanted, share_text, "fell below", "below", "at or above"))
    return goals
