"""Under the scheduler: utility picks the job, the diagnosis picks the remedy."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.metrics import View, view_of
from headgate.core.model import Action, ActionKind, JobReading, Snapshot
from headgate.core.windows import Sample, Windows
from headgate.scheduler import events, rules
from headgate.scheduler.memory import Decision, State
from tests.health.observed_jobs import HOSTS, Lanes, one_hot, one_slow, too_few

INTENT = Intent(latency="1s", worth=10)


def in_epochs(lanes: Lanes) -> Lanes:
    """The same on an engine that works in epochs, whose source is no bottleneck."""
    return dataclasses.replace(
        lanes, queued=None, held=None, job_held=None, epochs_s=0.9, source_busy=0.05, intent=INTENT
    )  # fmt: skip


@dataclasses.dataclass
class Watched:
    """One job under the scheduler, which is as slow as a test says."""

    settings: Settings = dataclasses.field(default_factory=Settings)
    at_s: float = 1000.0
    state: State = dataclasses.field(default_factory=State)
    version: int = 1
    allocation: object = None

    def see(self, lanes: Lanes, latency_s: float) -> Decision:
        self.at_s += 10
        samples = tuple(Sample(self.at_s - 60 + 10 * step, self._reading(lanes, step, latency_s)) for step in range(7))
        given = lanes.allocation if self.allocation is None else self.allocation
        now = Snapshot(self.at_s, {"job": samples[-1].reading}, {"job": given}, HOSTS)  # type: ignore[dict-item]
        view: View = view_of(Windows({"job": samples}), now, {"job": lanes.job}, {}, self.settings)
        self.state, decision = rules.step(self.state, view, self.settings)
        if decision.action is not None:
            self.version += 1
        return decision

    def _reading(self, lanes: Lanes, step: int, latency_s: float):
        reading = lanes.reading(1000 + 10 * step, self.version)
        return dataclasses.replace(reading, latency=Latency.weighted([(latency_s, 1000.0)]))

    def until_action(self, lanes: Lanes, latency_s: float) -> Action:
        for _ in range(60):
            decision = self.see(lanes, latency_s)
            if decision.action is not None:
                return decision.action
        raise AssertionError("nothing was done")


def first(lanes: Lanes, settings: Settings | None = None) -> Action:
    watched = Watched(settings or Settings())
    return watched.until_action(in_epochs(lanes), 2.0)


def test_skew_gets_slices_re_assigned() -> None:
    action = first(one_hot(4, 3.0))
    assert (action.kind, action.remedy) == (ActionKind.RECONFIGURE, "re-assign slices")
    assert action.changes["job"].lanes == {"in": 1, "work": 4}
    assert action.changes["job"].slices["work"] != one_hot(4, 3.0).places["work"]
    assert action.cause.text.startswith("latency 2 s misses 1 s; work was the bottleneck")
    assert action.cause.text.endswith("skewed keys")


def test_slow_host_gets_lanes_moved() -> None:
    action = first(one_slow(4, 0.5))
    assert action.remedy == "move lanes"
    assert action.changes["job"].avoided == ("host-4",)
    assert "slow on host-4" in action.cause.text


def test_too_few_lanes_get_lanes() -> None:
    action = first(too_few(4))
    assert action.changes["job"].lanes["work"] > 4
    assert "its 4 lanes evenly loaded: too few lanes" in action.cause.text


def test_only_lanes_are_given_if_the_setting_says_so() -> None:
    action = first(one_slow(4, 0.5), Settings(remedies="lanes"))
    assert action.changes["job"].lanes["work"] > 4
    assert action.changes["job"].avoided == ()


def test_engine_that_knows_nothing_of_single_lanes_gives_lanes_as_before() -> None:
    blind = in_epochs(one_slow(4, 0.5))

    class Blind(Lanes):
        def reading(self, at_s: float, version: int = 1):
            found = super().reading(at_s, version)
            bare = {n: dataclasses.replace(o, lane_rows=None, hosts=None) for n, o in found.operators.items()}
            return dataclasses.replace(found, operators=bare)

    action = Watched().until_action(Blind(**{f.name: getattr(blind, f.name) for f in dataclasses.fields(blind)}), 2.0)
    assert action.remedy == ""
    assert action.changes["job"].lanes["work"] > 4


def test_remedy_that_gained_too_little_gives_way_to_lanes_and_the_job_is_not_set_aside() -> None:
    watched, slow = Watched(), in_epochs(one_slow(4, 0.5))
    assert watched.until_action(slow, 2.0).remedy == "move lanes"
    action = watched.until_action(slow, 2.0)
    assert action.changes["job"].lanes["work"] > 4
    assert [(entry.resolver, entry.useful) for entry in watched.state.trials.log] == [("move lanes", False)]
    assert not watched.state.skipped


def test_trouble_that_shows_only_after_lanes_did_not_help_has_its_own_remedy() -> None:
    watched = Watched()
    assert watched.until_action(in_epochs(too_few(4)), 2.0).changes["job"].lanes["work"] > 4
    assert watched.until_action(in_epochs(one_hot(4, 3.0)), 2.0).remedy == "re-assign slices"
    assert not watched.state.skipped


class Begins(Lanes):
    """Tells nothing of single lanes and slices before the first rows."""

    def reading(self, at_s: float, version: int = 1) -> JobReading:
        found = super().reading(at_s, version)
        if at_s > 1000:
            return found
        bare = {n: dataclasses.replace(o, lane_rows=None, slice_rows=None) for n, o in found.operators.items()}
        return dataclasses.replace(found, operators=bare)


def test_lanes_that_have_just_begun_are_diagnosed_all_the_same() -> None:
    hot = in_epochs(one_hot(4, 3.0))
    begins = Begins(**{f.name: getattr(hot, f.name) for f in dataclasses.fields(hot)})
    assert Watched().until_action(begins, 2.0).remedy == "re-assign slices"


def test_remedy_that_helped_is_remembered_as_useful() -> None:
    watched, slow = Watched(), in_epochs(one_slow(4, 0.5))
    watched.until_action(slow, 2.0)
    for _ in range(20):
        decision = watched.see(in_epochs(Lanes((100.0,) * 4, (0.4,) * 4)), 0.5)
        if decision.verdicts:
            break
    assert decision.verdicts and decision.verdicts[0].text == "kept"
    assert [(entry.diagnosis, entry.useful) for entry in watched.state.trials.log] == [("slow host", True)]


def test_remedy_that_the_engine_refused_gives_way_at_once() -> None:
    watched, slow = Watched(), in_epochs(one_slow(4, 0.5))
    action = watched.until_action(slow, 2.0)
    watched.state = events.withdrawn(watched.state, action, watched.at_s, watched.settings)
    assert watched.state.trials.search is None and not watched.state.refused
    assert watched.until_action(slow, 2.0).changes["job"].lanes["work"] > 4


def test_remedy_that_was_only_observed_is_not_held_against_it() -> None:
    watched, slow = Watched(), in_epochs(one_slow(4, 0.5))
    action = watched.until_action(slow, 2.0)
    watched.state = events.withdrawn(watched.state, action, watched.at_s, watched.settings, refused=False)
    assert watched.state.trials.log == ()
    assert watched.state.refused["job"].until_s == pytest.approx(watched.at_s + watched.settings.retry_s)


def test_state_with_a_remedy_on_trial_can_be_written_down_and_read_back() -> None:
    watched = Watched()
    watched.until_action(in_epochs(one_slow(4, 0.5)), 2.0)
    assert watched.state.trials.search is not None and watched.state.trials.search.entry is not None
    assert msgspec.json.decode(msgspec.json.encode(watched.state), type=State) == watched.state
