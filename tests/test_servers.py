"""What a skipped test means where all servers are installed."""

from __future__ import annotations

import pytest

from tests.conftest import with_all_servers

MISSING = "Skipped: needs chromium (Debian: chromium)"


def skipped(reason: str) -> pytest.TestReport:
    return pytest.TestReport("test_page", ("test.py", 1, "test_page"), {}, "skipped", ("test.py", 1, reason), "setup")


@pytest.mark.parametrize(
    ("installed", "reason", "outcome"),
    [("1", MISSING, "failed"), (None, MISSING, "skipped"), ("1", "Skipped: only root may mount", "skipped")],
)
def test_skip_for_a_missing_server_fails_where_all_are_installed(monkeypatch, installed, reason, outcome):
    monkeypatch.delenv("HEADGATE_ALL_SERVERS", raising=False)
    if installed is not None:
        monkeypatch.setenv("HEADGATE_ALL_SERVERS", installed)
    report = with_all_servers(skipped(reason))
    assert report.outcome == outcome
    assert outcome == "skipped" or reason in str(report.longrepr)
