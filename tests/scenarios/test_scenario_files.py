"""A mistake in a scenario file is one sentence that names its place, its value and the way out."""

from __future__ import annotations

import pytest

from headgate.errors import InputError
from headgate.sim.run import run
from headgate.sim.scenario import read_scenario
from headgate.sim.simulate import Experiment

GOOD = """
title = "two jobs"
duration = "10m"
control_after = "1m"

[cluster]
hosts = 2
cores = 4

[topology.chain]
operators = [
  { name = "in", cost = "0.1ms" },
  { name = "work", cost = "0.5ms", wait = "1ms", lanes = 2 },
  { name = "out" },
]

[[job]]
name = "T#"
count = 2
topology = "chain"
intent = { latency = "100ms", worth = { each = [10, 20] } }
load = { pattern = "steady", rate = 500 }

[[event]]
at = "2m"
kind = "remove"
job = "T2"
"""


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def test_good_file_is_read_as_it_says(written):
    scenario = read_scenario(written(GOOD))
    assert [(job.name, job.intent.worth) for job in scenario.jobs] == [("T1", 10), ("T2", 20)]
    assert [operator.inputs for operator in scenario.jobs[0].operators] == [(), ("in",), ("work",)]
    found = run(scenario, "headgate", 0)
    assert found.final is not None and set(found.final.jobs) == {"T1"}


def test_scenario_of_threads_runs_in_epochs_with_longer_latencies_and_slots_for_tasks_that_wait(written):
    path = str(written(GOOD))
    given, scenario = read_scenario(written(GOOD)), Experiment(path, model="epochs").load()
    assert scenario.engine == "epochs"
    assert [job.intent.latency_s for job in scenario.jobs] == pytest.approx([5.0, 5.0])
    assert [job.intent.worth for job in scenario.jobs] == [job.intent.worth for job in given.jobs]
    assert [host.slots for host in scenario.hosts] == [16, 16]
    found = run(scenario, "headgate", 0)
    assert found.final is not None and found.final.jobs["T1"].met
    assert Experiment(path, model="continuous").load() == given


def test_scenario_of_another_model_is_refused_in_one_sentence(written):
    path = written(GOOD.replace('duration = "10m"', 'duration = "10m"\nengine = "epochs"'))
    with pytest.raises(InputError, match='mine has the model "epochs"; only "continuous" has another'):
        Experiment(str(path), model="continuous").load()


MISTAKES = [
    (
        'name = "work"',
        'name = "work", from = "inn"',
        'operator "work" reads from "inn", which does not exist. Did you mean "in"?',
    ),
    ('{ name = "in",', '{ name = "in", from = "out",', "operators form a cycle"),
    ('name = "work"', 'name = "work", from = 5', "from is 5; it must be the name of an operator"),
    ('name = "work"', "name = 5", "must be a table with a name"),
    ("rate = 500", "rate = -500", "rate is -500"),
    ("rate = 500", "rate = nan", "rate is nan"),
    ('pattern = "steady", rate = 500', 'pattern = "trace", file = "none.csv"', "none.csv"),
    ("lanes = 2", "lanes = 2.5", "lanes is 2.5; it must be a whole number"),
    ("lanes = 2", "lanes = 1000000000", "lanes is 1000000000; it must be a number of at least 1 and at most 10000"),
    ("hosts = 2", "hosts = 0", "hosts is 0"),
    ("count = 2", "count = 0", "count is 0"),
    ('topology = "chain"', 'topology = ["chain"]', "topology is ["),
    ('topology = "chain"\n', "", "topology is missing"),
    ('name = "T#"', 'name = ""', "a job's name is"),
    ('name = "T#"\n', "", "a job's name is missing"),
    ('latency = "100ms", ', "", "an intent needs a latency"),
    ("worth = { each = [10, 20] }", "worth = 0", "worth is 0"),
    ('control_after = "1m"', 'control_after = "1h"', "control_after is 1 h, but the run ends after 10 min"),
    ('job = "T2"', 'job = "T9"', 'job is "T9", which does not exist then.'),
    (
        'job = "T2"',
        'job = "T2"\n[[event]]\nat = "3m"\nkind = "remove"\njob = "T2"',
        'event 2: job is "T2", which does not exist then',
    ),
    ('at = "2m"\n', "", "at is missing"),
    ('at = "2m"', "at = -1", "at is -1"),
    ('kind = "remove"', 'kind = "slow-host"\nvalue = 0', "value is 0; it must be a number above 0"),
    ('kind = "remove"', 'kind = "slow-host"', "value is missing: slow-host needs one"),
    ('kind = "remove"', 'kind = "add"', "it adds no jobs"),
    ("[[event]]", "[[event]]\nhours = 3", 'there is no field "hours"'),
    ("[cluster]", '[sweep]\nfield = "duration.x"\nvalues = [1]\n[cluster]', "is not a field of anything"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), MISTAKES, ids=[sentence[:40] for _, _, sentence in MISTAKES])
