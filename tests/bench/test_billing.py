"""What the benchmark of provisioners counts: rows in time, and how long delays last."""

from __future__ import annotations

from headgate.bench.billing import JOB, LATENCY_S, SHORT, BillingCourse
from headgate.core.hosts import Host
from tests.core.builders import Seen, view


class Hosts:
    """A landlord with one host."""

    def hosts(self) -> dict[str, Host]:
        return {"leased-1": None}  # type: ignore[dict-item]


def test_rows_are_counted_by_how_long_they_took_and_delays_until_they_end() -> None:
    course = BillingCourse()
    for number, late_s in enumerate((0.5, 1.5, 3.0, 6.0, 0.5)):
        seen = Seen(JOB, latency_s=late_s * LATENCY_S, rows_s=1.0)
        course.note(view(600.0 + 10 * number, seen), Hosts())  # type: ignore[arg-type]
    assert [course.share(level) for level in ("real-time", "near-real-time", "relaxed")] == [0.4, 0.6, 0.8]
    assert course.delays_s == [30.0] and course.hosts == [1] * 5


def test_round_without_a_new_reading_counts_no_row() -> None:
    course = BillingCourse()
    course.note(view(600.0), Hosts())  # type: ignore[arg-type]
    assert course.rows == 0 and course.share("real-time") == 0.0


def test_load_is_low_then_high_then_low() -> None:
    assert [SHORT.load.rate_rows_s(at_s) for at_s in (1.0, SHORT.low_s + 1, SHORT.total_s - 1, SHORT.total_s + 1)] == [
        100,
        500,
        100,
        0,
    ]
    assert SHORT.rows == 12_000
