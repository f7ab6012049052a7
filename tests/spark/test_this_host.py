"""Which host of a cluster a process runs on, and its local disk."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.spark.epochs.lanes import LaneError
from headgate.spark.hosts import this_host
from headgate.spark.hosts.this_host import here, local_root, own_names, store_folder

ASK = "from headgate.spark.hosts.this_host import here; print(here(('10.9.9.1', '10.9.9.2')))"


@pytest.fixture(autouse=True)
def _as_if_new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins as a process does that has asked nothing yet."""
    for variable in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(variable, raising=False)
    this_host._named.cache_clear()
    yield
    this_host._named.cache_clear()


def test_a_worker_is_on_the_host_that_its_executor_was_started_for() -> None:
    # What an executor is, as far as its children can see: a process with this command line.
    inside = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}])"
    command = [sys.executable, "-c", inside, "org.apache.spark.executor.CoarseGrainedExecutorBackend"]
    told = subprocess.run([*command, "--hostname", "10.9.9.2"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "10.9.9.2"


def test_a_host_is_known_by_the_address_of_an_interface_although_its_own_name_is_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Debian's /etc/hosts: the machine's own name resolves to 127.0.1.1, which no one else can reach.
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    (address,) = [name for name in own_names() if name == "127.0.0.1"][:1]
    assert here(("10.77.0.11", address, "10.77.0.13")) == address


def test_what_the_operator_says_comes_before_what_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.12")
    assert here(("127.0.0.1", "127.0.0.12")) == "127.0.0.12"


def test_a_host_that_cannot_be_told_is_an_error() -> None:
    with pytest.raises(LaneError, match="none or several of somewhere, else fit its addresses; set SPARK_LOCAL_IP"):
        here(("somewhere", "else"))


def test_several_hosts_that_fit_are_an_error() -> None:
    with pytest.raises(LaneError, match="cannot tell which host"):
        here(("127.0.0.1", socket.gethostname()))


def test_stores_outlive_the_executor_in_its_local_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/spark-1/executor-2/blockmgr-3,/elsewhere/blockmgr-4")
    assert local_root() == tmp_path
    assert store_folder("headgate-1/job/count", "10.0.0.1") == f"{tmp_path}/headgate-1/job/count/10.0.0.1"
    assert store_folder("/home/store", "10.0.0.1") == "/home/store/10.0.0.1"
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    with pytest.raises(LaneError, match="set state_dir"):
        store_folder("headgate-1/job/count", "10.0.0.1")
