"""The status names a silent host and says for how long it has been silent."""

from __future__ import annotations

from headgate.core.metrics import View
from headgate.core.model import HostReading
from headgate.server.status import silence_of

HEARD = HostReading("a", 2, 3.0, slots=2, running=2.0, waiting=1.0, pressure=0.4, silent_s=0.5)
SILENT = HostReading("b", 2, None, slots=2, silent_s=9.0, suspect=True)


def test_status_names_silent_hosts_and_goes_on_counting_between_rounds() -> None:
    view = View(0.0, {}, (HEARD, SILENT), frozenset())
    assert silence_of(view, 3.0) == "host b has been silent for 12 s: its jobs are not judged"
    assert silence_of(View(0.0, {}, (HEARD,), frozenset()), 3.0) == "" == silence_of(None, 3.0)
