"""Tenants: what a token opens, and that it opens nothing of another tenant."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from headgate import files
from headgate.config import ServiceSettings, Settings
from headgate.core.alerts import AlertKind
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.errors import InputError, QuotaError
from headgate.hosts.leases import NO_BILL
from headgate.jobfile import read
from headgate.server.changes import Change
from headgate.server.service import Loop
from headgate.server.status import LeasesStatus
from headgate.server.tenants import DAY_S, Quota, Role, Tenant, tenant_from
from tests.server.conftest import Bench
from tests.server.fake import job_file
from tests.server.tenancy import HOME_TOKEN, MINE, THEIRS, House, answering

STREAM = "/api/v1/events"
"""Says only that there is something new to ask for, and never ends."""
BODIES: dict[str, Any] = {"PATCH": {"share": 9}, "POST": {"role": "operator"}}
PAUSED, REMOVED = "secret-paused", "secret-removed"
THEIR_JOBS = [THEIRS, PAUSED, REMOVED]


# -- isolation


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Method and path of every route: those of OpenAPI, so that a new one is among them, and those of the command line."""
    documented = {(method.upper(), path) for path, one in app.openapi()["paths"].items() for method in one}
    own = {(method, one.path) for one in app.routes if isinstance(one, APIRoute) for method in one.methods or ()}
    return {(method, path) for method, path in documented | own if "path:path" not in path and path != STREAM}


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A request that names what belongs to the tenant b."""

    role: Role
    way: str
    method: str
    place: str
    body: str


def attempts(house: House, role: Role, way: str) -> Iterator[Attempt]:
    """Every route about a job, a removed job or a token, once for each of b; and submits into b."""
    tokens = [one.id for one in house.bench.service.tenants.tokens("b")]
    for method, path in sorted(routes(house.app)):
        ids = tokens if "{id}" in path else [""]
        names = THEIR_JOBS if "{name}" in path else [""]
        for name, id_ in product(names, ids):
            place = path.replace("{name}", name).replace("{tenant}", "b").replace("{id}", id_)
            if place != path:
                yield Attempt(role, way, method, place, json.dumps(BODIES.get(method)))
        if method == "POST" and path.endswith("/jobs") and role is not Role.VIEWER:  # which submits no job at all
            file = str(job_file(house.bench.directory))
            for name, tenant in (("new", "b"), (THEIRS, "b"), (THEIRS, None), (PAUSED, None)):
                yield Attempt(role, way, method, path, json.dumps({"file": file, "name": name, "tenant": tenant}))


def belongings(house: House) -> object:
    """All that the tenant b has."""
    service, tenants = house.bench.service, house.bench.service.tenants
    jobs = {name: one for name, one in service.registry.all().items() if one.tenant == "b"}
    return jobs, tenants.tokens("b"), tenants.get("b"), service.jobs.removed("b"), dict(house.bench.engine.states())


def ways(house: House, role: Role) -> dict[str, httpx.Client]:
    token = house.token("a", role.value)
    return {"token": house.client(token), "browser": house.browser(token)}


def test_200_attempts_of_one_tenant_on_another_are_refused(house):
    bench = house.bench
    for name in (PAUSED, REMOVED):
        bench.submit(name=name, tenant="b")
    bench.service.jobs.pause(PAUSED)
    bench.service.jobs.remove(REMOVED)
    for role in Role:
        house.token("b", role.value)
    before, refused = belongings(house), set()
    for role in Role:
        for way, client in ways(house, role).items():
            for one in attempts(house, role, way):
                answer = client.request(one.method, one.place, json=json.loads(one.body))
                codes = (400, 403, 409) if one.place.endswith("/jobs") else (403, 404)
                assert answer.status_code in codes, (one, answer.text)
                refused.add(one)
            assert belongings(house) == before, (role, way)
    assert len(refused) >= 200


@pytest.mark.parametrize("role", list(Role))
def test_no_answer_to_a_tenant_names_what_another_tenant_has(house, role):
    asked = [(method, path) for method, path in sorted(routes(house.app)) if "{" not in path and method == "GET"]
    assert len(asked) >= 5
    for client, (method, path) in product(ways(house, role).values(), asked):
        assert THEIRS not in client.request(method, path).text, (method, path)


def test_removed_job_of_another_tenant_is_neither_listed_nor_restored(house):
    house.bench.service.jobs.remove(THEIRS)
    for role in Role:
        client = house.client(house.token("a", role.value))
        assert client.get("/removed").json() == []
        assert client.post(f"/removed/{THEIRS}/restore").status_code == 404
    owner = house.client(house.token("b"))
    assert [one["name"] for one in owner.get("/removed").json()] == [THEIRS]
    assert owner.post(f"/removed/{THEIRS}/restore").status_code == 200


def test_path_that_has_no_permission_is_refused_to_every_role(house):
    for role in Role:
        client = house.client(house.token("a", role.value))
        for method, path in (
            ("GET", "/metrics"),
            ("POST", "/api/v1/tenants"),
            ("DELETE", "/api/v1/tenants/a"),
            ("GET", "/new"),
        ):
            assert client.request(method, path).status_code == 403


# -- what a tenant can do


def test_tenant_sees_its_own_jobs_and_their_totals(house):
    status = house.client(house.token(role="viewer")).get("/status").json()
    assert list(status["jobs"]) == [MINE]
    assert (status["score"], status["max_score"], status["satisfaction"]) == (35.0, 35.0, 1.0)
    assert (status["hosts"], status["leases"], list(status["tenants"])) == ([], None, ["a"])
    everything = house.client(HOME_TOKEN).get("/status").json()
    assert set(everything["jobs"]) == {MINE, THEIRS}
    assert everything["max_score"] == 70.0


def test_names_of_other_tenants_jobs_are_hidden_in_causes(house):
    cause = Cause(f"{THEIRS} lacks cores; not-{THEIRS} does not")
    house.bench.service.board.actions = ()
    action = Action(ActionKind.RECONFIGURE, MINE, {MINE: JobAllocation({"large": 3}, None)}, cause)
    house.bench.journal.intend(house.bench.now_s, action)
    for path in ("/api/v1/cluster", f"/api/v1/jobs/{MINE}"):
        found = house.client(house.token()).get(path).json()["actions"]
        (entry,) = (one for one in found if one["kind"] == "reconfigure")
        assert entry["cause"] == f"a job of another tenant lacks cores; not-{THEIRS} does not"


@pytest.mark.parametrize(("role", "allowed"), [("viewer", 403), ("editor", 200), ("operator", 200)])
def test_role_decides_who_may_change_jobs(house, role, allowed):
    client = house.client(house.token(role=role))
    assert client.get(f"/jobs/{MINE}/explain").status_code == 200
    assert client.patch(f"/jobs/{MINE}", json={"share": 3}).status_code == allowed
    assert client.post(f"/api/v1/jobs/{MINE}/pause").status_code == allowed


def test_only_an_operator_makes_and_revokes_tokens_of_its_tenant(house):
    for role in ("viewer", "editor"):
        assert house.client(house.token(role=role)).post("/api/v1/tenants/a/tokens", json={}).status_code == 403
    operator = house.client(house.token(role="operator"))
    made = operator.post("/api/v1/tenants/a/tokens", json={"role": "editor", "days": 2, "note": "ci"}).json()
    assert house.client(made["token"]).get("/status").status_code == 200
    listed = operator.get("/api/v1/tenants/a/tokens").json()
    assert made["status"] in listed
    assert "hash" not in json.dumps(listed)
    assert operator.delete(f"/api/v1/tenants/a/tokens/{made['status']['id']}").status_code == 200
    assert house.client(made["token"]).get("/status").status_code == 401


def test_submit_belongs_to_the_tenant_of_the_token(house):
    file = str(job_file(house.bench.directory))
    client = house.client(house.token())
    assert client.post("/jobs", json={"file": file, "name": "new"}).status_code == 201
    assert house.bench.service.jobs.owner("new") == "a"
    answer = client.post("/jobs", json={"file": file, "name": "other", "tenant": "b"})
    assert (answer.status_code, "leave it out" in answer.text) == (400, True)


# -- tokens


def test_token_expires_and_its_session_with_it(house):
    token = house.token(days=1)
    browser = house.browser(token)
    assert [one.get("/status").status_code for one in (house.client(token), browser)] == [200, 200]
    house.bench.now_s += DAY_S
    assert [one.get("/status").status_code for one in (house.client(token), browser)] == [401, 401]


def test_revoked_token_ends_sessions_and_login_links(house):
    secret, record = house.bench.service.tenants.new_token("a", "viewer", 1)
    browser = house.browser(secret)
    link = house.client(secret).post("/api/v1/login-links").json()["path"].removeprefix("/#login=")
    house.bench.service.tenants.revoke("a", record.id)
    assert browser.get("/status").status_code == 401
    late = house.client()
    late.post("/api/v1/session", json={"secret": link})
    assert late.get("/status").status_code == 401


def test_secret_of_a_token_is_nowhere_on_disk(house):
    token = house.token()
    for path in house.bench.directory.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes()
    house.bench.start()
    assert house.bench.service.tenants.identify(token) is not None


def test_tenant_that_is_removed_takes_its_tokens_along(house):
    token, home = house.token("a"), house.client(HOME_TOKEN)
    assert "remove them first" in home.delete("/api/v1/tenants/a").text
    house.bench.service.jobs.remove(MINE)
    assert home.delete("/api/v1/tenants/a").status_code == 200
    assert house.client(token).get("/status").status_code == 401


def test_wrong_tokens_of_an_address_are_slowed_down_and_right_ones_are_not(bench):
    with answering(bench, ServiceSettings(login_failures=3)) as house:
        codes = [house.client("hgt_guess").get("/status").status_code for _ in range(5)]
        assert codes == [401, 401, 401, 429, 429]
        assert house.client(HOME_TOKEN).get("/status").status_code == 200


# -- audit


def test_every_change_is_in_the_audit_log_with_who_and_from_where(house):
    client, home = house.client(house.token()), house.client(HOME_TOKEN)
    client.patch(f"/jobs/{MINE}", json={"share": 2})
    client.post(f"/jobs/{MINE}/pause")
    home.post(f"/jobs/{THEIRS}/pause")
    home.post("/api/v1/tenants", json={"name": "c", "lanes": 40, "worth": 500, "weight": 2})
    file = str(job_file(house.bench.directory))
    parameters = {"latency": "3s", "lanes": 3}
    client.post("/jobs", json={"file": file, "name": "new", "share": 2, "parameters": parameters})
    log = home.get("/api/v1/audit").json()
    assert [(one["tenant"], one["job"], one["what"]) for one in log] == [
        ("a", MINE, "share 2"), ("a", MINE, "pause"), ("", THEIRS, "pause"),
        ("", "", "tenant add c: lanes 40, worth 500, weight 2"),
        ("a", "new", f"submit file {file}; share 2; parameters latency, lanes"),
    ]  # fmt: skip
    assert all(one["address"] == "127.0.0.1" and one["at_s"] == house.bench.now_s for one in log)
    assert log[0]["who"].startswith("a, token ")
    seen = client.get("/api/v1/audit").json()
    assert [one["job"] for one in seen] == [MINE, MINE, "new"]


def test_what_files_change_at_the_start_is_in_the_audit_log(tmp_path: Path):
    file, cluster = str(job_file(tmp_path)), tmp_path / "shop.toml"
    bench = Bench(tmp_path)

    def started(lanes: int, *jobs: str) -> list[tuple[str, str]]:
        """What a start with this file adds to the log."""
        before = len(bench.service.changes.all())
        entries = "".join(f'[[job]]\nfile = "orders.py"\n{job}\n' for job in jobs)
        cluster.write_text(f'[[tenant]]\nname = "a"\nlanes = {lanes}\n{entries}')
        bench.loop = Loop(Settings(), tenants=[tenant_from(one) for one in read(cluster).tenants])
        bench.start(cluster)
        assert {(one.via, one.at_s) for one in bench.service.changes.all()} == {("files", bench.now_s)}
        return [(one.job, one.what) for one in bench.service.changes.all()[before:]]

    first, second = 'name = "first"', 'name = "second"\ntenant = "a"'
    assert started(4, first, second) == [
        ("", "tenant add a: lanes 4"),
        ("first", f"submit file {file}; tenant default"),
        ("second", f"submit file {file}; tenant a"),
    ]
    assert started(4, first, second) == []
    assert started(5, first + "\nshare = 2") == [
        ("", "tenant add a: lanes 5"),
        ("first", f"submit file {file}; tenant default; share 2"),
        ("second", "remove: no longer in the files"),
    ]


def test_audit_log_that_cannot_be_read_is_not_replaced(tmp_path: Path):
    (tmp_path / "changes.jsonl").mkdir()
    with pytest.raises(InputError, match=r"changes.jsonl: cannot be read"):
        Bench(tmp_path)


def test_change_that_cannot_be_written_to_the_audit_log_raises_an_alert(house, monkeypatch):
    def full(path: Path, *parts: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", full)
        house.bench.service.changes.add(Change(1.0, "ada", "dashboard", MINE, "pause"))
    (alert,) = [text for _, text in house.bench.notes.told if "changes.jsonl" in text]
    assert alert.startswith("alert: ") and alert.endswith(f"service ends: ada: {MINE}: pause")
    assert "No space left on device; make room" in alert
    assert [one["what"] for one in house.client(HOME_TOKEN).get("/api/v1/audit").json()] == ["pause"]


def test_refused_change_is_not_in_the_audit_log(house):
    house.client(house.token()).post(f"/jobs/{THEIRS}/pause")
    assert house.client(HOME_TOKEN).get("/api/v1/audit").json() == []


# -- quotas


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        (Quota(jobs=1), r'tenant "a" may have 1 jobs: 1 are used and this needs 1; remove a job, or ask'),
        (Quota(lanes=3), r'tenant "a" may have 3 lanes: 2 are used and this needs 2'),
        (Quota(share=1), r'tenant "a" may have 1 of share: 1 are used and this needs 1'),
        (Quota(memory_mb=300), r'tenant "a" may have 300 MB of memory: 256 are used and this needs 256'),
        (
            Quota(worth=60),
            r'tenant "a" may have 60 points of worth: 35 are used and this needs 35; give a job less worth',
        ),
    ],
)
def test_submit_beyond_a_quota_is_refused_in_a_sentence(house, quota, sentence):
    house.bench.service.tenants.put(Tenant("a", quota))
    with pytest.raises(QuotaError, match=sentence):
        house.bench.submit(name="more", tenant="a")
    assert house.bench.submit(name="more", tenant="b") == "more"
    assert house.bench.service.registry.get("more").request.tenant == "b"


def test_budget_of_worth_is_divided_by_the_tenant(house):
    house.bench.service.tenants.put(Tenant("a", Quota(worth=70)))
    client = house.client(house.token())
    answer = client.patch(f"/jobs/{MINE}", json={"intent": {"worth": 71}})
    assert (answer.status_code, "may have 70 points of worth" in answer.text) == (403, True)
    assert client.patch(f"/jobs/{MINE}", json={"intent": {"worth": 40}}).status_code == 200
    file = str(job_file(house.bench.directory))
    assert client.post("/jobs", json={"file": file, "name": "second"}).status_code == 403
    assert client.patch(f"/jobs/{MINE}", json={"intent": {"worth": 35}}).status_code == 200
    assert client.post("/jobs", json={"file": file, "name": "second"}).status_code == 201


def test_tenant_with_too_much_state_starts_no_job(house, monkeypatch):
    house.bench.service.tenants.put(Tenant("a", Quota(state_mb=50)))
    sizes = house.bench.service.accounts._sizes
    monkeypatch.setattr(sizes, "of", lambda names, spend_s=0.0: {name: 60_000_000 for name in names if name == MINE})
    with pytest.raises(QuotaError, match='tenant "a" may have 50 MB of state: 60 are used'):
        house.bench.submit(name="more", tenant="a")
    house.bench.service.jobs.change(MINE, {"share": 2})


def test_state_that_outgrows_its_quota_is_an_alert_of_the_tenant(house, monkeypatch):
    house.bench.service.tenants.put(Tenant("a", Quota(state_mb=50)))
    monkeypatch.setattr(house.bench.service.sizes, "of", lambda names, spend_s=0.0: dict.fromkeys(names, 60_000_000))
    raised = []
    monkeypatch.setattr(house.bench.service, "alerts", lambda at_s, alert: raised.append(alert.kind))
    house.bench.rounds(2)
    advice = house.client(house.token()).get("/status").json()["advice"]
    assert [text for text in advice if text.startswith(f'{MINE}: tenant "a" may have 50 MB of state and has 60')]
    assert raised.count(AlertKind.STATE_QUOTA) == 1
    house.bench.service.tenants.put(Tenant("a", Quota(state_mb=60)))
    house.bench.rounds(1)
    assert house.bench.service.status().advice == ()


def test_tenant_above_a_new_quota_may_still_take_less(house):
    house.bench.service.jobs.change(MINE, {"share": 5})
    house.bench.service.tenants.put(Tenant("a", Quota(share=2)))
    house.bench.service.jobs.change(MINE, {"share": 4})
    with pytest.raises(QuotaError):
        house.bench.service.jobs.change(MINE, {"share": 5})


def test_scheduler_gives_no_more_lanes_than_the_quota(house):
    house.bench.service.tenants.put(Tenant("a", Quota(lanes=3)))
    house.bench.engine.latency_s = 30.0
    house.bench.rounds(40)
    lanes = {name: sum(one.lanes.values()) for name, one in house.bench.engine.allocations.items()}
    assert lanes[MINE] == 3
    assert lanes[THEIRS] > 3


def test_action_beyond_the_quota_is_refused(house):
    house.bench.service.tenants.put(Tenant("a", Quota(lanes=3)))
    house.bench.rounds(1)
    action = Action(ActionKind.RECONFIGURE, MINE, {MINE: JobAllocation({"large": 4}, None)}, Cause("test"))
    outcome = house.bench.service.controller.engine.apply(action)
    assert (outcome.applied, outcome.detail) == (False, 'tenant "a" may have 3 lanes, and this would make 4')


def test_raised_share_beyond_the_quota_is_refused(house):
    house.bench.service.tenants.put(Tenant("a", Quota(share=3)))
    house.bench.rounds(1)
    lanes = dict(house.bench.engine.allocations[MINE].lanes)
    raised = [
        Action(ActionKind.RECONFIGURE, MINE, {MINE: JobAllocation(lanes, None, share=n)}, Cause("test")) for n in (3, 4)
    ]
    outcomes = [house.bench.service.controller.engine.apply(action) for action in raised]
    assert [(one.applied, one.detail) for one in outcomes] == [
        (True, ""),
        (False, 'tenant "a" may have 3 of share, and this would make 4'),
    ]


def test_status_has_what_each_tenant_takes(house):
    house.bench.service.tenants.put(Tenant("a", Quota(jobs=3), weight=2.0))
    found = house.bench.service.status().tenants["a"]
    assert (found.usage.jobs, found.usage.lanes, found.usage.share, found.usage.worth) == (1, 2, 1, 35.0)
    assert (found.quota.jobs, found.weight, found.utility, found.satisfaction, found.jobs_met) == (3, 2.0, 35.0, 1.0, 1)


def test_cost_of_a_job_that_is_gone_stays_with_its_tenant(house):
    service = house.bench.service
    bill = dataclasses.replace(NO_BILL, cost=5.0, cost_by_job={MINE: 4.0}, cost_by_tenant={"a": 3.0, "gone": 1.0})
    service.board.leases = LeasesStatus((), bill, 1.0, ())
    service.jobs.remove(MINE)
    house.bench.submit(name=MINE, tenant="b")
    assert {name: one.cost for name, one in service.status().tenants.items()} == {"a": 3.0, "b": 0.0, "gone": 1.0}
    assert [one["cost"] for one in house.client(house.token("a")).get("/api/v1/tenants").json().values()] == [3.0]


# -- fairness


@pytest.mark.parametrize(("first", "other"), [("a", "b"), ("b", "a")])
def test_tenant_with_more_weight_is_helped_first_under_the_objective_fair(bench, first, other):
    bench.loop = Loop(Settings(objective="fair"))
    bench.start()
    bench.service.tenants.put(Tenant(first, weight=4.0), Tenant(other))
    for tenant in ("a", "b"):
        bench.submit(name=f"of-{tenant}", tenant=tenant)
    bench.engine.latency_s = 30.0
    bench.rounds(12)
    helped = [one.action.job for one in bench.journal.actions() if one.action.kind is ActionKind.RECONFIGURE]
    assert helped[0] == f"of-{first}"


# -- cluster file


def test_tenants_of_a_cluster_file_are_added_at_the_start(tmp_path: Path):
    job_file(tmp_path)
    cluster = tmp_path / "shop.toml"
    cluster.write_text('[[tenant]]\nname = "a"\nworth = 100\nlanes = 4\n[[job]]\nfile = "orders.py"\ntenant = "a"\n')
    bench = Bench(tmp_path)
    bench.loop = Loop(Settings(), tenants=[tenant_from(one) for one in read(cluster).tenants])
    bench.start(cluster)
    assert bench.service.tenants.get("a") == Tenant("a", Quota(worth=100.0, lanes=4))
    assert bench.service.jobs.owner("orders") == "a"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"name": "a b"}, "name of the tenant"),
        ({"name": "a", "job": 1}, 'Did you mean "jobs"'),
        ({"name": "a", "jobs": 1.5}, "jobs is 1.5; it must be a whole number"),
        ({"name": "a", "worth": -1}, "worth is -1"),
        ({"name": "a", "weight": 0}, "weight is 0"),
        ("a", "it must be a table"),
    ],
)
def test_mistakes_in_a_tenant_are_told(table, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        tenant_from(table)
