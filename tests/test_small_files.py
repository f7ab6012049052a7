"""Small files of a home that are empty, cut off, overwritten or gone: Headgate goes on, or tells it in one line. No Spark runs here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import headgate
from headgate.core.hosts import HostType
from headgate.errors import EngineError, HeadgateError, InputError
from headgate.jobfile import JobRequest
from headgate.server.changes import Change, Changes
from headgate.server.client import Client
from headgate.server.dead_letters import DeadLetters
from headgate.server.home import Address, Home
from headgate.server.registry import Registered, Registry
from headgate.server.removed import RemovedJobs
from headgate.server.tenants import Tenant, Tenants
from headgate.spark.epochs.timeline import Timeline
from headgate.spark.hosts.pool import LocalPool
from headgate.spark.measuring import progress
from headgate.spark.sinks.files import claimed
from headgate.spark.sinks.writing import JobStart, Writing, begin_start
from headgate.spark.sources import kafka_offsets, levers, ticks
from headgate.spark.sources.delta import BEGUN as DELTA_BEGUN
from headgate.spark.sources.delta import PLANNED as DELTA_PLANNED
from headgate.spark.sources.delta import Begun, DeltaPosition, begun_in, planned_in
from headgate.spark.sources.kafka_reader import BEGUN as KAFKA_BEGUN
from headgate.spark.sources.kafka_reader import PLANNED as KAFKA_PLANNED
from headgate.spark.sources.kafka_reader import marks_in as kafka_marks_in
from headgate.spark.sources.kafka_reader import remember as remember_kafka
from headgate.spark.sources.load import BEGAN, began_s
from headgate.spark.sources.redis import BEGUN, PLANNED, late_losses, marks_in, remember, remember_late_loss
from headgate.spark.sources.redis_entries import EntryRange, StreamPosition
from headgate.state import durable
from headgate.state.checkpoint import Checkpoint, schema_in
from headgate.state.hosting import PLACEMENT, read_placement
from headgate.state.inspect import OPENS, Opens, place_of, read_opens
from headgate.state.location import Location
from headgate.state.placement.slices import Placement
from tests.state.builders import counting

KIND = HostType("small", cores=1, memory_mb=1024, price=1.0, btu_s=60)
NAME = "ördérs"
"""Not ASCII, so that a cut or an overwritten byte can hit the middle of a letter."""
REGISTERED = Registered(JobRequest(f"{NAME}.py", NAME), live=True)


@dataclass(frozen=True, slots=True)
class Small:
    """A kind of small file: how it comes to be, and what is done with it later."""

    write: Callable[[Path], object]
    file: str
    """As a pattern, relative to the home."""
    use: Callable[[Path], object]


def address(home: Path) -> None:
    Home(home).new_token()
    Home(home).address.write_bytes(msgspec.json.encode(Address("http://127.0.0.1:9", os.getpid())))


def removed(home: Path) -> None:
    jobs = RemovedJobs(home, 24.0)
    jobs.move(NAME, jobs.begin(REGISTERED, 1e9))


def look_at_removed(home: Path) -> None:
    jobs = RemovedJobs(home, 24.0)
    jobs.recover([])
    jobs.all()
    jobs.expire(2e9)
    jobs.find(NAME)


def leased(home: Path) -> None:
    pool = LocalPool(home / "hosts")
    pool.lease("a", KIND)
    pool.lease("b", KIND)


def look_at_hosts(home: Path) -> None:
    pool = LocalPool(home / "hosts")
    assert "b" in pool.hosts(), "a damaged lease takes no other one along"
    pool.release("a")
    pool.close()


def planned(home: Path) -> None:
    log = home / "checkpoint"
    for folder in ("offsets", "commits"):
        (log / folder).mkdir(parents=True)
    (log / "metadata").write_text('{"id":"x"}')
    (log / "offsets" / "0").write_text('v1\n{}\n{"rows":7}')
    Timeline(home).begin(0)


def resume(home: Path) -> None:
    timeline = Timeline(home)
    timeline.restore()
    timeline.begin(0)


def keyed(home: Path) -> None:
    Checkpoint(Location.of(home), counting().schema).begin(0, 4)


def go_on_keyed(home: Path) -> None:
    schema_in(Location.of(home))
    Checkpoint(Location.of(home), counting().schema).start_at(1)


def opened(home: Path) -> None:
    path = place_of(home, "count") / OPENS
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(Opens(3, {"local": 4}, {"local": 9})))


def placed(home: Path) -> None:
    (home / PLACEMENT).write_bytes(msgspec.json.encode(Placement.first(4, {"a": 1.0, "b": 1.0}, 1, ("a", "b"))))


def late(home: Path) -> None:
    remember_late_loss(home, EntryRange("orders", "0-0", "9-0", 10), 1200, "lane")


def tick(home: Path) -> dict[str, int]:
    return ticks.TickReader({"place": str(home)}).latestOffset({"tick": 6}, None)  # type: ignore[arg-type]


WRITING = Writing(JobStart("one", 1))
KAFKA = {kafka_offsets.Partition("orders", 0): kafka_offsets.PartitionPosition(7)}
SMALL = {
    "jobs": Small(
        lambda home: Registry(home / "jobs.json").put(NAME, REGISTERED),
        "jobs.json",
        lambda home: Registry(home / "jobs.json").put("other", REGISTERED),
    ),
    "changes": Small(
        lambda home: Changes(home, 10).add(Change(1e9, NAME, "dashboard", NAME, "pause")),
        "changes.jsonl",
        lambda home: Changes(home, 10).add(Change(2e9, NAME, "dashboard", NAME, "resume")),
    ),
    "tenants": Small(
        lambda home: Tenants(home, lambda: 1e9).put(Tenant(NAME)),
        "tenants.json",
        lambda home: Tenants(home, lambda: 1e9).put(Tenant("other")),
    ),
    "address": Small(address, "server.json", lambda home: Client(Home(home)).status()),
    "token": Small(address, "token", lambda home: Client(Home(home)).status()),
    "removed": Small(removed, "removed/*/job.json", look_at_removed),
    "dead letters": Small(
        lambda home: DeadLetters(home, 1.0)._remember([f"/{NAME}"]),
        "dead_letters.json",
        lambda home: DeadLetters(home, 1.0).clean(0.0),
    ),
    "master": Small(leased, "hosts/master.json", look_at_hosts),
    "lease": Small(leased, "hosts/leases/a.json", look_at_hosts),
    "life": Small(begin_start, "life.json", begin_start),
    "levers": Small(lambda home: levers.write(home, levers.Levers(3, 100)), levers.FILE, levers.read),
    "progress": Small(
        lambda home: progress.save(home, progress.Progress(3, {NAME: 1.0}, {NAME: 2.0})), progress.FILE, progress.load
    ),
    "epoch": Small(planned, "epochs/*.json", resume),
    "tick": Small(lambda home: ticks.ask(home, 7, 3600.0), ticks.FILE, tick),
    "late losses": Small(late, "lost/*/*", late_losses),
    "redis begun": Small(
        lambda home: remember(home, {NAME: StreamPosition()}, BEGUN), BEGUN, lambda home: marks_in(home, BEGUN)
    ),
    "redis planned": Small(lambda home: remember(home, {NAME: StreamPosition()}), PLANNED, marks_in),
    "kafka begun": Small(
        lambda home: remember_kafka(home, KAFKA, KAFKA_BEGUN),
        KAFKA_BEGUN,
        lambda home: kafka_marks_in(home, KAFKA_BEGUN),
    ),
    "kafka planned": Small(lambda home: remember_kafka(home, KAFKA), KAFKA_PLANNED, kafka_marks_in),
    "delta begun": Small(
        lambda home: (home / DELTA_BEGUN).write_bytes(msgspec.json.encode(Begun("id", 3, True))),
        DELTA_BEGUN,
        begun_in,
    ),
    "delta planned": Small(
        lambda home: (home / DELTA_PLANNED).write_bytes(msgspec.json.encode(DeltaPosition(3))),
        DELTA_PLANNED,
        planned_in,
    ),
    "began": Small(began_s, BEGAN, began_s),
    "operator": Small(keyed, "operator.json", go_on_keyed),
    "opens": Small(opened, "keyed/count/opens.json", lambda home: read_opens(home, "count")),
    "durable": Small(lambda home: durable.open_durable(home, str(home / "there")), durable.FILE, durable.durable_of),
    "placement": Small(placed, PLACEMENT, lambda home: read_placement(Location.of(home))),
    "sink": Small(lambda home: claimed(home, WRITING, 0), "_headgate.json", lambda home: claimed(home, WRITING, 1)),
}


def overwrite(path: Path) -> None:
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[:third] + b"\xff" * third + content[2 * third :])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "0xff": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "0xff within": overwrite,
    "0xff in texts": lambda path: path.write_bytes(re.sub(rb'([a-z]|\xc3.)"', b'\xff"', path.read_bytes())),
    "null": lambda path: path.write_bytes(b"null"),
    "gone": lambda path: path.unlink(),
}


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalPool, "_launch", lambda *_: None)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_damaged_file_is_got_round_or_told_in_one_line(
    small: Small, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    small.write(tmp_path)
    (path,) = tmp_path.glob(small.file)
    damage(path)
    try:
        small.use(tmp_path)
    except HeadgateError as error:
        assert str(error) and "\n" not in str(error)


def test_every_module_that_replaces_files_is_known_here() -> None:
    package = Path(headgate.__file__).parent
    replaces = re.compile(r"\b(files|disk)\.replace\(")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if replaces.search(path.read_text())}
    modules = {
        "server": ("changes", "dead_letters", "home", "registry", "removed", "tenants"),
        "spark/epochs": ("timeline",),
        "spark/hosts": ("machines", "pool"),
        "spark/keyed": ("hosts",),
        "spark/measuring": ("progress",),
        "spark/sinks": ("files",),
        "spark/sources": ("delta", "kafka_reader", "levers", "load", "redis", "ticks"),
        "state": ("durable", "location"),
    }
    written_at_each_start = {"spark/processes/nursery.py", "spark/session.py"}
    for_people = {
        "spark/epochs/lanes.py",
        "spark/adoption/adopt.py",
        "spark/adoption/checkpoint.py",
        "bench/kafka_writer.py",
        "bench/record.py",
        "bench/tables/writer.py",
    }
    known = {f"{folder}/{name}.py" for folder, names in modules.items() for name in names}
    assert found == known | written_at_each_start | for_people


# -- how each of them is got round


def test_damaged_lease_is_set_aside_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leased(tmp_path)
    path = tmp_path / "hosts" / "leases" / "a.json"
    path.write_bytes(b"")
    pool = LocalPool(tmp_path / "hosts")
    assert pool.hosts().keys() == {"b"}
    (kept,) = path.parent.glob("a.json.damaged-*")
    said = capsys.readouterr().err
    assert re.fullmatch(rf'headgate: host "a" ends: its lease is damaged \(.*\) and kept as {kept}\n', said)


def test_damaged_file_of_the_master_names_the_remedy(tmp_path: Path) -> None:
    leased(tmp_path)
    (tmp_path / "hosts" / "master.json").write_bytes(b"{")
    with pytest.raises(EngineError, match=r'hosts/master.json" is damaged .*; remove the file: the next start ends'):
        LocalPool(tmp_path / "hosts")


def test_hosts_whose_secret_is_gone_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leased(tmp_path)
    (tmp_path / "hosts" / "master.json").unlink()
    ended: list[object] = []
    monkeypatch.setattr(LocalPool, "_running", lambda _: ([] if ended else ["master"], {} if ended else {"a": ["one"]}))
    monkeypatch.setattr(LocalPool, "_end", lambda _, processes: ended.extend(processes))
    LocalPool(tmp_path / "hosts")
    assert ended == ["master", "one"]


@pytest.mark.parametrize("damage", ["empty", "gone"])
def test_lost_tick_is_due_once(tmp_path: Path, damage: str) -> None:
    ticks.ask(tmp_path, 7, 3600.0)
    DAMAGES[damage](tmp_path / ticks.FILE)
    reader = ticks.TickReader({"place": str(tmp_path)})
    assert reader.latestOffset({"tick": 6}, None) == {"tick": 7}  # type: ignore[arg-type]
    assert reader.latestOffset({"tick": 7}, None) == {"tick": 7}  # type: ignore[arg-type]


def test_late_losses_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    late(tmp_path)
    remember_late_loss(tmp_path, EntryRange("orders", "9-0", "12-0", 3), 2, "lane")
    (path,) = tmp_path.glob("lost/*/9-0@*")
    path.write_bytes(b"")
    assert list(late_losses(tmp_path).values()) == [1200]


def test_damaged_start_of_a_load_is_told(tmp_path: Path) -> None:
    (tmp_path / BEGAN).write_bytes(b"")
    with pytest.raises(EngineError, match=r'began" is damaged .*; remove the job and submit it again'):
        began_s(tmp_path)


def test_damaged_token_is_told_while_the_service_runs(tmp_path: Path) -> None:
    address(tmp_path)
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r'token" holds no token; restart the service'):
        Client(Home(tmp_path)).status()
