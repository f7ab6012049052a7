"""What Prometheus is told: every value that is known, none that is not, and a bounded number of series."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headgate.config import ServiceSettings
from headgate.core.hosts import NO_BILL, HostPhase
from headgate.core.model import HostReading
from headgate.ports import JobPhase
from headgate.server.app import app_of
from headgate.server.home import Home
from headgate.server.lost_hosts import LostHosts
from headgate.server.metrics import ALL, OTHER, Type, registry_of
from headgate.server.status import LeasesStatus, LeaseStatus
from tests.server.conftest import Bench
