"""The contract of a pool whose machines an executable leases and releases, and what it says when the executable is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.core.hosts import HostPhase
from headgate.errors import EngineError, InputError
from headgate.spark.hosts.machines import Limits, MachinePool, remembered, runnable
from tests.contract.pool_promises import KIND, PoolPromises, World, phase

MASTER = "spark://master:7077"
COMMAND = """#!/bin/sh
# Machines are files; a machine starts, and leaves, after two more looks at the list.
cd "$(dirname "$0")" && mkdir -p machines && echo "$HEADGATE_MASTER $*" >> calls
case "$1" in
lease) [ -f "machines/$2" ] || echo starting 2 > "machines/$2" ;;
release) if [ -f "machines/$2" ]; then echo releasing 2 > "machines/$2"; fi ;;
list)
  for file in machines/*; do
    [ -f "$file" ] || continue
    read -r state looks < "$file"
    name=$(basename "$file")
    echo "{\\"name\\": \\"$name\\", \\"state\\": \\"$state\\", \\"address\\": \\"10.0.0.$name\\"}"
    case "$state$looks" in
    starting0) echo ready 0 > "$file" ;;
    releasing0) rm "$file" ;;
    ready*) ;;
    *) echo "$state" $((looks - 1)) > "$file" ;;
    esac
  done ;;
esac
"""


def executable(place: Path, text: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / "machines.sh"
    path.write_text(text)
    path.chmod(0o755)
    return path


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s, "it did not happen in time"


@pytest.fixture
def command(tmp_path: Path) -> Path:
    return executable(tmp_path / "operator", COMMAND)


@pytest.fixture
def pool(tmp_path: Path, command: Path) -> MachinePool:
    return MachinePool(tmp_path / "home", command, MASTER)


@pytest.fixture
def world(pool: MachinePool) -> World:
    return World(pool, wait_until)


def calls(command: Path) -> list[str]:
    return [line for line in (command.parent / "calls").read_text().splitlines() if not line.endswith(" list")]


class TestMachinePool(PoolPromises):
    """All promises of a pool."""


def test_command_is_told_the_size_of_the_machine_and_the_master(world: World, command: Path) -> None:
    world.pool.lease("a", KIND)
    wait_until(lambda: phase(world, "a") is HostPhase.READY)
    world.pool.release("a")
    assert calls(command) == [f"{MASTER} lease a 1 1024", f"{MASTER} release a"]
    assert world.pool.hosts()["a"].address == "10.0.0.a"


def test_pool_that_is_opened_again_finds_its_machines(world: World, tmp_path: Path, command: Path) -> None:
    world.pool.lease("a", KIND)
    wait_until(lambda: phase(world, "a") is HostPhase.READY)
    again = MachinePool(tmp_path / "home", command, MASTER)
    again.lease("a", KIND)
    assert again.hosts() == world.pool.hosts()
    assert len(calls(command)) == 1


def test_lease_that_was_only_intended_is_asked_for_by_whoever_comes_next(tmp_path: Path, command: Path) -> None:
    broken = executable(tmp_path / "broken", "#!/bin/sh\nexit 0\n")
    first = MachinePool(tmp_path / "home", broken, MASTER)
    first.lease("a", KIND)
    path = tmp_path / "home" / "leases" / "a.json"
    path.write_text(path.read_text().replace('"asked":true', '"asked":false'))
    again = MachinePool(tmp_path / "home", command, MASTER)
    assert calls(command) == [f"{MASTER} lease a 1 1024"]
    wait_until(lambda: again.hosts()["a"].phase is HostPhase.READY)


def test_machine_that_vanishes_or_does_not_start_has_failed(tmp_path: Path, command: Path) -> None:
    now = [0.0]
    pool = MachinePool(tmp_path / "home", command, MASTER, lambda: now[0], Limits(patience_s=60.0))
    pool.lease("a", KIND)
    wait_until(lambda: pool.hosts()["a"].phase is HostPhase.READY)
    (command.parent / "machines" / "a").unlink()
    now[0] = 61.0
    assert (pool.hosts()["a"].phase, pool.hosts()["a"].reason) == (
        HostPhase.FAILED,
        "it is not ready 61 s after its lease",
    )


def test_closed_pool_gives_back_every_machine(world: World, pool: MachinePool, tmp_path: Path, command: Path) -> None:
    world.pool.lease("a", KIND)
    world.pool.lease("b", KIND)
    assert remembered(tmp_path / "home") is not None
    pool.close()
    assert calls(command)[2:] == [f"{MASTER} release a", f"{MASTER} release b"]
    assert remembered(tmp_path / "home") is None and not pool.hosts()


def test_machine_that_could_not_be_given_back_is_named_and_kept_on_file(
    world: World, pool: MachinePool, tmp_path: Path, command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.pool.lease("a", KIND)
    command.write_text("#!/bin/sh\nexit 3\n")
    pool.close()
    assert 'host "a" may still be paid for' in capsys.readouterr().err
    assert remembered(tmp_path / "home") is not None
    command.write_text(COMMAND)
    MachinePool(tmp_path / "home", command, MASTER).close()
    assert calls(command)[-1] == f"{MASTER} release a"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo soon; exit 0", "list: line 1 is not a host (JSON is malformed"),
        ("""echo '{"name": "a", "state": "up"}'""", "list: line 1 is not a host (Invalid enum value 'up'"),
        (
            """echo '{"name": "a", "state": "ready", "ip": 1}'""",
            "list: line 1 is not a host (Object contains unknown field `ip`",
        ),
        ("""for i in 1 2; do echo '{"name": "a", "state": "ready"}'; done""", 'list: host "a" is listed twice'),
        ("echo one >&2; echo no quota >&2; exit 3", "list: ended with exit code 3: no quota"),
        ("sleep 60", "list: did not end within 0.5 s; setting: command_s"),
    ],
    ids=["no JSON", "unknown state", "unknown field", "twice", "exit code", "time-out"],
)
def test_wrong_answer_of_the_command_is_one_sentence(
    tmp_path: Path, command: Path, pool: MachinePool, text: str, sentence: str
) -> None:
    pool.lease("a", KIND)
    command.write_text(f"#!/bin/sh\n{text}\n")
    hasty = Limits(command_s=0.5) if "sleep" in text else Limits()
    with pytest.raises(EngineError) as found:
        MachinePool(tmp_path / "home", command, MASTER, limits=hasty)
    assert sentence in str(found.value) and "\n" not in str(found.value)


def test_lease_that_failed_is_taken_back(pool: MachinePool, command: Path) -> None:
    """A command that ran out of time may have leased the machine all the same."""
    command.write_text(COMMAND.replace("case", '[ "$1" != lease ] || exit 4\ncase', 1))
    with pytest.raises(EngineError, match="lease a 1 1024: ended with exit code 4"):
        pool.lease("a", KIND)
    assert calls(command) == [f"{MASTER} lease a 1 1024", f"{MASTER} release a"] and not pool.hosts()


@pytest.mark.parametrize(
    ("mode", "sentence"), [(None, '"[^"]*" does not exist'), (0o644, "is not executable; run chmod")]
)
def test_command_that_cannot_be_called_is_refused(tmp_path: Path, mode: int | None, sentence: str) -> None:
    path = tmp_path / "machines.sh"
    if mode is not None:
        path.write_text(COMMAND)
        path.chmod(mode)
    with pytest.raises(InputError, match=sentence):
        runnable(path)
