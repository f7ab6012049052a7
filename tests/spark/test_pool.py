"""The contract of a pool on real Spark workers, and what it does when processes are killed."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from headgate.core.hosts import HostPhase, HostType
from headgate.spark.hosts.pool import LocalPool
from tests.contract.pool_promises import PoolPromises, World, phase
from tests.spark.strangers import heard_by_stranger, listening

pytestmark = pytest.mark.slow

KIND = HostType("small", cores=1, memory_mb=1024, price=1.0, btu_s=60)


def wait_until(holds: Callable[[], bool], within_s: float = 180.0) -> None:
    """Looks again and again; the machine may be busy."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def pool(home: Path) -> Iterator[LocalPool]:
    opened = LocalPool(home)
    yield opened
    opened.close()
    assert processes_of(home) == []


@pytest.fixture
def world(pool: LocalPool) -> Iterator[World]:
    yield World(pool, wait_until)
    for name in pool.hosts():
        pool.release(name)
    wait_until(lambda: not pool.hosts())


def processes_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            ours = any(str(home) in argument for argument in process.cmdline())
            if ours and process.name() == "java" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def workers(home: Path) -> list[psutil.Process]:
    return [one for one in processes_of(home) if "org.apache.spark.deploy.worker.Worker" in one.cmdline()]


class TestLocalPool(PoolPromises):
    """All promises of a pool."""


def ready(pool: LocalPool, *names: str) -> None:
    wait_until(
        lambda: {name: host.phase for name, host in pool.hosts().items()} == dict.fromkeys(names, HostPhase.READY)
    )


def test_worker_that_is_killed_is_reported_and_can_be_given_back(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    (worker,) = workers(home)
    worker.kill()
    wait_until(lambda: phase(world, "a") is HostPhase.FAILED)
    assert pool.hosts()["a"].reason == "its worker died"
    pool.release("a")
    wait_until(lambda: not pool.hosts())


def test_pool_that_is_opened_again_finds_its_hosts_and_leases_none_twice(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    before = [one.pid for one in workers(home)]
    again = LocalPool(home)  # as after kill -9: nobody closed the first one
    again.lease("a", KIND)
    assert list(again.hosts()) == ["a"] and again.hosts()["a"].phase is HostPhase.READY
    assert [one.pid for one in workers(home)] == before


def test_lease_that_was_only_intended_is_carried_out_by_whoever_comes_next(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    path = home / "leases" / "a.json"
    row = json.loads(path.read_text()) | {"name": "b", "number": 2, "address": "127.0.0.12", "started": False}
    (home / "leases" / "b.json").write_text(json.dumps(row))
    again = LocalPool(home)
    ready(again, "a", "b")
    assert len(workers(home)) == 2


def test_worker_that_nobody_leased_is_ended(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    (home / "leases" / "a.json").unlink()
    assert not pool.hosts()
    wait_until(lambda: not workers(home))


def test_master_that_is_killed_comes_back_and_its_workers_find_it(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    (worker,) = workers(home)
    (master,) = [one for one in processes_of(home) if one.pid != worker.pid]
    master.kill()
    wait_until(lambda: pool.hosts() is not None and pool._registered() is None)
    assert phase(world, "a") is HostPhase.READY  # what runs on it goes on
    wait_until(lambda: bool(pool.hosts()) and pool._registered() == frozenset(["127.0.0.11"]))
    assert phase(world, "a") is HostPhase.READY
    assert [one.pid for one in workers(home)] == [worker.pid]
    assert master.pid not in [one.pid for one in processes_of(home)]


def test_other_user_sees_nothing_on_the_pages_of_master_and_workers(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    pages = [address for address in listening(processes_of(home)) if answers_http(address)]
    assert {address for address, _ in pages} == {"127.0.0.1", "127.0.0.11"}
    for address, port in pages:
        for path in ("", "json/", "logPage/", "app/kill/", "workers/kill/"):
            assert httpx.get(f"http://{address}:{port}/{path}").status_code == 403


def answers_http(address: tuple[str, int]) -> bool:
    try:
        return bool(httpx.get("http://{}:{}/".format(*address), timeout=5).status_code)
    except httpx.HTTPError:
        return False


def test_driver_without_the_secret_is_not_let_in(world, pool):
    """An application that was started by another user, who cannot read the secret."""
    body = b"hello"
    request = struct.pack(">BqI", 3, 1, len(body)) + body  # an RpcRequest of Spark's network layer
    port = int(pool.master_url.rsplit(":", 1)[1])
    wait_until(lambda: pool._registered() is not None)
    assert b"Unknown challenge message" in heard_by_stranger(port, struct.pack(">Q", len(request) + 8) + request, 60)


def test_what_a_pool_keeps_on_file_is_for_its_user_only(world, pool, home):
    pool.lease("a", KIND)
    ready(pool, "a")
    kept = [home / "spark.conf", home / "master.json", home / "master.log", home / "work" / "a" / "worker.log"]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}


def test_logs_of_hosts_that_were_released_long_ago_go(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "work" / name).mkdir(parents=True)
    pool = LocalPool(tmp_path, released_logs=1)
    try:
        assert len(list((tmp_path / "work").iterdir())) == 1
    finally:
        pool.close()