def test_mistake_is_named(written, old, new, sentence):
    assert old in GOOD
    with pytest.raises(InputError) as refusal:
        read_scenario(written(GOOD.replace(old, new)))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "mine.toml" in str(refusal.value)


def test_file_without_jobs_is_refused(written):
    with pytest.raises(InputError, match="there are no jobs"):
        read_scenario(written('title = "nothing"'))


def test_job_that_runs_already_cannot_be_added(written):
    again = GOOD.replace('kind = "remove"\njob = "T2"', 'kind = "add"\n[[event.jobs]]\nname = "T1"\ntopology = "chain"\n'
                         'intent = { latency = "1s" }\nload = { pattern = "steady", rate = 1 }')  # fmt: skip
    with pytest.raises(InputError, match='job "T1" runs already'):
        read_scenario(written(again))


LANES = """
title = "one job, lane by lane"
engine = "lanes"
duration = "10m"

[cluster]
hosts = 2
cores = 4

[topology.chain]
operators = [
  { name = "in", cost = "0.1ms" },
  { name = "work", cost = "0.5ms", lanes = 2, slices = 8, zipf = 0.5 },
]

[[job]]
name = "T"
topology = "chain"
intent = { policy = "throughput:500/s" }
load = { pattern = "generated" }
jitter = { spread = 0.1, outliers_h = 2, outlier = 3 }

[[event]]
at = "1m"
kind = "slow-lane"
job = "T"
operator = "work"
lane = 1
value = 0.5

[[event]]
at = "2m"
kind = "skew"
job = "T"
operator = "work"
value = 0.2

[[event]]
at = "3m"
kind = "lanes"
job = "T"
lanes = { in = 2 }

[sweep]
label = "trouble"
field = "event"
names = ["none", "one"]
values = [[], [{ at = 0, kind = "lanes", job = "T", lanes = { in = 3 } }]]
"""

LANE_MISTAKES = [
    ('policy = "throughput:500/s"', 'policy = "throughput:fast"', 'a rate looks like "4000000/min"'),
    ('policy = "throughput:500/s"', 'policy = "provison"', 'policy is "provison"; allowed are provision'),
    ('policy = "throughput:500/s"', "policy = 5", 'policy is 5; it must be a name, such as "provision"'),
    ('engine = "lanes"', 'engine = "epochs"', 'a generated load needs engine = "lanes"'),
    ('engine = "lanes"', 'engine = "lane"', 'Did you mean "lanes"?'),
    ('operator = "work"\nlane', 'operator = "wrok"\nlane', 'Did you mean "work"?'),
    ('operator = "work"\nlane', "operator = 5\nlane", "operator is 5; it must name an operator"),
    ("lane = 1", "lane = -1", "lane is -1"),
    ("value = 0.5", "value = 1.5", "value is 1.5"),
    ("value = 0.2", "", "value is missing: skew needs one"),
    (", slices = 8", "", "has no slices; give it some"),
    ("slices = 8", "slices = 0.5", "slices is 0.5; it must be a"),
    ("lanes = { in = 2 }", "lanes = { inn = 2 }", 'Did you mean "in"?'),
    ("spread = 0.1", "spread = 2", "jitter: spread is 2"),
    ('names = ["none", "one"]', 'names = ["none"]', "it must be a list with a name for each value"),
    ("[cluster]", '[user_policies]\nprovision = "a:B"\n[cluster]', "is a built-in policy"),
]


def test_lanes_of_a_scenario_are_read_as_it_says(written):
    scenario = read_scenario(written(LANES))
    assert [(event.kind, event.operator, event.lane, event.value) for event in scenario.events[:2]] == [
        ("slow-lane", "work", 1, 0.5),
        ("skew", "work", 0, 0.2),
    ]
    assert [variant.value for variant in scenario.sweep] == ["none", "one"]
    found = run(scenario, "static", 0)
    assert [dict(lanes) for _, lanes in found.lanes["T"]] == [{"in": 1, "work": 2}, {"in": 2, "work": 2}]


@pytest.mark.parametrize(("old", "new", "sentence"), LANE_MISTAKES, ids=[sentence for *_, sentence in LANE_MISTAKES])
def test_mistake_about_lanes_is_one_sentence(written, old, new, sentence):
    assert old in LANES
    with pytest.raises(InputError) as told:
        read_scenario(written(LANES.replace(old, new, 1)))
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)
