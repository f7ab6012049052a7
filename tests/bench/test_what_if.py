"""The bars of `headgate bench what-if`: predictions have to be near, and nearer than predicting that nothing changes."""

from __future__ import annotations

from headgate.bench.what_if import Compared, bars


def compared(before: float, predicted: float, measured: float) -> list[Compared]:
    return [Compared("a change", hold, before, predicted, measured) for hold in (True, False)]


def held(*pairs: list[Compared]) -> list[bool]:
    return [bar.holds for bar in bars([one for pair in pairs for one in pair])]


def test_near_predictions_of_changes_that_matter_hold() -> None:
    assert held(compared(1.0, 0.55, 0.5), compared(0.4, 0.95, 1.0)) == [True, True, True, True]


def test_changes_that_change_nothing_are_no_proof() -> None:
    assert held(compared(1.0, 1.0, 1.0), compared(1.0, 0.99, 0.98)) == [True, True, False, False]


def test_predicting_no_change_is_not_enough() -> None:
    assert held(
        compared(1.0, 1.0, 0.85), compared(1.0, 1.0, 0.85), compared(1.0, 1.0, 1.0), compared(1.0, 1.0, 1.0)
    ) == [
        True,
        True,
        True,
        False,
    ]
