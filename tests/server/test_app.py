"""The API as a client on the same machine sees it, over a real loopback socket."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import product
from pathlib import Path

import httpx
import msgspec
import pytest
import uvicorn

from headgate.cli import run_command
from headgate.config import ServiceSettings
from headgate.errors import EngineError, InputError, NoServiceError
from headgate.jobfile import request_from
from headgate.ports import JobPhase
from headgate.server.app import app_of, listen, served
from headgate.server.client import Client
from headgate.server.home import Home
from tests.server.conftest import Bench
from tests.server.fake import job_file


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def url(bench: Bench, home: Home) -> Iterator[str]:
    """A service that answers in its home."""
    with (
        closing(listen()) as listening,
        served(app_of(bench.service, home.new_token()), listening) as url,
        home.announced(url),
    ):
        yield url


@pytest.fixture
def client(url: str, home: Home) -> Client:
    return Client(home)


@pytest.fixture
def api(url: str, home: Home) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {home.read_token()}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as connection:
        yield connection


# -- what can be asked and changed


def test_whole_life_of_a_job(bench, client, tmp_path):
    request = request_from({"file": str(job_file(tmp_path)), "name": "mine", "share": 2})
    assert client.submit(request) == "mine"
    client.change("mine", {"intent": {"latency": "1s"}, "read_limit": 10})
    client.pause("mine")
    job = client.status().jobs["mine"]
    assert (job.state, job.intent, job.share, job.read_limit) == ("paused", "1 s", 2, 10)
    client.resume("mine")
    bench.rounds(4)
    assert client.status().jobs["mine"].met is True
    assert client.remove("mine") == ""
    assert client.status().jobs == {}


def test_status_has_every_field_of_a_recorded_round(bench, api):
    bench.submit()
    bench.rounds(3)
    status = api.get("/status").json()
    recorded = json.loads(json.dumps(status))
    (round_,) = [one for one in bench.journal.rounds() if one.at_s == status["at_s"]]
    for name in ("at_s", "phase", "score", "max_score", "decision"):
        assert recorded[name] == getattr(round_, name)
    for name in type(round_.jobs["orders"]).__slots__:
        assert recorded["jobs"]["orders"][name] == msgspec.to_builtins(getattr(round_.jobs["orders"], name))


def test_story_is_told_with_how_to_show_its_times(bench, client):
    bench.engine.latency_s = 30.0
    bench.submit()
    bench.rounds(8)
    told = client.story("orders")
    assert "missed its intent from the start" in told.lines[0].text
    assert told.about["clock"] == "wall"


def test_answer_is_json_also_when_a_name_has_odd_signs(client):
    with pytest.raises(InputError, match=r'there is no job "a b\?c"'):
        client.pause("a b?c")


# -- refusals


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "sentence"),
    [
        ("POST", "/jobs/order/pause", None, 404, 'there is no job "order". Did you mean "orders"?'),
        ("GET", "/jobs/order/explain", None, 404, 'there is no job "order". Did you mean "orders"?'),
        ("POST", "/jobs", b'{"file": "%s"}', 409, 'there is a job "orders" already'),
        ("POST", "/jobs", b'{"fiel": "x"}', 400, 'Did you mean "file"?'),
        ("POST", "/jobs", b"[]", 400, "it must be a table"),
        ("POST", "/jobs", b"{", 422, "the body of the request is not JSON"),
        ("POST", "/jobs", b"", 422, "the body of the request is not JSON"),
        ("PATCH", "/jobs/orders", b'{"share": 11}', 400, "it must be at most 10"),
        ("PATCH", "/jobs/orders", b'{"intent": {"worth": null}}', 400, "worth is None; it must be a number above 0"),
        ("GET", "/nothing", None, 404, "GET /nothing: Not Found"),
        ("PUT", "/status", None, 405, "PUT /status: Method Not Allowed"),
    ],
)
def test_refusal_is_one_sentence_with_its_code(bench, api, method, path, body, code, sentence):
    bench.submit()
    content = body.replace(b"%s", str(bench.directory / "orders.py").encode()) if body is not None else None
    answer = api.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (code, ["error"])
    assert sentence in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_engine_that_cannot_is_not_the_clients_fault(bench, api, client):
    bench.engine.refuses = "no room"
    answer = api.post("/jobs", json={"file": str(job_file(bench.directory))})
    assert (answer.status_code, answer.json()) == (503, {"error": "no room"})
    with pytest.raises(EngineError, match="no room"):
        client.submit(request_from({"file": str(bench.directory / "orders.py")}))


@pytest.mark.parametrize("file", ["/etc/passwd", "/etc", "/nowhere.py", ""])
def test_file_that_is_no_job_file_gets_a_sentence_and_nothing_of_what_is_in_it(api, file):
    answer = api.post("/jobs", json={"file": file})
    assert answer.status_code == 400
    sentence = answer.json()["error"]
    assert "root" not in sentence and "Traceback" not in sentence and len(sentence) < 200
    assert "there is no file" in sentence or "a job file ends in .py" in sentence


# -- what the exit code of `headgate status` says


def status_of(home: Home, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run_command(["status", "--home", str(home.path)])
    return code, capsys.readouterr().out


def test_exit_code_of_status_says_whether_a_person_should_look(bench, url, home, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    bench.submit()
    bench.submit(name="other")
    bench.rounds(15)
    bench.now_s += 4
    code, out = status_of(home, capsys)
    assert code == 0 and " 2 of 2 jobs meet their intents\n" in out and "problem" not in out
    assert out.count(" 4 s ago ") == 2
    bench.engine.fail("other", "sink down", JobPhase.RETRYING)
    code, out = status_of(home, capsys)
    assert code == 3 and " 1 of 2 jobs meet their intents, 1 retrying\n" in out
    assert " problem: other is retrying\n" in out
    bench.engine.resume("other")
    assert status_of(home, capsys)[0] == 0
    bench.now_s += 41
    code, out = status_of(home, capsys)
    assert code == 3
    assert out.count(" 45 s ago   stale") == 2
    assert " met" not in out and "converged" not in out
    assert "no round has been completed for 45 s" in out


# -- health


def test_health_needs_no_token_and_tells_why_it_is_bad(bench, api):
    del api.headers["Authorization"]
    assert (api.get("/health").status_code, api.get("/health").json()["sentence"]) == (503, "no round yet")
    bench.rounds(1)
    assert (api.get("/health").status_code, api.get("/health").json()["healthy"]) == (200, True)
    bench.engine.gone = "Java was killed"
    assert (api.get("/health").status_code, api.get("/health").json()["sentence"]) == (503, "Java was killed")
    assert api.post("/health").status_code == 401
    assert api.get("/health", headers={"Host": "evil.example"}).status_code == 403


# -- limits


def test_body_that_is_too_large_is_refused_whether_it_says_so_or_not(bench, api):
    large = b" " * (1 << 20) + b"{}"
    headers = {"Content-Type": "application/json"}
    for content in (large, iter([large])):
        answer = api.post("/jobs", content=content, headers=headers)
        assert answer.status_code == 413
        assert "the body of the request is larger than 1,024 KB (setting api_body_kb)" in answer.json()["error"]


def half_open(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
    return connection


def test_half_open_requests_keep_nobody_out_and_are_closed(bench, home):
    limits = ServiceSettings(api_connections=10, api_request_s=1.0)
    with (
        closing(listen()) as listening,
        served(app_of(bench.service, home.new_token(), limits), listening, limits) as url,
        home.announced(url),
    ):
        port = listening.getsockname()[1]
        held = [half_open(port) for _ in range(50)]
        assert Client(home).status().jobs == {}
        for connection in held:
            with connection, suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_api_whose_thread_ended_answers_again(bench, home, monkeypatch):
    runs: list[int] = []
    run = uvicorn.Server.run

    def once(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise SystemExit(3)
        run(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", once)
    told: list[str] = []
    with (
        closing(listen()) as listening,
        served(app_of(bench.service, home.new_token()), listening, tell=told.append) as url,
        home.announced(url),
    ):
        assert Client(home).status().jobs == {}
    assert told == ["thread headgate-api ended (SystemExit: 3); it is started again"]


def test_connections_send_the_body_of_an_answer_without_waiting_for_an_acknowledgement():
    with closing(listen()) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


TOKENS = (None, "", "Bearer", "Bearer wrong", "Basic {}", "{}", "Bearer {}x", "Bearer ä")


def test_nothing_is_told_without_the_token(api, home):
    token = home.read_token()
    del api.headers["Authorization"]
    for path, given in product(("/status", "/docs", "/openapi.json", "/nothing"), TOKENS):
        headers = {} if given is None else {"Authorization": given.format(token).encode()}
        answer = api.get(path, headers=headers)
        assert answer.status_code in (401, 429)
        assert list(answer.json()) == ["error"]
        assert token not in answer.text


def test_page_whose_name_points_at_loopback_is_refused(api):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        assert api.get("/status", headers={"Host": host}).status_code == 403


def test_loopback_by_any_name_is_served(api):
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:80"):
        assert api.get("/status", headers={"Host": host}).status_code == 200


def test_port_that_is_taken_is_one_sentence():
    with closing(listen()) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 cannot be used: Address already in use"):
            listen(port)


def test_server_listens_on_loopback_alone():
    with closing(listen()) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


# -- the home


def test_token_can_be_read_by_its_user_alone_and_is_new_each_time(home):
    home.token.write_text("old")
    home.token.chmod(0o644)
    first = home.new_token()
    assert stat.S_IMODE(home.token.stat().st_mode) == 0o600
    assert len(first) > 40
    assert home.new_token() != first


def test_token_is_not_written_through_a_link(home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    home.token.symlink_to(elsewhere)
    home.new_token()
    assert elsewhere.read_text() == "theirs"
    assert not home.token.is_symlink()


@pytest.mark.parametrize("name", ["token", "server.json", "lock"])
def test_links_in_a_home_are_not_followed(home, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    home.create()
    (home.path / name).symlink_to(elsewhere)
    assert home.read_token() is None
    assert home.read_address() is None
    if name == "lock":
        with pytest.raises(InputError, match="cannot be used as a lock"), home.held():
            pass


def test_home_of_another_user_is_refused(tmp_path, monkeypatch):
    home = Home(tmp_path / "home")
    home.create()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(InputError, match=r'the home ".*" belongs to user \d+, not to you \(user 12345\)'), home.held():
        pass


def test_second_service_in_a_home_is_refused(home):
    sentence = rf'Headgate runs in ".*" already \(process {os.getpid()}\)'
    with home.held(), home.announced("http://127.0.0.1:1"), pytest.raises(InputError, match=sentence), home.held():
        pass
    with home.held():
        pass


def test_home_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be created: Not a directory"), Home(tmp_path / "file" / "home").held():
        pass


@pytest.mark.parametrize(
    "content", [None, "", "{}", '{"url": "http://127.0.0.1:1", "pid": 4194304999}', '{"url": 5, "pid": 1}']
)
def test_client_says_that_nobody_is_there(home, content):
    home.new_token()
    if content is not None:
        home.address.write_text(content)
    with pytest.raises(NoServiceError, match=r'no Headgate runs in ".*"; start one with `headgate run FILE`'):
        Client(home).status()


def test_client_is_not_confused_by_the_address_of_a_dead_process(home):
    process = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(process, 0)
    home.new_token()
    with closing(listen()) as somebody_else:
        port = somebody_else.getsockname()[1]
        home.address.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": process}))
        with pytest.raises(NoServiceError):
            Client(home).status()


def test_client_says_that_nobody_answers(home):
    home.new_token()
    with closing(listen()) as gone:
        port = gone.getsockname()[1]
    home.address.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}))
    with pytest.raises(NoServiceError):
        Client(home).status()
