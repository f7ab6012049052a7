"""Job files and cluster files, and the sentence for every mistake in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headgate.core.intents import Intent
from headgate.core.model import JobAllocation
from headgate.errors import JobFileError
from headgate.jobfile import JobRequest, read, request_from
from headgate.spark.jobs.loading import load, wants_spark

JOB = """
from headgate import Intent, Topology
import tiers

def topology(name="orders", latency="2s", *, rate=100):
    job = Topology(name, Intent(latency=latency, worth=rate))
    orders = job.source("in", lambda spark: None)
    known = job.events("look-up", look_up, orders, schema="id long, tier string", lanes=2, max_lanes=8)
    job.sink("out", lambda df, epoch: None, known)
    return job

def look_up(row):
    return {"id": row["id"], "tier": tiers.tier_of(row["id"])}
"""
TIERS = "def tier_of(id):\n    return 'gold' if id > 5 else 'plain'\n"
CLUSTER = """
[settings]
round_s = 5

[[job]]
file = "orders.py"
tenant = "shop"
intent = { latency = "1s", juice = 0.9, worth = 35 }
share = 2
pace_s = 0.5
lanes = { look-up = 4 }
parameters = { rate = 7 }

[[job]]
file = "orders.py"
name = "orders-again"
"""


@pytest.fixture(autouse=True)
def path_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    (tmp_path / "tiers.py").write_text(TIERS)
    path = tmp_path / "orders.py"
    path.write_text(JOB)
    return path


def request(path: Path, **changes) -> JobRequest:
    return request_from({"file": str(path), **changes})


# -- what they mean


def test_job_file_is_one_job(orders):
    (only,) = read(orders).jobs
    topology = load(only)
    assert (topology.name, topology.intent) == ("orders", Intent(latency=2, worth=100))


def test_cluster_file_lists_jobs_and_settings(orders, tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text(CLUSTER)
    cluster = read(path)
    assert cluster.settings == {"round_s": 5}
    first, second = map(load, cluster.jobs)
    assert (first.name, first.tenant, first.share) == ("orders", "shop", 2)
    assert first.intent == Intent(latency=1, juice=0.9, worth=35)
    assert first.allocation() == JobAllocation({"look-up": 4}, 0.5)
    assert (second.name, second.intent.worth) == ("orders-again", 100)


def test_cluster_file_names_policies_and_a_webhook(orders, tmp_path):
    path = tmp_path / "shop.toml"
    more = '[user_policies]\nlag = "shop_policies:Lag"\n[alerts]\nwebhook = "https://example.org/alerts"\n'
    path.write_text(more + CLUSTER)
    cluster = read(path)
    assert cluster.user_policies == {"lag": "shop_policies:Lag"}
    assert (cluster.webhook, cluster.directory) == ("https://example.org/alerts", tmp_path.resolve())


def test_request_survives_being_written_down(orders, tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text(CLUSTER)
    for one in read(path).jobs:
        assert msgspec.json.decode(msgspec.json.encode(one), type=JobRequest) == one


def test_file_is_found_from_anywhere(orders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("orders.py").jobs[0].file == str(orders)


def test_parameters_reach_the_function(orders):
    assert load(read(orders, {"latency": "9s", "rate": 3}).jobs[0]).intent == Intent(latency=9, worth=3)


def test_same_file_serves_several_jobs(orders):
    first, second = load(request(orders, name="a")), load(request(orders, name="b"))
    assert first.nodes["look-up"].function is not second.nodes["look-up"].function
    assert (first.name, second.name) == ("a", "b")


def test_edit_is_seen_by_the_next_load_also_in_a_module_beside_it(orders, tmp_path):
    before = load(request(orders)).nodes["look-up"].function
    (tmp_path / "tiers.py").write_text(TIERS.replace("gold", "best"))
    orders.write_text(JOB.replace('"id": row', '"no": row'))
    after = load(request(orders)).nodes["look-up"].function
    assert before({"id": 9}) == {"id": 9, "tier": "gold"}
    assert after({"id": 9}) == {"no": 9, "tier": "best"}


def test_modules_of_the_same_name_in_two_directories_do_not_mix(orders, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "tiers.py").write_text(TIERS.replace("gold", "silver"))
    (other / "orders.py").write_text(JOB)
    functions = [load(request(path)).nodes["look-up"].function for path in (orders, other / "orders.py", orders)]
    assert [function({"id": 9})["tier"] for function in functions] == ["gold", "silver", "gold"]


def test_functions_travel_by_value_to_where_the_modules_are_not(orders, tmp_path):
    from pyspark import cloudpickle

    pickled = tmp_path / "function.pickle"
    pickled.write_bytes(cloudpickle.dumps(load(request(orders)).nodes["look-up"].function))
    code = f"import pickle; print(pickle.load(open({str(pickled)!r}, 'rb'))({{'id': 9}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "{'id': 9, 'tier': 'gold'}\n"


def test_what_is_installed_below_the_directory_is_not_taken_for_a_part_of_the_job(orders, tmp_path, monkeypatch):
    import json

    installed = tmp_path / "venv" / "installed_thing"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(installed.parent))
    orders.write_text("import json, installed_thing\n" + JOB)
    load(request(orders))
    assert "tiers" not in sys.modules
    assert "installed_thing" in sys.modules
    assert sys.modules["json"] is json


def test_modules_imported_while_the_topology_is_built_are_those_beside_the_file(orders, tmp_path):
    """Also when another job has one of that name, and imported it first."""
    job = JOB.replace("import tiers\n", "").replace(
        "    return job", "    import tiers\n    job.tenant = tiers.WHO\n    return job"
    )
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
        (place / "tiers.py").write_text(f"WHO = {place.name!r}")
        (place / "orders.py").write_text(job)
    path = list(sys.path)
    assert [load(request(place / "orders.py")).tenant for place in (*places, places[0])] == ["a", "b", "a"]
    assert (sys.path, "tiers" in sys.modules) == (path, False)


def test_nothing_is_written_beside_the_job_file(orders, tmp_path):
    load(request(orders))
    assert {path.name for path in tmp_path.iterdir()} == {"orders.py", "tiers.py"}


def test_column_expression_outside_of_a_function_waits_for_spark(orders):
    orders.write_text(
        "def topology():\n    from pyspark.sql.udf import UserDefinedFunction\n    UserDefinedFunction(3, 4)\n"
    )
    with pytest.raises(JobFileError) as refusal:
        load(request(orders))
    assert wants_spark(refusal.value)
    orders.write_text("def topology():\n    assert False\n")
    with pytest.raises(JobFileError) as refusal:
        load(request(orders))
    assert not wants_spark(refusal.value)


# -- mistakes in a job file


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("def topology", "def topologie", 'a job file needs a function `def topology() -> Topology`. Did you mean "topologie"?'),
        ("def look_up(row):", "def look_up(row)", "orders.py: line 12: expected ':'"),
        ("import tiers", "import tierz", "orders.py: line 3: ModuleNotFoundError: No module named 'tierz'"),
        ("import tiers", "1 / 0", "orders.py: line 3: ZeroDivisionError: division by zero"),
        ("import tiers", "exit(3)", "orders.py: line 3: SystemExit: 3"),
        ("    return job", "    raise KeyError('x')", "orders.py: line 10: KeyError: 'x'"),
        ("    return job", "    raise ValueError('a\\n\\nb')", "orders.py: line 10: ValueError: a b"),
        ("    return job", "    return 5", "orders.py: topology() returned 5; it must return its Topology"),
        ("    return job", "    open('/nowhere')", "orders.py: line 10: FileNotFoundError"),
        ('"look-up", look_up, orders', '"look-up", look_up, "oders"', 'job "orders": operator "look-up" reads from "oders"'),
        ('latency="2s"', 'latency="-2s"', 'orders.py: line 6: latency is "-2s"; it must be a duration above 0'),
        ("rate=100", "rate", 'topology() needs the parameter "rate"; give it with --param rate=VALUE'),
    ],
)  # fmt: skip
def test_mistake_in_a_job_file_names_file_and_line(orders, old, new, sentence):
    assert old in JOB
    orders.write_text(JOB.replace(old, new))
    with pytest.raises(JobFileError) as refusal:
        load(request(orders))
    assert sentence in str(refusal.value)
    assert str(refusal.value).startswith(str(orders))


def test_mistake_in_a_module_beside_it_names_that_module(orders, tmp_path):
    (tmp_path / "tiers.py").write_text("\n1 / 0\n")
    with pytest.raises(JobFileError, match=r"tiers.py: line 2: ZeroDivisionError"):
        load(request(orders))
    (tmp_path / "tiers.py").write_text(TIERS)
    assert load(request(orders)).name == "orders"


def test_unknown_parameter_is_named_with_the_closest(orders):
    with pytest.raises(JobFileError) as refusal:
        load(request(orders, parameters={"rat": 1}))
    told = str(refusal.value)
    assert told == f'{orders}: topology() has no parameter "rat"; it has name, latency, rate. Did you mean "rate"?'


@pytest.mark.parametrize(
    ("lanes", "sentence"),
    [
        ({"lookup": 2}, 'job "orders": lanes: there is no operator "lookup"; there are in, look-up, out. Did you mean "look-up"?'),
        ({"in": 2}, 'the source "in" decides itself how many lanes it has'),
        ({"look-up": 9}, '"look-up" is to have 9, above its max_lanes, which is 8'),
    ],
)  # fmt: skip
def test_lanes_that_cannot_be_are_refused(orders, lanes, sentence):
    with pytest.raises(JobFileError) as refusal:
        load(request(orders, lanes=lanes))
    assert sentence in str(refusal.value)


def test_file_that_went_away_is_one_sentence(orders):
    asked = request(orders)
    orders.unlink()
    with pytest.raises(JobFileError, match=r"orders.py: cannot be read: No such file or directory"):
        load(asked)


# -- mistakes in a cluster file


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[settings]", "[setings]", 'there is no field "setings"; allowed are settings, job, user_policies, alerts, tenant.'),
        ("[settings]", "[settings", "is not valid TOML"),
        ("tenant =", "tennant =", 'job number 1: there is no field "tennant"'),
        ('file = "orders.py"\nname', 'fiel = "orders.py"\nname', 'job "orders-again": there is no field "fiel"'),
        ('file = "orders.py"\nname', "name", 'job "orders-again": file is None; it must name a job file'),
        ('file = "orders.py"\nname', 'file = "order.py"\nname', 'job "orders-again": there is no file'),
        ('"orders-again"', '"orders again"', 'name is "orders again"; use letters, digits, dots'),
        ("latency = ", "latancy = ", 'job number 1: intent: there is no field "latancy"'),
        ('latency = "1s"', 'latency = "soon"', 'intent: latency is "soon"; it must be a duration'),
        ("share = 2", "share = 0", "share is 0; it must be a number of at least 1"),
        ("share = 2", "share = 20", "share is 20; it must be a number of at least 1 and at most 10"),
        ('"orders-again"', f'"{"a" * 300}"', "it has 300 characters, and at most 100 are allowed"),
        ('"orders-again"', '"headgate-share-10-0"', 'names that begin with "headgate-" are reserved'),
        ("share = 2", "share = 2.5", "share is 2.5; it must be a whole number"),
        ("pace_s = 0.5", "pace_s = -1", "pace_s is -1; it must be a number of at least 0"),
        ("look-up = 4", "look-up = 0", "lanes of look-up is 0; it must be"),
        ("lanes = { look-up = 4 }", "lanes = 4", "lanes is 4; it must be a table"),
        ("{ rate = 7 }", "7", "parameters is 7; it must be a table"),
        ("rate = 7", "rate = 1979-05-27", 'parameter "rate" is datetime.date(1979, 5, 27); use text'),
        ("rate = 7", "rate = inf", 'parameter "rate" is inf; use text, finite numbers'),
        ("[settings]", "[user_policies]\nmine = 3\n[settings]", 'user_policies: mine is 3; it must be "module:Class"'),
        ("[settings]", "[alerts]\nwebhook = 'nowhere'\n[settings]", 'alerts: webhook is "nowhere"; it must be an address'),
        ("[settings]", "[alerts]\nmail = 'x'\n[settings]", 'alerts: there is no field "mail"'),
    ],
)  # fmt: skip
def test_mistake_in_a_cluster_file_is_one_sentence(orders, tmp_path, old, new, sentence):
    path = tmp_path / "shop.toml"
    assert old in CLUSTER
    path.write_text(CLUSTER.replace(old, new))
    with pytest.raises(JobFileError) as refusal:
        read(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "there is no job in it"),
        ("job = 5", "there is no job in it"),
        ("job = [5]", "job number 1: it is 5; it must be a table"),
        ("settings = 5", "settings is 5; it must be a table"),
    ],
)
def test_cluster_file_without_jobs_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "shop.toml"
    path.write_text(content)
    with pytest.raises(JobFileError, match=sentence):
        read(path)


def test_file_of_another_kind_is_one_sentence(tmp_path):
    with pytest.raises(JobFileError, match=r"a job file ends in \.py, a cluster file in \.toml"):
        read(tmp_path / "shop.yaml")
    with pytest.raises(JobFileError, match=r"cannot be read: No such file"):
        read(tmp_path / "shop.toml")
    with pytest.raises(JobFileError, match=r"there is no file"):
        read(tmp_path / "shop.py")


# -- files that are none


@pytest.mark.parametrize("file", ["/etc/passwd", "/etc", "orders.txt", "", "orders.py\0"])
def test_a_file_that_is_no_job_file_is_refused_without_a_look_at_it(file):
    with pytest.raises(JobFileError, match=r'file is ".*"; a job file ends in \.py'):
        request_from({"file": file})


def test_what_stands_in_a_file_that_is_no_python_is_not_told(tmp_path):
    (tmp_path / "secret.py").write_text("root:x:0:0:the secret of root:/root:/bin/bash\n")
    with pytest.raises(JobFileError) as refusal:
        load(request(tmp_path / "secret.py"))
    assert "secret.py: line 1: " in str(refusal.value)
    assert "the secret" not in str(refusal.value)
