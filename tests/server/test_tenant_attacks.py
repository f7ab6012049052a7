"""What a tenant tries to see, or to change, of another: names that were used before, requests that arrive slowly, odd paths."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from headgate.config import ServiceSettings
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, Outcome
from headgate.errors import JobFileError, QuotaError, UnknownJobError
from headgate.ports import Effect, JobPhase
from headgate.server.changes import Change, Changes
from headgate.server.sessions import MOST_OPEN, Identity, Sessions
from headgate.server.tenants import Quota, Role, Tenant
from tests.server.conftest import ROUND_S
from tests.server.fake import job_file
from tests.server.tenancy import HOME_TOKEN, MINE, THEIRS

SECRET = "no such customer: Jane Doe"
NAME = "shared-name"


def past_of(client: httpx.Client, name: str) -> str:
    """All that the API says of a job's past."""
    own = [f"/jobs/{name}/explain", f"/api/v1/jobs/{name}", f"/api/v1/jobs/{name}/story"]
    paths = [*own, "/api/v1/cluster", "/api/v1/jobs", "/api/v1/audit", "/status"]
    return "".join(client.get(path).raise_for_status().text for path in paths)


def of_another_before(house) -> float:
    """A job of b that fails, is changed and removed; then a has a job of this name. Returns when a got it."""
    bench = house.bench
    bench.submit(name=NAME, tenant="b")
    bench.rounds(3)
    cause = Cause(f"{NAME} needs lanes")
    action = Action(ActionKind.RECONFIGURE, NAME, {NAME: JobAllocation({"large": 3}, None)}, cause)
    bench.journal.intend(bench.now_s, action)
    bench.engine.fail(NAME, SECRET)
    bench.rounds(1)
    house.client(HOME_TOKEN).patch(f"/jobs/{NAME}", json={"share": 7})
    assert SECRET in past_of(house.client(house.token("b")), NAME)
    bench.service.jobs.remove(NAME)
    bench.rounds(1)
    bench.submit(name=NAME, tenant="a")
    since_s: float = bench.now_s
    bench.rounds(3)
    return since_s


# -- the past of a name


def test_job_with_a_name_that_another_tenant_used_shows_nothing_of_that_job(house):
    since_s = of_another_before(house)
    client = house.client(house.token("a"))
    text = past_of(client, NAME)
    assert SECRET not in text
    assert "needs lanes" not in text
    assert "share 7" not in text
    job = client.get(f"/api/v1/jobs/{NAME}").json()
    assert job["failures"] == []
    assert job["latency"]["at_s"][0] > since_s
    rows = client.get("/api/v1/jobs").json()
    (row,) = (one for one in rows["jobs"] if one["name"] == NAME)
    measured_s = [at_s for at_s, lanes in zip(rows["at_s"], row["series"]["lanes"], strict=True) if lanes is not None]
    assert measured_s and min(measured_s) > since_s
    everything = house.client(HOME_TOKEN).get(f"/api/v1/jobs/{NAME}").json()
    assert everything["failures"][0]["reason"] == SECRET


def test_restored_job_shows_nothing_of_another_tenants_job_of_its_name(house):
    bench = house.bench
    bench.submit(name=NAME, tenant="a")
    bench.rounds(2)
    bench.service.jobs.remove(NAME)
    of_another_before(house)
    bench.service.jobs.remove(NAME)
    client = house.client(house.token("a"))
    assert client.post(f"/removed/{NAME}/restore").status_code == 200
    bench.rounds(2)
    assert SECRET not in past_of(client, NAME)


def test_own_past_stays_visible_over_a_restart(house):
    house.bench.start()
    house.bench.rounds(2)
    job = house.bench.service.registry.get(MINE)
    assert job is not None and job.since_s < house.bench.now_s - 4 * ROUND_S


def test_name_of_a_removed_job_of_another_tenant_stays_hidden(house):
    bench = house.bench
    cause = Cause(f"{THEIRS} lacks cores", {"job": THEIRS}, (Cause(f"cores of {THEIRS}"),))
    bench.journal.intend(
        bench.now_s, Action(ActionKind.RECONFIGURE, MINE, {MINE: JobAllocation({"large": 3}, None)}, cause)
    )
    bench.service.jobs.remove(THEIRS)
    assert THEIRS not in past_of(house.client(house.token("a")), MINE)


