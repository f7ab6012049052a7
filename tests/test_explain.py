"""The story of a job, sentence by sentence."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime

import pytest

from headgate.core.alerts import Alert, AlertKind
from headgate.core.hosts import HostType
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, Outcome, Snapshot
from headgate.errors import InputError
from headgate.explain import as_json, as_text, story
from headgate.journal import MemoryJournal
from headgate.ports import Effect, JobRecord, RoundRecord

MET = JobRecord(
    utility=90.0,
    worth=90.0,
    latency_s=0.048,
    juice=1.0,
    arrival_rows_s=1010.0,
    lanes={"parse": 1, "join": 2},
    pace_s=0.0,
    intent="60 ms",
    latency_intent_s=0.06,
    met=True,
)
MISSED = dataclasses.replace(MET, utility=13.1, latency_s=0.412, met=False)
OTHER = JobRecord(utility=10.0, worth=10.0, lanes={"rank": 5}, pace_s=0.0)

GIVE = Action(
    ActionKind.RECONFIGURE,
    "page-load",
    {"page-load": JobAllocation({"parse": 1, "join": 5}, 0.0)},
    Cause("join was the bottleneck (busy 0.93 of the time)", {"busy": 0.93}),
)


def write(
    journal: MemoryJournal, at_s: float, job: JobRecord, action: Action | None = None, advice: tuple[Alert, ...] = ()
) -> int:
    summary = RoundRecord(at_s, "not converged", 311.0, 410.0, {"page-load": job, "topk": OTHER}, "", advice)
    return journal.record(summary, Snapshot(at_s, {}, {}, ()), b"{}", action) or 0


def told(journal: MemoryJournal, job: str = "page-load") -> list[str]:
    return as_text(story(journal, job), journal.about()).splitlines()


def of(*records: JobRecord) -> MemoryJournal:
    journal = MemoryJournal()
    for number, record in enumerate(records):
        write(journal, 10.0 * number, record)
    return journal


def acted(action: Action, outcome: Outcome | None = None, job: JobRecord = MET) -> MemoryJournal:
    journal = MemoryJournal()
    action_id = write(journal, 10, job, action)
    if outcome is not None:
        journal.outcome(action_id, outcome)
    return journal


@pytest.fixture
def helped() -> MemoryJournal:
    journal = MemoryJournal()
    write(journal, 890, MET)
    write(journal, 900, MISSED)
    action_id = write(journal, 910, MISSED, GIVE)
    journal.outcome(action_id, Outcome(True))
    write(journal, 950, dataclasses.replace(MET, lanes={"parse": 1, "join": 5}))
    write(journal, 960, dataclasses.replace(MET, lanes={"parse": 1, "join": 5}))
    journal.effect(action_id, Effect(960, 311.0, 388.0, 13.1, 90.0, "kept"))
    return journal


def test_tells_measurement_action_and_effect(helped: MemoryJournal) -> None:
    assert told(helped) == [
        "0:15:00  latency passed 60 ms (now 412 ms), utility 90 -> 13.1",
        "0:15:10  join was the bottleneck (busy 0.93 of the time): gave join 3 more lanes (2 -> 5)",
        "0:15:50  latency is back within 60 ms (now 48 ms), utility 13.1 -> 90",
        "0:16:00  latency 48 ms, utility 13.1 -> 90; total 311 -> 388. Kept.",
    ]


def test_counts_from_the_noted_start_of_the_run(helped: MemoryJournal) -> None:
    helped.set_about("start_s", "900")
    assert told(helped)[0].startswith("0:00:00  latency passed")


def test_shows_clock_time_for_a_run_by_the_clock(helped: MemoryJournal) -> None:
    text = as_text(story(helped, "page-load"), {"clock": "wall"}, UTC)
    assert text.splitlines()[0] == "00:15:00  latency passed 60 ms (now 412 ms), utility 90 -> 13.1"


def test_names_the_days_of_a_story_that_is_longer_than_one() -> None:
    evening_s = datetime(2025, 3, 1, 23, 59, 55, tzinfo=UTC).timestamp()
    journal = MemoryJournal()
    for number, record in enumerate((MET, MISSED, MET)):
        write(journal, evening_s + 10 * (number - 1), record)
    lines = as_text(story(journal, "page-load"), {"clock": "wall"}, UTC).splitlines()
    assert [line[:10] for line in lines] == ["2025-03-01", "23:59:55  ", "2025-03-02", "00:00:05  "]


def test_machines_get_figures_with_every_line(helped: MemoryJournal) -> None:
    measured, action, _, effect = json.loads(as_json(story(helped, "page-load")))
    assert measured["at_s"] == 900
    assert measured["facts"]["latency_s"] == 0.412
    assert action["facts"] == {
        "what": "action",
        "action": 1,
        "kind": "reconfigure",
        "busy": 0.93,
        "join.lanes": 5,
        "join.lanes_before": 2,
    }
    assert effect["facts"]["score_after"] == 388
    assert effect["text"].endswith("Kept.")


def test_says_nothing_about_a_job_to_which_nothing_happened() -> None:
    assert story(of(MET, MET, MET), "page-load") == []


def test_tells_an_intent_that_was_missed_from_the_start() -> None:
    assert told(of(MISSED, MISSED)) == [
        "0:00:00  missed its intent from the start (latency 412 ms instead of 60 ms), utility 13.1"
    ]


def test_a_round_without_measurements_is_no_change() -> None:
    unknown = dataclasses.replace(MET, utility=None, latency_s=None, arrival_rows_s=None, met=None)
    assert story(of(MET, unknown, MET), "page-load") == []


def test_names_both_halves_of_an_intent() -> None:
    hybrid = dataclasses.replace(MET, juice_intent=0.95)
    starved = dataclasses.replace(hybrid, latency_s=2.8, juice=0.8125, utility=41.0, met=False)
    assert told(of(hybrid, starved, hybrid)) == [
        "0:00:10  latency passed 60 ms (now 2.8 s) and juice fell below 0.95 (now 0.812), utility 90 -> 41",
        "0:00:20  latency is back within 60 ms (now 48 ms) and juice is back at or above 0.95 (now 1), utility 41 -> 90",
    ]


def test_does_not_round_a_miss_away() -> None:
    close = dataclasses.replace(MET, latency_s=0.060001, utility=89.99, met=False)
    assert told(of(MET, close)) == ["0:00:10  latency passed 60 ms (now just above it), utility 90"]


def test_tells_what_it_can_without_thresholds() -> None:
    vague = dataclasses.replace(MET, latency_intent_s=None)
    assert told(of(vague, dataclasses.replace(vague, met=False, utility=50.0), vague)) == [
        "0:00:10  missed its intent (60 ms), utility 90 -> 50",
        "0:00:20  met its intent again (60 ms), utility 50 -> 90",
    ]


def test_tells_a_changed_intent_and_worth() -> None:
    assert told(of(MET, dataclasses.replace(MET, intent="2 s", worth=35.0, utility=35.0))) == [
        "0:00:10  intent changed from 60 ms to 2 s; worth changed from 90 to 35"
    ]


def with_rates(*rates_rows_s: float) -> MemoryJournal:
    """A rate per minute."""
    journal = MemoryJournal()
    for minute, rate in enumerate(rates_rows_s):
        write(journal, 60.0 * minute, dataclasses.replace(MET, arrival_rows_s=rate))
    return journal


@pytest.mark.parametrize(
    ("rates_rows_s", "sentences"),
    [
        ((1010, 3040, 3040, 3040), ["0:01:00  input rose from 1,010 to 3,040 rows/s"]),
        ((1010, 3040, 3040, 1010, 1010, 1010), []),
        ((3040, 3040, 1010, 1010, 1010), ["0:02:00  input fell from 3,040 to 1,010 rows/s"]),
        ((1000, 1240, 1240, 1240), []),
        ((1000, 1500, 2000, 2500, 3000, 3000, 3000), ["0:04:00  input rose from 1,000 to 3,000 rows/s"]),
        ((1000, 2000, 1000, 2000, 1000), []),
        ((1000, 1200, 1400, 1400, 1450, 1400), ["0:02:00  input rose from 1,000 to 1,450 rows/s"]),
        ((2.5, 0, 0, 0), ["0:01:00  input stopped (it was 2.5 rows/s)"]),
        ((0, 0, 12, 12, 12), ["0:02:00  input began (12 rows/s)"]),
    ],
)
def test_tells_input_that_changed_for_good_as_of_when_it_did(
    rates_rows_s: tuple[float, ...], sentences: list[str]
) -> None:
    assert told(with_rates(*rates_rows_s)) == sentences


def test_tells_the_input_that_broke_an_intent_in_the_same_line() -> None:
    assert told(of(MET, dataclasses.replace(MISSED, arrival_rows_s=3040.0))) == [
        "0:00:10  input rose from 1,010 to 3,040 rows/s; latency passed 60 ms (now 412 ms), utility 90 -> 13.1"
    ]


def test_tells_an_action_that_failed() -> None:
    assert told(acted(GIVE, Outcome(False, "host-3 did not answer."))) == [
        "0:00:10  join was the bottleneck (busy 0.93 of the time): "
        "tried to give join 3 more lanes (2 -> 5), but that failed: host-3 did not answer"
    ]


def test_tells_an_action_whose_outcome_is_not_known() -> None:
    assert told(acted(GIVE)) == [
        "0:00:10  join was the bottleneck (busy 0.93 of the time): "
        "decided to give join 3 more lanes (2 -> 5); not confirmed yet"
    ]


def test_tells_what_was_taken_for_the_sake_of_another_job() -> None:
    reduce = Action(
        ActionKind.REDUCE,
        "page-load",
        {"topk": JobAllocation({"rank": 1}, 8.0)},
        Cause("hosts are congested and topk meets its intent."),
    )
    journal = acted(reduce, Outcome(True))
    write(journal, 60, MET)
    journal.effect(1, Effect(60, 311.0, 311.04, 13.1, 13.1, "skipped for 1 h"))
    assert told(journal, "topk") == [
        "0:00:10  for page-load: hosts are congested and topk meets its intent: "
        "took 4 lanes from rank (5 -> 1) and let its epochs start every 8 s (before: back to back)",
        "0:01:00  utility 10; total 311. Skipped for 1 h.",
    ]
    assert told(journal) == [
        "0:00:10  hosts are congested and topk meets its intent: changed topk",
        "0:01:00  latency 48 ms, utility 13.1; total 311. Skipped for 1 h.",
    ]


def test_tells_a_revert_of_the_whole_cluster() -> None:
    changes = {"page-load": JobAllocation({"parse": 2, "join": 1}, 0.0), "topk": JobAllocation({"rank": 5}, 0.0)}
    revert = Action(ActionKind.REVERT, None, changes, Cause("utility fell to 280: back to the best, 388"))
    journal = acted(revert, Outcome(True))
    assert told(journal) == [
        "0:00:10  utility fell to 280: back to the best, 388; "
        "gave parse 1 more lane (1 -> 2) and took 1 lane from join (2 -> 1)"
    ]
    assert told(journal, "topk") == []


def test_tells_actions_of_rounds_that_were_deleted() -> None:
    journal = acted(GIVE, Outcome(True))
    journal.purge(1000)
    assert told(journal) == [
        "0:00:10  join was the bottleneck (busy 0.93 of the time): set parse to 1 lane and set join to 5 lanes"
    ]


def test_tells_advice_about_the_job_once_a_day() -> None:
    journal = MemoryJournal()
    for at_s, minutes in ((0, 60), (10, 59), (20, 58)):
        skipped = Alert(f"skipped for another {minutes} min", job="page-load")
        write(journal, at_s, MET, advice=(skipped, Alert("gained too little", job="page-load-2"), Alert("add hosts")))
    write(journal, 30, MET)
    for at_s in (40, 86_390, 86_400, 86_410):
        write(journal, at_s, MET, advice=(Alert("skipped for another 50 min", job="page-load"),))
    assert told(journal) == [
        "0:00:00  page-load: skipped for another 60 min",
        "24:00:00  page-load: skipped for another 50 min",
    ]


def test_advice_with_other_figures_is_the_same_advice() -> None:
    journal = MemoryJournal()
    for at_s, rest in ((0, "utility 0.5 of 90"), (10, "utility 9.99e-05 of 90"), (20, "utility less than 0.01 of 90")):
        text = f"{at_s} reconfigurations; {rest}"
        write(journal, at_s, MET, advice=(Alert(text, job="page-load", kind=AlertKind.LITTLE_GAIN),))
    assert told(journal) == ["0:00:00  page-load: 0 reconfigurations; utility 0.5 of 90"]


def test_advice_about_two_operators_of_a_job_is_told_twice() -> None:
    journal, kind = MemoryJournal(), AlertKind.HOT_SLICE
    write(journal, 0, MET, advice=tuple(Alert("one slice is hot", name, "page-load", kind) for name in ("join", "sum")))
    assert told(journal) == ["0:00:00  page-load: one slice is hot"] * 2


def test_says_why_a_loss_was_kept() -> None:
    journal = acted(GIVE, Outcome(True))
    write(journal, 60, MET)
    journal.effect(1, Effect(60, 311.0, 290.0, 13.1, 90.0, "kept, although it made topk miss the intent"))
    assert told(journal)[-1].endswith("total 311 -> 290. Kept, although it made topk miss the intent.")


def test_suggests_the_job_that_was_meant() -> None:
    with pytest.raises(
        InputError, match=r'^there is no job or leased host "page-laod" in the journal\. Did you mean "page-load"\?$'
    ):
        story(of(MET), "page-laod")


def test_lists_the_jobs_if_none_is_close() -> None:
    with pytest.raises(
        InputError, match=r'^there is no job or leased host "x" in the journal\. The journal has page-load, topk\.$'
    ):
        story(of(MET), "x")


# -- hosts

KIND = HostType("local", cores=2, memory_mb=1024, price=1.5, btu_s=600)


@pytest.fixture
def hosted() -> MemoryJournal:
    journal = MemoryJournal()
    write(journal, 0, MISSED)
    cause = Cause("page-load cannot do with the hosts there are (3.2 slots needed, 2 there)", {"slots": 2})
    leased = journal.intend(10, Action(ActionKind.LEASE, "page-load", {}, cause, host="leased-2", host_type=KIND))
    journal.outcome(leased, Outcome(True))
    write(journal, 90, MET)
    journal.effect(leased, Effect(90, 23.1, 100.0, 13.1, 90.0, "ready after 21 s"))
    why = Cause("the others have room for all that runs")
    released = journal.intend(570, Action(ActionKind.RELEASE, None, {}, why, host="leased-2"))
    journal.outcome(released, Outcome(True))
    verdict = "gone after 9.5 min: 1 BTUs paid, 1.5 in money, 30 s of it wasted"
    journal.effect(released, Effect(580, 100.0, 100.0, None, None, verdict))
    return journal


def test_story_of_a_host_says_why_it_came_and_went_and_what_it_cost(hosted: MemoryJournal) -> None:
    lacking = "page-load cannot do with the hosts there are (3.2 slots needed, 2 there)"
    assert told(hosted, "leased-2") == [
        f"0:00:10  for page-load: {lacking}: leased leased-2 for 1.5 per 10 min",
        "0:01:30  total 23.1 -> 100. Ready after 21 s.",
        "0:09:30  the others have room for all that runs: released leased-2",
        "0:09:40  total 100. Gone after 9.5 min: 1 BTUs paid, 1.5 in money, 30 s of it wasted.",
    ]


def test_story_of_a_job_has_the_hosts_that_were_leased_for_it(hosted: MemoryJournal) -> None:
    lacking = "page-load cannot do with the hosts there are (3.2 slots needed, 2 there)"
    lines = told(hosted)
    assert f"0:00:10  {lacking}: leased leased-2 for 1.5 per 10 min" in lines
    assert "0:01:30  latency 48 ms, utility 13.1 -> 90; total 23.1 -> 100. Ready after 21 s." in lines
    assert not any("leased-2" in line for line in told(hosted, "topk"))


def test_host_that_was_not_leased_is_refused_with_the_hosts_that_were(hosted: MemoryJournal) -> None:
    with pytest.raises(InputError, match=r"The journal has leased-2, page-load, topk\.$"):
        story(hosted, "zzz")
    with pytest.raises(InputError, match=r'Did you mean "leased-2"\?$'):
        story(hosted, "leased-3")


def test_lease_has_its_figures_and_says_if_it_was_refused(hosted: MemoryJournal) -> None:
    (facts,) = [line.facts for line in story(hosted, "leased-2") if line.facts.get("kind") == "lease"]
    assert facts == {
        "what": "action", "action": 1, "kind": "lease", "slots": 2, "host": "leased-2", "price": 1.5, "btu_s": 600,
    }  # fmt: skip
    refused = hosted.intend(600, Action(ActionKind.LEASE, None, {}, Cause("why"), host="leased-3", host_type=KIND))
    hosted.outcome(refused, Outcome(False, "no address is left"))
    assert told(hosted, "leased-3") == [
        "0:10:00  why: tried to lease leased-3 for 1.5 per 10 min, but that failed: no address is left"
    ]


def test_lag_that_stays_unknown_is_told_once_and_again_when_it_is_known():
    unknown = dataclasses.replace(MET, juice=None)
    lines = told(of(MET, *[unknown] * 10, MET))
    assert [line for line in lines if "lag" in line] == [
        "0:01:10  lag unknown: a source does not say how many rows wait, so juice is unknown and not judged",
        "0:01:50  lag is known again (juice 1)",
    ]
    assert not [line for line in told(of(*[unknown] * 3, *[MET] * 3)) if "lag" in line]


@pytest.mark.parametrize(
    ("before", "share", "done"),
    [(None, 4, "raised its share to 4"), (4, None, "returned its share to the declared share")],
)
def test_tells_a_share_that_was_raised_and_returned(before: int | None, share: int | None, done: str) -> None:
    change = JobAllocation({"parse": 1, "join": 2}, 0.0, share=share)
    action = Action(ActionKind.RECONFIGURE, "page-load", {"page-load": change}, Cause("slots are short"))
    had = dataclasses.replace(MET, raised_share=before)
    assert told(acted(action, Outcome(True), had)) == [f"0:00:10  slots are short: {done}"]
