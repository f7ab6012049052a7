"""A service that loses its engine, or is killed, is started again by its parent; signals reach it once, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from headgate.cli import run as run_module
from headgate.cli import run_command
from headgate.server.client import Client
from headgate.server.home import Home
from tests.server.fake import FakeEngine, job_file
from tests.server.test_cluster_commands import QUICK, ROOT, await_true, running

RESTARTS = ("--set", "restart_s=0.1")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    job_file(tmp_path)
    return tmp_path


@pytest.fixture
def home(place: Path) -> Home:
    return Home(place / ".headgate")


def service_of(home: Home) -> int:
    address = home.read_address()
    assert address is not None
    return address.pid


def await_another(home: Home, before: int) -> int:
    await_true(lambda: (found := home.read_address()) is not None and found.pid != before)
    return service_of(home)


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[str, str]:
    process.send_signal(number)
    return process.communicate(timeout=90)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_lost_engine_is_replaced_with_all_jobs(place: Path, home: Home) -> None:
    with running(place, "orders.py", *RESTARTS) as process:
        client = Client(home)
        client.change("orders", {"intent": {"latency": "9s"}})
        first = service_of(home)
        (place / "lost").write_text("Java was killed")
        await_another(home, first)
        assert client.status().jobs["orders"].intent == "9 s"
        assert client.status().jobs["orders"].state == "running"
        out, err = ended(process)
    assert process.returncode == 0
    assert err.startswith(
        "headgate: Java was killed\nheadgate: the service ended with exit code 75; it starts again in"
    )
    assert out.count("engine closed") == 1, "a lost engine has nothing to close"
    assert out.count("ran for") == 1


def test_killed_service_leaves_nothing_and_is_started_again(place: Path, home: Home) -> None:
    with running(place, "orders.py", *RESTARTS, HELPER="1000") as process:
        first = service_of(home)
        left = psutil.Process(first).children(recursive=True)
        assert left
        os.kill(first, signal.SIGKILL)
        second = await_another(home, first)
        assert all(is_gone(one.pid) for one in left)
        left = psutil.Process(second).children(recursive=True)
        assert left
        ended(process)
    assert all(is_gone(one.pid) for one in left)


def test_service_ends_with_its_parent(place: Path, home: Home) -> None:
    with running(place, "orders.py") as process:
        service = service_of(home)
        process.kill()
        await_true(lambda: is_gone(service))


def test_job_that_was_removed_stays_removed_after_a_restart(place: Path, home: Home) -> None:
    with running(place, "orders.py", *RESTARTS):
        client, first = Client(home), service_of(home)
        client.remove("orders")
        os.kill(first, signal.SIGKILL)
        await_another(home, first)
        assert client.status().jobs == {}


@pytest.mark.slow
def test_time_to_run_counts_across_restarts(place: Path, home: Home) -> None:
    with running(place, "orders.py", "--for", "5s", "--json", *RESTARTS) as process:
        os.kill(service_of(home), signal.SIGKILL)
        out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["seconds"] < 4.9


def test_without_restarts_a_lost_engine_ends_the_command(place: Path, home: Home) -> None:
    with running(place, "orders.py", "--no-restart") as process:
        (place / "lost").write_text("Java was killed")
        _, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (75, "headgate: Java was killed\n")
    assert not home.address.exists()


def test_bad_input_is_told_once_and_never_tried_again(place: Path) -> None:
    job_file(place, text="1 / 0\n")
    with running(place, "orders.py", *RESTARTS) as process:
        _, err = process.communicate(timeout=90)
    assert process.returncode == 2
    assert err.count("\n") == 1 and "ZeroDivisionError" in err


def test_engine_that_does_not_start_the_first_time_is_told_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def open_engine(*_: object) -> FakeEngine:
        from headgate.errors import EngineError

        raise EngineError("Spark did not start: no Java")

    monkeypatch.setattr(run_module, "open_engine", open_engine)
    assert run_command(["run", "orders.py", "--no-restart", *QUICK]) == 1
    assert capfd.readouterr().err == "headgate: Spark did not start: no Java\n"


def test_stop_while_waiting_for_the_next_start_ends_the_command(place: Path, home: Home) -> None:
    with running(place, "orders.py", "--set", "restart_s=600", "--set", "restart_limit_s=600") as process:
        os.kill(service_of(home), signal.SIGKILL)
        assert process.stderr is not None
        assert "ended by SIGKILL; it starts again in" in process.stderr.readline()
        _, err = ended(process, signal.SIGINT)
    assert (process.returncode, err) == (0, "")


def test_home_is_held_while_a_service_waits_for_its_next_start(
    place: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(place, "orders.py", "--set", "restart_s=600", "--set", "restart_limit_s=600") as process:
        os.kill(service_of(home), signal.SIGKILL)
        assert process.stderr is not None
        process.stderr.readline()
        assert run_command(["run", "orders.py", "--no-restart", *QUICK]) == 2
        assert 'Headgate runs in ".headgate" already' in capsys.readouterr().err
        ended(process)


def test_output_on_a_full_device_is_complained_about_once_and_jobs_go_on(place: Path, home: Home) -> None:
    command = [sys.executable, "-m", "tests.server.fake_run", "run", "orders.py", *QUICK]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            await_true(lambda: home.read_address() is not None)
            await_true(lambda: Client(home).status().at_s is not None)
            client = Client(home)
            first = client.status().at_s
            await_true(lambda: client.status().at_s != first)
            assert client.status().jobs["orders"].state == "running"
            _, err = ended(process)
        finally:
            process.kill()
    assert err.count("the output cannot be written (No space left on device); the jobs go on without it") == 1


# -- one service for questions that change nothing


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    place = tmp_path_factory.mktemp("calm")
    job_file(place)
    (place / ".headgate").mkdir(mode=0o755)
    with running(place, "orders.py"):
        yield Home(place / ".headgate")


def test_deleted_address_is_written_again(calm: Home) -> None:
    before = json.loads(calm.address.read_text())
    calm.address.unlink()
    await_true(calm.address.exists)
    assert json.loads(calm.address.read_text()) == before


def test_health_is_told_without_a_token_while_the_loop_turns(calm: Home) -> None:
    address = calm.read_address()
    assert address is not None
    await_true(lambda: httpx.get(f"{address.url}/health").status_code == 200)


def test_everything_the_service_writes_is_for_its_user_alone(calm: Home) -> None:
    assert calm.path.stat().st_mode & 0o777 == 0o700
    kept = [calm.address, calm.token, calm.lock, calm.jobs, calm.journal]
    assert {path.stat().st_mode & 0o077 for path in kept} == {0}