def test_action_for_another_tenants_job_shows_only_what_it_did_to_ones_own(house):
    bench = house.bench
    cause = Cause("latency 2.8 s misses 1.5 s", {"operator": "their-operator"})
    changes = {MINE: JobAllocation({"large": 1}, None), THEIRS: JobAllocation({"their-operator": 9}, None)}
    id_ = bench.journal.intend(
        bench.now_s, Action(ActionKind.RECONFIGURE, THEIRS, changes, cause, "their-operator 2 → 9 lanes")
    )
    bench.journal.outcome(id_, Outcome(True))
    bench.journal.effect(id_, Effect(bench.now_s, 11.5, 22.5, 3.5, 4.5, "kept"))
    client = house.client(house.token("a"))
    text = past_of(client, MINE)
    for secret in (THEIRS, "their-operator", "2.8 s", "22.5", "4.5 "):
        assert secret not in text
    (entry,) = (one for one in client.get("/api/v1/cluster").json()["actions"] if one["id"] == id_)
    assert (entry["job"], entry["cause"]) == (None, "to help a job of another tenant")
    assert "to help a job of another tenant: took 1 lane from large (2 -> 1)" in text


def test_effect_of_ones_own_action_tells_no_total_of_all_tenants(house):
    bench = house.bench
    action = Action(ActionKind.RECONFIGURE, MINE, {MINE: JobAllocation({"large": 3}, None)}, Cause("slow"))
    id_ = bench.journal.intend(bench.now_s, action)
    bench.journal.effect(id_, Effect(bench.now_s, 111.5, 122.5, 3.5, 4.5, "kept"))
    text = past_of(house.client(house.token("a")), MINE)
    assert "4.5" in text
    assert "122.5" not in text and "111.5" not in text


# -- requests


def test_job_that_became_another_tenants_while_a_request_arrived_is_not_changed(house):
    bench, token = house.bench, house.token("a")
    address = urlsplit(house.url)
    body = json.dumps({"share": 9}).encode()
    with socket.create_connection((address.hostname, address.port), timeout=20) as slow:
        head = f"PATCH /jobs/{MINE} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        slow.sendall(body[:1])
        assert house.client(token).get("/status").status_code == 200  # answered after the head: on the same thread
        bench.service.jobs.remove(MINE)
        bench.submit(name=MINE, tenant="b")
        slow.sendall(body[1:])
        assert slow.recv(100).startswith(b"HTTP/1.1 404 ")
    assert bench.engine.states()[MINE].share == 1


@pytest.mark.parametrize("change", ["pause", "resume", "remove"])
def test_owner_is_checked_again_when_the_job_is_changed(house, change):
    with pytest.raises(UnknownJobError) as refused:
        getattr(house.bench.service.jobs, change)(THEIRS, "a")
    assert str(refused.value) == f'there is no job "{THEIRS}"'
    assert house.bench.engine.states()[THEIRS].phase is JobPhase.RUNNING


ODD = (
    "/jobs/%73ecret-orders", "/jobs/secret-orders%0a", "/jobs/secret-orders%00", "/jobs/secret-orders/", "/jobs//secret-orders",
    "/jobs/mine/../secret-orders", "/jobs/mine%2f..%2fsecret-orders", "/jobs/mine%2Fsecret-orders", "/jobs/secret-orders;a=mine",
    "/jobs/secret-orders?name=mine", "/jobs/SECRET-ORDERS", "/jobs/secret%2Dorders", "//jobs/secret-orders", "/web/../jobs/secret-orders",
    "/jobs/mine\\..\\secret-orders",
)  # fmt: skip


@pytest.mark.parametrize("role", list(Role))
def test_odd_ways_to_write_a_path_lead_nowhere(house, role):
    """Sent as they are: a client would tidy them."""
    address, token = urlsplit(house.url), house.token("a", role.value)
    before = house.bench.service.registry.all()[THEIRS]
    for prefix in ("", "/api/v1"):
        for path in ODD:
            for method, end in (("GET", ""), ("GET", "/explain"), ("PATCH", ""), ("DELETE", ""), ("POST", "/pause")):
                place, _, query = path.partition("?")
                target = f"{prefix}{place}{end}{'?' if query else ''}{query}"
                code, text = raw(address.hostname, address.port, method, target, token)
                assert code in (400, 403, 404, 405), (method, target, text)
    assert house.bench.service.registry.all()[THEIRS] == before
    assert house.bench.engine.states()[THEIRS].phase is JobPhase.RUNNING


def raw(host: str | None, port: int | None, method: str, target: str, token: str) -> tuple[int, str]:
    with socket.create_connection((host, port), timeout=20) as connection:
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        )
        connection.sendall(f'{head}Content-Length: 11\r\n\r\n{{"share":9}}'.encode())
        found = b""
        while part := connection.recv(4096):
            found += part
    return int(found.split(b" ", 2)[1]), found.decode()


