"""A host that is short of memory: the symptom, the diagnosis, and smaller epochs or fewer lanes as its remedies."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.model import HostReading
from headgate.health.examining import History, examine
from headgate.health.policies import Provision
from headgate.health.records import DiagnosisKind, LogEntry, ObservedJob, SymptomKind
from headgate.health.resolving import ResolverName
from headgate.journal import MemoryJournal
from headgate.loads import Steps
from headgate.scheduler.policies import policy_named
from headgate.sim.run import engine_for
from headgate.sim.spec import HostSpec, JobSpec, OperatorSpec, Scenario

from .observed_jobs import Lanes, looked_at, observed, too_few


def with_memory(one: ObservedJob, *used: float | None) -> ObservedJob:
    hosts = (HostReading(f"host-{number}", 8, 2.0, share) for number, share in enumerate(used, 1))
    return dataclasses.replace(one, hosts=tuple(hosts))


def in_epochs(lanes: Lanes) -> Lanes:
    """The same on an engine with epochs: input that is held back is late."""
    return dataclasses.replace(
        lanes, queued=None, held=None, job_held=None, epochs_s=1.0, arrived=sum(lanes.rows) * 1.5, source_busy=0.1
    )


TRIED = LogEntry(900.0, "job", "provision", DiagnosisKind.MEMORY, "work", ResolverName.SMALLER_EPOCHS, useful=False)


def test_memory_that_runs_short_is_diagnosed_with_the_hosts_that_it_is_about() -> None:
    _, symptoms, diagnoses = looked_at(with_memory(observed(too_few()), 0.95, 0.5, 0.92, 0.5))
    (short,) = [one for one in symptoms if one.kind == SymptomKind.SHORT_OF_MEMORY]
    assert short.text == "host-1, host-3 use up to 95% of the memory"
    assert [one.value for one in short.measurements] == [0.95, 0.92]
    assert [one.kind for one in diagnoses] == [DiagnosisKind.MEMORY]
    assert diagnoses[0].text.endswith("host-1, host-3 use up to 95% of the memory: memory shortage")


@pytest.mark.parametrize("used", [(0.89,) * 4, (None,) * 4])
def test_enough_or_unknown_memory_is_no_symptom(used: tuple[float | None, ...]) -> None:
    assert [one.kind for one in looked_at(with_memory(observed(too_few()), *used))[2]] == [DiagnosisKind.TOO_FEW_LANES]


def test_full_host_without_lanes_of_the_job_is_no_symptom() -> None:
    elsewhere = dataclasses.replace(too_few(2), hosts=("host-1", "host-1"))
    found = looked_at(with_memory(observed(elsewhere), 0.5, 0.99, 0.5, 0.5))[1]
    assert SymptomKind.SHORT_OF_MEMORY not in {one.kind for one in found}


def test_full_host_of_a_healthy_job_is_no_reason_to_act() -> None:
    assert looked_at(with_memory(observed(Lanes()), 0.99, 0.99, 0.99, 0.99))[2] == []


def test_epochs_become_smaller_first() -> None:
    found = examine(History(), Provision(), with_memory(observed(in_epochs(too_few())), *(0.95,) * 4))
    assert found.remedy is not None and found.remedy.resolver == ResolverName.SMALLER_EPOCHS
    assert found.remedy.allocation.read_limit == 400
    assert found.remedy.what == "epochs of 800 → 400 rows"


def test_lanes_become_fewer_where_smaller_epochs_did_not_help_or_there_are_none() -> None:
    for lanes, log in ((in_epochs(too_few()), (TRIED,)), (too_few(), ())):
        found = examine(History(log), Provision(), with_memory(observed(lanes), *(0.95,) * 4))
        assert found.remedy is not None and found.remedy.resolver == ResolverName.FEWER_LANES
        assert found.remedy.allocation.lanes["work"] == 4
        assert found.remedy.what == "work 8 → 4 lanes"


def test_simulated_job_with_too_large_epochs_gets_smaller_ones_until_its_memory_suffices() -> None:
    """A row takes 1 MB: epochs full of the backlog of a peak take more than all memory, and lanes slow down to a tenth."""
    operators = (
        OperatorSpec("in", cost_s=0.00001, lanes=2),
        OperatorSpec("work", ("in",), cost_s=0.002, lanes=4, row_kb=1024.0),
    )
    load = Steps([(0.0, 4000.0), (60.0, 500.0)])
    job = JobSpec("job", operators, Intent(latency="8s", worth=10), {"in": load}, pace_s=0.5)
    scenario = Scenario("memory", "", "", "epochs", 1800.0, 0.0, (HostSpec("host-1", 4, 4, 8),), (job,))
    engine, journal, settings = engine_for(scenario, 1), MemoryJournal(), Settings()
    controller = Controller(engine, policy_named("headgate", settings), journal, settings)
    controller.run(engine, 1200)
    first = journal.actions()[0].action
    assert first.remedy == ResolverName.SMALLER_EPOCHS
    assert first.cause.because[0].facts["diagnosis"] == DiagnosisKind.MEMORY
    view, _ = controller.round()
    assert view.jobs["job"].met
    assert [(host.memory_used or 1.0) < settings.memory_short for host in view.hosts] == [True]
