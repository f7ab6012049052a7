"""The API of the dashboard without a browser: what it answers, and whom it lets in."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.bench.showcase import NAMED, ROUND_S, SLICE_BYTES, Show, show
from headgate.cli import run_command
from headgate.config import ServiceSettings, Settings, SparkSettings
from headgate.errors import BusyError, EngineError, LoginError, TooManyLoginsError
from headgate.jobfile import read
from headgate.server.anatomy import edges_of, operators_of
from headgate.server.app import app_of, listen, served
from headgate.server.changes import Change, Changes
from headgate.server.home import Home
from headgate.server.page import WEB
from headgate.server.run import Plan, run
from headgate.server.service import Loop
from headgate.server.sessions import Identity, Sessions
from headgate.server.tenants import Tenant
from headgate.server.what_if import WhatIf
from tests.server.conftest import Notes
from tests.server.fake import FakeEngine, job_file

TOKEN = "the-token"
HOUR_S = 3600.0


class Stage:
    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.now_s = 1_780_000_000.0
        self.show: Show = stack.enter_context(show(home, NAMED, HOUR_S, lambda: self.now_s))
        for _ in range(4):
            self.now_s += ROUND_S
            self.show.service.round()
        listening = stack.enter_context(closing(listen()))
        self.home = Home(home)
        token = self.home.new_token()
        self.app = app_of(self.show.service, token)
        self.url = stack.enter_context(served(self.app, listening))
        stack.enter_context(self.home.announced(self.url))
        headers = {"Authorization": f"Bearer {token}", "X-Headgate-User": "grace"}
        self.api = stack.enter_context(httpx.Client(base_url=self.url, headers=headers, trust_env=False))

    def get(self, path: str):
        answer = self.api.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path_factory.mktemp("api"), stack)


@pytest.fixture
def browser(stage) -> Iterator[httpx.Client]:
    """A client that is logged in by a cookie, and knows the secret of its session."""
    with httpx.Client(base_url=stage.url, trust_env=False) as client:
        answer = client.post("/api/v1/session", json={"secret": stage.app.state.sessions.new_code(Identity("ada"))})
        client.headers["X-CSRF-Token"] = answer.json()["csrf"]
        yield client


# -- what is answered


def test_cluster_has_utility_over_time_and_actions_with_cause_and_effect(stage):
    found = stage.get("/cluster?range_s=3600&points=50")
    times = found["utility"]["at_s"]
    assert times == sorted(times) and 20 <= len(times) <= 50
    assert times[-1] == found["at_s"] and times[0] >= found["now_s"] - 3600
    assert all(
        score <= most for score, most in zip(found["utility"]["score"], found["utility"]["max_score"], strict=True)
    )
    action = next(one for one in found["actions"] if one["job"] == "fraud-score")
    assert action["cause"].endswith("too few lanes") and action["effect"]["verdict"] == "kept"
    assert [host["name"] for host in found["hosts"]] == ["host-0", "host-1", "host-2"]


def test_jobs_have_short_series_of_the_same_length(stage):
    found = stage.get("/jobs?points=30")
    assert {job["name"] for job in found["jobs"]} == {part.name for part in NAMED}
    for job in found["jobs"]:
        assert {len(values) for values in job["series"].values()} == {len(found["at_s"])}
    assert len(found["at_s"]) <= 30


def test_job_has_operators_edges_lanes_slices_hot_keys_and_percentiles(stage):
    found = stage.get("/jobs/fraud-score")
    operators = {one["name"]: one for one in found["operators"]}
    assert operators["look-up"]["lanes"] == len(operators["look-up"]["per_lane"]) == 8
    assert operators["events"]["role"] == "source" and operators["events"]["backlog"] > 0
    assert len(operators["per-customer"]["slices"]) == 32
    assert {(one["source"], one["target"]) for one in found["edges"]} == {
        ("events", "look-up"), ("look-up", "per-customer"), ("look-up", "archive"), ("per-customer", "alerts"),
    }  # fmt: skip
    assert all(one["rows_s"] == pytest.approx(4480) for one in found["edges"])
    assert operators["per-customer"]["slices"][0]["bytes"] == 9 * SLICE_BYTES
    assert operators["per-customer"]["hot_keys"][0] == {"key": "customer-1042", "share": 0.19}
    assert operators["look-up"]["hot_keys"] == []
    assert found["latency"]["p99_s"][-1] > found["latency"]["p50_s"][-1]


def test_operators_of_a_job_whose_epoch_has_not_ended_are_not_shown_as_idle(stage):
    picture = stage.show.service.board.picture()
    view = picture.view.jobs["fraud-score"]
    assert all(one.busy is not None for one in operators_of(view) if one.lanes is not None)
    assert all(one.rows_s is not None for one in edges_of(view))
    first = dataclasses.replace(
        view.span.first, reading=dataclasses.replace(view.span.first.reading, epochs=view.span.last.reading.epochs)
    )
    waiting = dataclasses.replace(view, span=dataclasses.replace(view.span, first=first))
    assert {(one.busy, one.rows_s) for one in operators_of(waiting)} == {(None, None)}
    assert {one.rows_s for one in edges_of(waiting)} == {None}
    assert [one.backlog for one in operators_of(waiting)] == [one.backlog for one in operators_of(view)]


def test_prediction_is_made_beside_the_service(stage):
    answer = stage.api.post("/api/v1/what-if", json={"loads": {"all": 2}, "after_s": 60, "hold": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["then"]["jobs"].keys() == {part.name for part in NAMED}
    assert found["then"]["course"] and 0 <= found["then"]["satisfaction"] < found["now"]["satisfaction"]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({}, "changes nothing"),
        ({"loads": {"nope": 2}}, 'no job \\"nope\\"'),
        ({"loads": {"all": -1}}, "between 0 and 1000"),
        ({"loads": 3}, "cannot be read"),
        ({"until_met": "moons"}, "moons"),
    ],
)
def test_question_that_makes_no_sense_is_refused(stage, question, sentence):
    answer = stage.api.post("/api/v1/what-if", json=question, timeout=120)
    assert answer.status_code == 400 and sentence in answer.text


def test_one_prediction_at_a_time(tmp_path):
    what_if = WhatIf(tmp_path / "journal.sqlite", 60.0)
    with what_if._lock, pytest.raises(BusyError, match="another prediction"):
        what_if.answer({"loads": {"all": 2}})


def test_prediction_that_takes_too_long_is_given_up(stage):
    with pytest.raises(EngineError, match="what_if_s"):
        WhatIf(stage.home.path / "journal.sqlite", 0.01).answer({"loads": {"all": 2}})


def test_story_is_data_from_symptom_to_effect(stage):
    entries = stage.get("/jobs/fraud-score/story")["entries"]
    assert [one["at_s"] for one in entries] == sorted((one["at_s"] for one in entries), reverse=True)
    helped = next(one for one in entries if one["remedy"] == "add lanes")
    assert helped["facts"]["diagnosis"] == "too few lanes"
    assert [one["facts"]["symptom"] for one in helped["diagnosis"]["because"]] == ["late", "input held back"]
    assert helped["lanes"]["look-up"] == 8 and helped["action"]["effect"]["verdict"] == "kept"
    assert any(one["kind"] == "measured" and "input rose" in one["text"] for one in entries)


def test_epochs_are_told_part_by_part(stage):
    found = stage.get("/jobs/fraud-score/epochs")["epochs"]
    assert [one["number"] for one in found] == sorted(one["number"] for one in found)
    assert [one["part"] for one in found[0]["spans"]] == [
        "read", "log", "plan", "sink", "sink", "state", "count", "wait", "commit",
    ]  # fmt: skip
    assert [one["operator"] for one in found[0]["spans"] if one["part"] == "sink"] == ["archive", "alerts"]


@pytest.mark.parametrize("columns", [80, 140])
def test_epochs_are_shown_as_a_waterfall(stage, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run_command(["epochs", "fraud-score", "--most", "2", "--json", "--home", str(stage.home.path)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"r+l*p+s+[a-z]*c*\.+m+", out)) == 2
    assert max(map(len, out.splitlines()[:4])) <= columns
    assert len(json.loads(out.splitlines()[-1])) == 2


def test_epochs_of_an_unknown_job_are_refused(stage, capsys):
    assert run_command(["epochs", "nope", "--home", str(stage.home.path)]) != 0
    assert 'there is no job "nope"' in capsys.readouterr().err


def test_every_answer_is_described_by_openapi(stage):
    described = stage.get("/openapi.json")
    assert {"/api/v1/cluster", "/api/v1/jobs", "/api/v1/jobs/{name}", "/api/v1/jobs/{name}/epochs"} <= described[
        "paths"
    ].keys()
    assert all(path.startswith("/api/v1/") for path in described["paths"])
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            answered = {code: one for code, one in operation["responses"].items() if code.startswith("2")}
            assert len(answered) == 1, (method, path)
            (content,) = next(iter(answered.values()))["content"].values()
            assert content["schema"], (method, path)
            assert "422" not in operation["responses"], (method, path)


def test_answers_are_as_openapi_describes_them(stage):
    described = stage.get("/openapi.json")
    stage.show.service.tenants.put(Tenant("shop"))
    stage.show.service.tenants.new_token("shop", "viewer", 1)
    stage.api.post("/api/v1/jobs/click-joins/pause")
    asked = [path for path, methods in described["paths"].items() if "get" in methods and not path.endswith("/events")]
    for path in asked:
        answer = stage.api.get(path.format(name="fraud-score", tenant="shop"))
        schema = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert answer.status_code == 200 and list(misfits(answer.json(), schema, described, path)) == []
    for method, path, table in (
        ("post", "/api/v1/tenants", {"name": "ads"}),
        ("post", "/api/v1/tenants/{tenant}/tokens", {"role": "viewer"}),
        ("post", "/api/v1/login-links", None),
        ("post", "/api/v1/jobs/{name}/resume", None),
        ("post", "/api/v1/jobs", {"file": "/nowhere.py"}),
    ):
        answer = stage.api.request(method, path.format(name="click-joins", tenant="ads"), json=table)
        codes = described["paths"][path][method]["responses"]
        found = codes["4XX" if answer.status_code >= 400 else str(answer.status_code)]
        assert list(misfits(answer.json(), found["content"]["application/json"]["schema"], described, path)) == []


KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool, "null": type(None),
}  # fmt: skip


def misfits(value: Any, schema: dict[str, Any], described: dict[str, Any], where: str) -> Iterator[str]:
    """Where a value is not as its schema says."""
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(misfits(value, one, described, where)) for one in schema["anyOf"]):
            yield f"{where}: fits nothing"
        return
    if "type" in schema and not isinstance(value, KINDS[schema["type"]]):
        yield f"{where}: {value!r} is no {schema['type']}"
    elif isinstance(value, list):
        for one in value:
            yield from misfits(one, schema.get("items", {}), described, f"{where}[]")
    elif isinstance(value, dict):
        parts = schema.get("properties", {})
        other = schema.get("additionalProperties")
        yield from (f"{where}: no {name}" for name in set(schema.get("required", ())) - value.keys())
        for name, one in value.items():
            if name not in parts and other is None:
                yield f"{where}: {name} is not described"
            inner = parts.get(name, other if isinstance(other, dict) else {})
            yield from misfits(one, inner, described, f"{where}.{name}")


def test_stream_tells_of_a_round_and_ends_with_the_service(stage):
    with stage.api.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event")) == "event: hello"
        stage.now_s += ROUND_S
        stage.show.service.round()
        assert next(line for line in lines if line.startswith("event")) == "event: round"


@pytest.mark.parametrize("query", ["range_s=0", "range_s=nan", "points=100000", "points=x"])
def test_odd_ranges_are_refused(stage, query):
    assert stage.api.get(f"/api/v1/cluster?{query}").status_code == 422


# -- who gets in


def test_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(stage):
    code = stage.app.state.sessions.new_code(Identity("ada"))
    answer = httpx.post(f"{stage.url}/api/v1/session", json={"secret": code}, trust_env=False)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    again = httpx.post(f"{stage.url}/api/v1/session", json={"secret": code}, trust_env=False)
    assert again.status_code == 401 and "set-cookie" not in again.headers


def test_change_by_cookie_needs_the_secret_of_the_session(stage, browser):
    path = "/api/v1/jobs/page-load"
    assert browser.patch(path, json={"share": 2}, headers={"X-CSRF-Token": ""}).status_code == 403
    assert browser.patch(path, json={"share": 2}, headers={"Origin": "http://elsewhere.example"}).status_code == 403
    assert stage.show.service.status().jobs["page-load"].share == 1
    assert browser.patch(path, json={"share": 2}, headers={"Origin": stage.url}).status_code == 200
    assert stage.show.service.status().jobs["page-load"].share == 2


def test_every_change_is_kept_with_its_person_and_way(stage, browser):
    browser.post("/api/v1/jobs/bid-floor/pause")
    stage.api.post("/jobs/bid-floor/resume")
    kept = [
        (one["who"], one["via"], one["what"]) for one in stage.get("/cluster")["changes"] if one["job"] == "bid-floor"
    ]
    (_, via, _), *live = kept
    assert (via, live) == ("files", [("ada", "dashboard", "pause"), ("grace", "command line", "resume")])
    assert [one.what for one in Changes(stage.home.path, 100).all("bid-floor")][1:] == ["pause", "resume"]


@pytest.mark.parametrize(
    "path", ["/api/v1/cluster", "/api/v1/jobs", "/api/v1/events", "/api/v1/openapi.json", "/status"]
)
def test_nothing_is_told_without_token_or_cookie(stage, path):
    assert httpx.get(stage.url + path, trust_env=False).status_code == 401


def test_pages_may_load_nothing_but_files_of_the_service(stage):
    answer = httpx.get(stage.url, trust_env=False)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    page = answer.text
    assert "<style" not in page and "onclick" not in page and "style=" not in page


@pytest.mark.parametrize(
    "path", ["/web/../app.py", "/web/%2e%2e/app.py", "/web/none.js", "/web/vendor", "/web/vendor/LICENSE-htm"]
)
def test_no_other_file_is_served(stage, path):
    assert httpx.get(stage.url + path, trust_env=False).status_code in (401, 404)


def test_assets_refer_to_nothing_beyond_the_service():
    for file in (one for one in WEB.iterdir() if one.is_file()):
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text, file.name


class Hand:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_failed_logins_have_to_wait_valid_ones_do_not_and_codes_and_sessions_end():
    clock = Hand()
    sessions = Sessions(ServiceSettings(login_failures=3, login_link_s=100, session_h=1), TOKEN, clock)
    code = sessions.new_code(Identity("ada"))
    for _ in range(3):
        with pytest.raises(LoginError, match="headgate ui"):
            sessions.log_in("guess")
    with pytest.raises(TooManyLoginsError, match="try again in 60 s"):
        sessions.log_in("guess")
    cookie, session = sessions.log_in(code)
    assert sessions.find(cookie) == session and session.identity.who == "ada"
    assert sessions.log_in(TOKEN)[1].identity.who == "token"
    clock.now_s = 61
    with pytest.raises(LoginError, match="headgate ui"):
        sessions.log_in(code)
    late = sessions.new_code(Identity("ada"))
    clock.now_s += 101
    with pytest.raises(LoginError):
        sessions.log_in(late)
    clock.now_s += 3600
    assert sessions.find(cookie) is None


def test_wrong_logins_are_refused_with_429_after_a_few(tmp_path, stage):
    with closing(listen()) as listening, served(app_of(stage.show.service, TOKEN), listening) as url:
        codes = [
            httpx.post(f"{url}/api/v1/session", json={"secret": "x"}, trust_env=False).status_code for _ in range(6)
        ]
        right = httpx.post(f"{url}/api/v1/session", json={"secret": TOKEN}, trust_env=False)
    assert codes == [401] * 5 + [429]
    assert right.status_code == 200


def test_ui_prints_a_link_that_logs_in(stage, capsys):
    assert run_command(["ui", "--print", "--home", str(stage.home.path)]) == 0
    code = capsys.readouterr().out.strip().partition("#login=")[2]
    answer = httpx.post(f"{stage.url}/api/v1/session", json={"secret": code}, trust_env=False)
    assert answer.json()["who"]


def test_line_at_the_start_has_a_link_that_logs_in_once(tmp_path):
    codes: list[int] = []

    class Reader(Notes):
        def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
            if text.startswith("dashboard: "):
                url, _, code = text.split()[1].partition("/#login=")
                codes.extend(
                    httpx.post(f"{url}/api/v1/session", json={"secret": code}, trust_env=False).status_code
                    for _ in range(2)
                )

    plan = Plan(Home(tmp_path / "home"), read(job_file(tmp_path)).jobs, Loop(Settings()), SparkSettings(), for_s=0.0)
    run(plan, FakeEngine, Reader())
    assert codes == [200, 401]


def test_changes_survive_a_cut_off_line_and_stay_few(tmp_path):
    kept = Changes(tmp_path, 3)
    for number in range(5):
        kept.add(Change(float(number), "ada", "dashboard", "orders", f"share {number}"))
    path = tmp_path / "changes.jsonl"
    assert len(path.read_text().splitlines()) == 3
    path.write_text(path.read_text() + '{"at_s": 9.0, "wh')
    assert [one.what for one in Changes(tmp_path, 3).all()] == ["share 2", "share 3", "share 4"]
    assert json.loads(path.read_text().splitlines()[0])["who"] == "ada"
