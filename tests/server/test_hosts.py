"""`headgate run --hosts`: hosts for a service, and what is refused; engine and pool are those without Spark."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headgate.cli import run as run_module
from headgate.cli import run_command
from headgate.config import HostSettings, SparkSettings
from headgate.config.settings import settings_from
from headgate.core.hosts import HostType
from headgate.hosts.leases import Budget
from headgate.hosts.provision import Terms
from headgate.jobfile import read
from headgate.journal import SqliteJournal
from headgate.server.home import Home
from headgate.server.run import Plan, run
from headgate.server.service import Loop
from headgate.server.status import Summary
from headgate.sim.pool import SimulatedPool
from tests.server.conftest import Notes
from tests.server.fake import FakeEngine, job_file

KIND = HostType("local", cores=2, memory_mb=1024, price=1.5, btu_s=600, startup_s=0.1)
LOOP = settings_from({"round_s": 0.1, "warm_up_s": 0.1, "window_s": 1, "settle_min_s": 0.2, "settle_max_s": 0.5})


class FakePool(SimulatedPool):
    """Hosts that are there at once; remembers whether they were ended."""

    def __init__(self, home: Path) -> None:
        super().__init__(time.time, 0)
        self.closed = False

    master_url = "spark://nowhere:1"

    def application(self, terms: Terms) -> dict[str, str]:
        return {"hosts": str(terms.budget.most_hosts)}

    def close(self) -> None:
        self.closed = True


def ran(tmp_path: Path, pools: list[FakePool], engines: list[tuple[object, ...]], notes: Notes) -> Summary:
    def open_pool(home: Path, settings: HostSettings) -> FakePool:
        pools.append(FakePool(home))
        return pools[-1]

    def open_engine(*given: object) -> FakeEngine:
        engines.append(given)
        return FakeEngine()

    plan = Plan(
        home=Home(tmp_path / "home"),
        requests=read(job_file(tmp_path)).jobs,
        loop=Loop(LOOP),
        spark=SparkSettings(),
        for_s=1.5,
        hosts=Terms((KIND,), Budget(3), HostSettings(provision_s=0.2)),
    )
    return run(plan, open_engine, notes, open_pool=open_pool)


def test_service_leases_a_host_connects_to_its_master_and_gives_all_back(tmp_path: Path) -> None:
    pools: list[FakePool] = []
    engines: list[tuple[object, ...]] = []
    notes = Notes()
    done = ran(tmp_path, pools, engines, notes)
    (pool,), (engine,) = pools, engines
    assert engine[2:] == ("spark://nowhere:1", {"hosts": "3"})
    assert pool.closed
    assert done.status.leases is not None
    assert [(host.name, host.phase) for host in done.status.leases.hosts] == [("leased-1", "ready")]
    assert done.status.leases.bill.cost == 1.5
    assert ("", "leased-1: leased for 1.5 per 10 min: there is no other that works") in notes.told
    with SqliteJournal(tmp_path / "home" / "journal.sqlite", read_only=True) as journal:
        assert journal.about()["bill"].startswith("1 BTUs paid, 1.5 in money")


def test_status_of_a_journal_has_the_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(tmp_path, [], [], Notes())
    assert run_command(["status", "--home", str(tmp_path / "home")]) == 3
    assert "hosts: 1 BTUs paid, 1.5 in money" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ["--hosts", "cloud:3"],
            '--hosts is "cloud:3"; it must be local:N or executors:N with the most hosts to lease',
        ),
        (["--hosts", "local:many"], '--hosts is "local:many"; it must be local:N'),
        (["--hosts", "local:0"], "the budget allows 0 hosts; jobs need at least 1"),
        (["--hosts", "local:3", "--master", "spark://x:1"], "take out --master, or --hosts"),
        (["--hosts", "executors:many", "--master", "spark://x:1"], '--hosts is "executors:many"; it must be local:N'),
        (
            ["--hosts", "executors:3"],
            "--hosts executors:3 leases hosts of a cluster; give its master with --master URL",
        ),
        (["--hosts", "executors:3", "--master", "local[4]"], "give its master with --master URL"),
        (["--provisioner", "btu"], "--provisioner btu decides about leased hosts; give --hosts as well"),
        (["--hosts", "local:3", "--provisioner", "best"], "--provisioner"),
        (
            ["--hosts", "local:3", "--provisioner", "btu", "--policy", "threshold"],
            "--provisioner btu decides about lanes alone; take out --policy threshold",
        ),
        (["--hosts", "command:"], '--hosts is "command:"; it must be local:N'),
        (["--hosts", "command:lease.sh"], "--hosts command:lease.sh leases hosts of a cluster"),
        (
            ["--hosts", "command:nowhere.sh", "--master", "spark://x:1", "--no-restart"],
            '--hosts: "nowhere.sh" does not exist; give an executable that leases and releases machines',
        ),
        (["--hosts", "local:3", "--set", "btu_s=0"], "setting \"btu_s\" is '0'; it must be at least 1"),
        (["--hosts", "local:3", "--set", "btu_s=-60"], "setting \"btu_s\" is '-60'; it must be at least 1"),
        (["--hosts", "local:3", "--set", "host_price=-1"], "setting \"host_price\" is '-1'; it must be at least 0"),
        (
            ["--hosts", "local:3", "--set", "most_per_hour=5"],
            'the budget is 5 per hour, but one host of the cheapest type, "local", costs 6; give at least that',
        ),
        (["--hosts", "local:3", "--set", "host_cores=0"], "setting \"host_cores\" is '0'; it must be at least 1"),
    ],
)
def test_hosts_that_cannot_be_are_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_module, "open_engine", FakeEngine)
    assert run_command(["run", str(job_file(tmp_path)), *given]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and sentence in err