def test_secret_of_one_session_does_not_open_the_session_of_another(house):
    mine, theirs = house.browser(house.token("a")), house.browser(house.token("b"))
    theirs.headers["X-CSRF-Token"] = mine.headers["X-CSRF-Token"]
    assert theirs.post(f"/jobs/{THEIRS}/pause").status_code == 403
    assert mine.post(f"/jobs/{THEIRS}/pause").status_code == 404


def test_session_says_what_it_is_held_to(house):
    found = house.browser(house.token("a", "viewer")).get("/api/v1/session").json()
    assert (found["tenant"], found["role"]) == ("a", "viewer")
    assert house.browser(HOME_TOKEN).get("/api/v1/session").json()["tenant"] is None


def test_address_in_the_audit_log_is_where_the_request_came_from(house):
    client = house.client(house.token("a"))
    client.patch(f"/jobs/{MINE}", json={"share": 2}, headers={"X-Forwarded-For": "192.0.2.9"})
    (entry,) = house.client(HOME_TOKEN).get("/api/v1/audit").json()
    assert entry["address"] == "127.0.0.1"
    claims = {"Host": "evil.example", "X-Forwarded-Proto": "https"}
    assert client.get("/status", headers=claims).status_code == 403


def test_stream_of_events_ends_with_its_token(house):
    secret, record = house.bench.service.tenants.new_token("a", "viewer", 1)
    with house.client(secret).stream("GET", "/api/v1/events", timeout=20) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        house.bench.service.tenants.revoke("a", record.id)
        list(lines)  # ends


# -- what belongs to all


def test_health_names_no_job(house):
    house.bench.service.board.trouble = f"no round: {THEIRS} cannot be read"
    house.bench.service.board.last_round_failed = True
    answer = house.client().get("/health")
    assert (answer.status_code, answer.json()["sentence"]) == (
        503,
        "the last round was not completed; `headgate status` says why",
    )
    house.bench.service.board.trouble, house.bench.service.board.last_round_failed = f"the jobs: {THEIRS}", False
    assert THEIRS not in house.client().get("/health").text
    house.bench.now_s += 1000
    assert THEIRS not in house.client().get("/health").text


def test_tenant_that_logs_in_often_ends_no_session_or_link_of_another(house):
    tenants = house.bench.service.tenants
    sessions = Sessions(ServiceSettings(), HOME_TOKEN, house.bench.clock, tenants)
    token = house.token("a")
    home, _ = sessions.log_in(HOME_TOKEN)
    code = sessions.new_code(Identity("ada"))
    first, _ = sessions.log_in(token)
    for _ in range(MOST_OPEN):
        sessions.log_in(token)
        sessions.new_code(Identity("a", "a"))
    assert sessions.find(home) is not None
    assert sessions.log_in(code)[1].identity.who == "ada"
    assert sessions.find(first) is None


def test_tenant_that_changes_much_does_not_push_others_out_of_the_audit_log(tmp_path):
    changes = Changes(tmp_path, keep=3)
    changes.add(Change(0.0, "b, token 1", "command line", "x", "remove", tenant="b"))
    for at_s in range(1, 9):
        changes.add(Change(float(at_s), "a, token 2", "command line", "y", "share 2", tenant="a"))
    assert [(one.tenant, one.at_s) for one in changes.all()] == [("b", 0.0), ("a", 6.0), ("a", 7.0), ("a", 8.0)]
    assert Changes(tmp_path, keep=3).all() == changes.all()


# -- job files that change whose job it is

SLY_CLASS = """
class Sly(Topology):
    tenant = property(lambda self: "b", lambda self, tenant: None)

def topology():
    job = honest()
    job.__class__ = Sly
    return job
"""
SLY_LOADER = """
from headgate.spark.processes import jobworker
pickled = jobworker._pickled

def changed(job, directory):
    job.name, job.tenant = {name!r}, "b"
    return pickled(job, directory)

def topology():
    jobworker._pickled = changed
    return honest()
"""
IN_THE_HOME = "../../of-another"


def attack_file(house, attack: str = "") -> str:
    """A job file of the tenant a; with an attack, its process sends back a job of the tenant b."""
    path = job_file(house.bench.directory)
    honest = path.read_text().replace("def topology(", "def honest(") + "\ndef topology():\n    return honest()\n"
    path = path.with_name("sly.py")
    path.write_text(honest + attack)
    return str(path)


def of_b(house) -> tuple[int, set[str]]:
    """What is charged to the tenant b, and its jobs."""
    jobs = {name for name, one in house.bench.engine.topologies.items() if one.tenant == "b"}
    return house.bench.service.status().tenants["b"].usage.jobs, jobs


