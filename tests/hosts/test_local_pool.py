"""What a pool of processes does with its files, without any process."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.core.hosts import HostPhase, HostType
from headgate.errors import EngineError
from headgate.spark.hosts.pool import LocalPool

KIND = HostType("small", cores=1, memory_mb=1024, price=1.0, btu_s=60)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPool:
    monkeypatch.setattr(LocalPool, "_launch", lambda *_: None)
    return LocalPool(tmp_path)


def test_lease_that_cannot_be_written_down_is_none_and_told_in_a_sentence(pool: LocalPool, tmp_path: Path) -> None:
    (tmp_path / "leases").rmdir()
    (tmp_path / "leases").touch()
    with pytest.raises(EngineError, match=r"leases/a\.json: cannot be written: Not a directory$"):
        pool.lease("a", KIND)


def test_host_whose_worker_never_was_there_has_failed(pool: LocalPool) -> None:
    pool.lease("a", KIND)
    host = pool.hosts()["a"]
    assert (host.phase, host.reason) == (HostPhase.FAILED, "its worker died")
    pool.release("a")
    assert not pool.hosts()
