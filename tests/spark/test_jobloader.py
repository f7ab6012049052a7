"""Job files are loaded in processes of their own: whatever they do, the service goes on. Only the last test needs Spark."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark import SparkContext

from headgate.errors import JobFileError, NeedsSparkError
from headgate.jobfile import JobRequest
from headgate.spark.processes import jobloader
from headgate.spark.processes.jobloader import LoadAnswer, TenantFile, build
from headgate.spark.processes.nursery import NURSERY

from .builders import written

JOB = """
from headgate import Intent, Topology, sinks, sources
import tiers

def topology(rate=100):
    job = Topology("orders", Intent(latency="2s", worth=rate))
    known = job.events("look-up", look_up, job.source("in", sources.load(rate)), schema="id long, tier string")
    job.sink("out", sinks.discard(), known)
    return job

def look_up(row):
    return {"id": row["id"], "tier": tiers.tier_of(row["id"])}
"""
TIERS = "BEST = 'gold'\ndef tier_of(id):\n    return BEST\n"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    (tmp_path / "tiers.py").write_text(TIERS)
    (tmp_path / "orders.py").write_text(JOB)
    return tmp_path / "orders.py"


def changed(orders: Path, old: str, new: str) -> JobRequest:
    assert old in JOB
    orders.write_text(JOB.replace(old, new))
    return JobRequest(str(orders))


def test_topology_comes_back_and_the_service_imports_nothing_of_the_job(orders):
    before, path = set(sys.modules), list(sys.path)
    topology = build(JobRequest(str(orders), name="mine", parameters={"rate": 7}))
    assert (topology.name, topology.intent.worth) == ("mine", 7)
    assert topology.nodes["look-up"].function({"id": 9}) == {"id": 9, "tier": "gold"}
    own = {name for name in sys.modules if name not in before and not name.startswith(("pyspark", "headgate."))}
    assert not {name for name in own if "tiers" in name or "orders" in name}
    assert sys.path == path


def test_modules_of_the_same_name_belong_each_to_their_job(orders, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "tiers.py").write_text(TIERS.replace("gold", "silver"))
    (other / "orders.py").write_text(JOB)
    functions = [
        build(JobRequest(str(file))).nodes["look-up"].function for file in (orders, other / "orders.py", orders)
    ]
    assert [function({"id": 9})["tier"] for function in functions] == ["gold", "silver", "gold"]


def test_functions_travel_on_even_where_another_module_has_the_name(orders, monkeypatch):
    from pyspark import cloudpickle

    function = build(JobRequest(str(orders))).nodes["look-up"].function
    monkeypatch.setitem(sys.modules, "tiers", sys.modules["json"])
    assert pickle.loads(cloudpickle.dumps(function))({"id": 9}) == {"id": 9, "tier": "gold"}


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        ("import os; os._exit(3)", "its process ended while it was loaded"),
        (
            "import os, sys; print('out of luck'); sys.stdout.flush(); os.abort()",
            "its process ended while it was loaded: out of luck",
        ),
        ("import sys; sys.exit(3)", "orders.py: line 3: SystemExit: 3"),
        ("raise KeyboardInterrupt", "its process ended while it was loaded"),
        ("1 / 0", "orders.py: line 3: ZeroDivisionError: division by zero"),
    ],
)
def test_job_file_that_dies_gets_a_sentence(orders, new, sentence):
    with pytest.raises(JobFileError) as refusal:
        build(changed(orders, "import tiers", new))
    assert sentence in str(refusal.value)
    assert str(refusal.value).startswith(str(orders))


def test_job_file_may_print(orders, capsys):
    prints = "import tiers\nprint('seen', flush=True)\nimport os; os.write(1, b'x' * 1_000_000)"
    assert build(changed(orders, "import tiers", prints)).name == "orders"
    assert capsys.readouterr().err.endswith("xxx")


def test_slow_job_file_is_given_up_with_all_that_it_started_and_holds_up_no_other(orders, tmp_path):
    child = tmp_path / "child"
    slow = f"import subprocess, time; open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid)); time.sleep(60)"
    request = changed(orders, "    return job", f"    {slow}")
    (tmp_path / "quick.py").write_text(JOB)
    refusals: list[str] = []

    def refused() -> None:
        with pytest.raises(JobFileError) as refusal:
            build(request, 3.0)
        refusals.append(str(refusal.value))

    thread = threading.Thread(target=refused)
    thread.start()
    try:
        while not child.exists() or not child.read_text():
            time.sleep(0.01)
        assert build(JobRequest(str(tmp_path / "quick.py"))).name == "orders"
        assert not refusals, "the quick one is there before the slow one is given up"
    finally:
        thread.join()
    assert refusals == [
        f"{orders}: it was not loaded within 3 s; make topology() build the graph only, or raise the setting load_job_s"
    ]
    until_gone(int(child.read_text()))


def until_gone(process: int) -> None:
    while Path(f"/proc/{process}").exists() and "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]:
        time.sleep(0.01)


def test_killed_loader_is_started_again(orders):
    build(JobRequest(str(orders)))
    process = NURSERY.process
    assert process is not None
    os.kill(process, signal.SIGKILL)  # it may still be there when the next file is handed to it
    assert build(JobRequest(str(orders))).name == "orders"


def test_secrets_of_the_service_stay_with_it(orders, monkeypatch):
    monkeypatch.setenv("HEADGATE_TOKEN", "secret")
    monkeypatch.setenv("_SPARK_AUTH_SECRET", "secret")
    monkeypatch.setenv("REDIS_URL", "redis://here")
    NURSERY.close()
    seen = "import tiers, os\nassert 'secret' not in os.environ.values() and 'REDIS_URL' in os.environ, os.environ"
    assert build(changed(orders, "import tiers", seen)).name == "orders"
    NURSERY.close()


HARMLESS = ("HOME", "LC_TIME", "PYTHONHASHSEED")


def test_file_of_a_tenant_sees_only_harmless_variables_and_those_that_a_setting_names(orders, tmp_path, monkeypatch):
    secrets = {name: f"secret-{name}" for name in ("LAKE_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "AWS_SECRET_ACCESS_KEY")}
    for name, value in {**secrets, "HEADGATE_TOKEN": "secret-token", "REDIS_URL": "here", "LC_TIME": "C"}.items():
        monkeypatch.setenv(name, value)
    NURSERY.close()
    seen = tmp_path / "seen"
    look = f"open({str(seen)!r}, 'w').write(repr(dict(os.environ)) + open('/proc/self/environ').read())"
    request = changed(orders, "import tiers", f"import tiers, os\n{look}")
    build(request, None, TenantFile(("REDIS_URL", "HEADGATE_TOKEN")))
    text = seen.read_text()
    assert "secret-" not in text and "REDIS_URL" in text and all(name in text for name in HARMLESS)
    build(request)
    text = seen.read_text()
    assert all(value in text for value in secrets.values()) and "secret-token" not in text
    NURSERY.close()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("return BEST", "return LOCK", "refer to an object that cannot be sent to another process, such as a lock"),
        (
            "BEST =",
            "from pyspark.sql.functions import col\nBEST = col('a') and",
            "loaded without a Spark session: move",
        ),
    ],
)
def test_file_of_a_tenant_is_never_loaded_in_the_service(orders, tmp_path, monkeypatch, old, new, sentence):
    monkeypatch.setattr(jobloader, "_loaded_here", lambda request, limit_s: pytest.fail("loaded in the service"))
    monkeypatch.setattr(jobloader, "_spark_runs", lambda: True)
    (tmp_path / "tiers.py").write_text(f"import threading\nLOCK = threading.Lock()\n{TIERS.replace(old, new)}")
    with pytest.raises(JobFileError, match=sentence):
        build(JobRequest(str(orders)), None, TenantFile())


def test_module_beside_the_file_must_be_imported_where_it_travels_from(orders):
    late = 'def look_up(row):\n    import tiers\n    return {"id": row["id"], "tier": tiers.tier_of(row["id"])}'
    request = changed(orders, JOB[JOB.index("def look_up") :].rstrip(), late)
    with pytest.raises(
        JobFileError, match=r"orders.py: line 12: look_up imports tiers, .*; import it at the top of the file"
    ):
        build(request)


def test_topology_that_cannot_leave_its_process_is_built_in_the_service(orders):
    locked = "import tiers, threading\nLOCK = threading.Lock()"
    request = changed(orders, "import tiers", locked)
    orders.write_text(orders.read_text().replace("    return {", "    assert not LOCK.locked()\n    return {"))
    assert build(request).nodes["look-up"].function({"id": 9}) == {"id": 9, "tier": "gold"}
    assert "tiers" not in sys.modules


def test_slow_job_file_in_the_service_is_given_up_and_named_to_those_that_wait(orders, tmp_path, monkeypatch):
    monkeypatch.setattr(jobloader, "_ask", lambda question: LoadAnswer())
    (tmp_path / "quick.py").write_text(JOB)
    quick, go_on = JobRequest(str(tmp_path / "quick.py")), tmp_path / "go on"
    waits = f"import os, time\n    while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n    return job"
    slow = changed(orders, "return job", waits)
    threads = threading.active_count()
    try:
        for request, reason in (
            (slow, f"{orders}: it was not loaded within 300 ms; make topology"),
            (quick, f"quick.py: it was not loaded within 300 ms, because the service still loads {orders}; correct"),
            (slow, f"{orders}: it was not loaded within 300 ms, because the service still loads {orders}; correct"),
        ):
            with pytest.raises(JobFileError, match=reason):
                build(request, 0.3)
    finally:
        go_on.touch()
        while threading.active_count() > threads:
            time.sleep(0.01)
    assert build(quick, 30.0).name == "orders"


def test_job_file_that_asks_for_spark_waits_until_there_is_one(orders, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    asks = "    from pyspark.sql.udf import UserDefinedFunction\n    UserDefinedFunction(3, 4)"
    with pytest.raises(NeedsSparkError, match=r"orders.py: line"):
        build(changed(orders, "    return job", asks))


def test_job_that_came_from_another_process_runs_with_the_modules_beside_its_file(engine, orders, out, until):
    job = JOB.replace('row["id"]', 'row["row"]').replace("sinks.discard()", f"sinks.files({str(out)!r})")
    orders.write_text(job)
    engine.submit(build(JobRequest(str(orders))))
    until(lambda: any(table.num_rows for table in written(out).values()), "rows")
    assert {tier for table in written(out).values() for tier in table.column("tier").to_pylist()} == {"gold"}