def test_job_file_cannot_submit_a_job_of_another_tenant(house):
    client = house.client(house.token("a"))
    answer = client.post("/jobs", json={"file": attack_file(house, SLY_CLASS), "name": "sly"})
    assert (answer.status_code, "an object of the class Sly; return a headgate.Topology" in answer.text) == (400, True)
    file = attack_file(house, SLY_LOADER.format(name=THEIRS))
    assert client.post("/jobs", json={"file": file, "name": "sly"}).status_code == 201
    assert house.bench.service.jobs.owner("sly") == house.bench.engine.topologies["sly"].tenant == "a"
    assert client.post("/jobs", json={"file": file}).status_code == 409
    assert of_b(house) == (1, {THEIRS})


def test_job_file_cannot_name_a_directory_of_another_job(house):
    file = attack_file(house, SLY_LOADER.format(name=IN_THE_HOME))
    answer = house.client(house.token("a")).post("/jobs", json={"file": file})
    assert (answer.status_code, IN_THE_HOME in answer.text and "use letters" in answer.text) == (400, True)
    assert set(house.bench.engine.topologies) == {MINE, THEIRS}


@pytest.mark.parametrize("attack", [SLY_CLASS, SLY_LOADER.format(name=THEIRS)])
def test_job_file_that_was_edited_later_cannot_move_its_job_to_another_tenant(house, attack):
    bench = house.bench
    client = house.client(house.token("a"))
    for name in ("kept", "removed"):
        assert client.post("/jobs", json={"file": attack_file(house), "name": name}).status_code == 201
    bench.service.jobs.remove("removed")
    attack_file(house, attack)
    bench.start()
    assert bench.service.jobs.owner("kept") == "a"
    for step in (
        lambda: bench.service.jobs.resume("kept", "a"),
        lambda: bench.service.jobs.restore("removed", None, "a"),
    ):
        with suppress(JobFileError):
            step()
    assert of_b(house) == (1, {THEIRS})
    assert {bench.service.jobs.owner(name) for name in ("kept", "removed")} <= {"a", None}


LOCKED = """
import os, threading
LOCK = threading.Lock()
with open({log!r}, "a") as log:
    log.write(f"{{os.getpid()}} ")

def topology():
    job = honest()
    job.sink("held", lambda df, epoch: LOCK, "large")
    return job
"""


def test_job_file_of_a_tenant_never_runs_in_the_service_although_an_operators_may(house):
    bench = house.bench
    log = bench.directory / "processes"
    client = house.client(house.token("a"))
    assert client.post("/jobs", json={"file": attack_file(house), "name": "kept"}).status_code == 201
    file = attack_file(house, LOCKED.format(log=str(log)))
    answer = client.post("/jobs", json={"file": file, "name": "new"})
    assert (answer.status_code, "make this object inside the function" in answer.text) == (400, True)
    bench.start()
    assert "make this object inside the function" in bench.service.states()["kept"].reason
    with pytest.raises(JobFileError):
        bench.service.jobs.resume("kept")
    assert str(os.getpid()) not in log.read_text().split()
    bench.service.jobs.remove("kept")
    with pytest.raises(JobFileError):
        bench.service.jobs.restore("kept", None, "a")
    assert str(os.getpid()) not in log.read_text().split()
    bench.submit(file=file, name="of-the-operator", tenant="a")
    assert str(os.getpid()) in log.read_text().split()


# -- quotas


def write(house, worth: float, lanes: int = 2) -> str:
    """The job file, as its author edits it."""
    path = job_file(house.bench.directory)
    text = path.read_text().replace("worth=35", f"worth={worth:g}").replace("lanes=2", f"lanes={lanes}")
    path = path.with_name("edited.py")
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(("worth", "lanes"), [(1000.0, 2), (35.0, 50)])
def test_file_that_asks_for_more_when_it_is_loaded_again_is_not_started(house, worth, lanes):
    bench = house.bench
    bench.service.tenants.put(Tenant("a", Quota(worth=100, lanes=6)))
    file = write(house, 35)
    client = house.client(house.token("a"))
    assert client.post("/jobs", json={"file": file, "name": "edited"}).status_code == 201
    write(house, worth, lanes)
    bench.start()
    state = bench.service.states()["edited"]
    assert state.phase is JobPhase.FAILED and 'tenant "a" may have' in state.reason
    with pytest.raises(QuotaError):
        bench.service.jobs.resume("edited", "a")
    write(house, 40)
    bench.service.jobs.resume("edited", "a")
    assert bench.service.states()["edited"].phase is JobPhase.RUNNING


def test_job_above_a_lowered_quota_comes_back_after_a_restart(house):
    house.bench.service.tenants.put(Tenant("a", Quota(worth=10)))
    house.bench.start()
    assert house.bench.service.states()[MINE].phase is JobPhase.RUNNING
