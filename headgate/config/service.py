"""Settings of `headgate run` and its API."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.config.declaring import setting


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How `headgate run` is supervised, and what its API takes."""

    restart_s: float = setting(
        1.0,
        "s",
        "Wait before a service that was killed, or whose Spark was lost, starts again; the wait doubles with each restart.",
        0,
        3600,
    )
    restart_limit_s: float = setting(60.0, "s", "Longest wait before a service starts again.", 0, 86400)
    restart_calm_s: float = setting(
        30.0, "s", "A service that ran for this long starts again after the shortest wait.", 0
    )
    api_body_kb: int = setting(1024, "KB", "The API refuses a request with a larger body than this.", 1)
    api_request_s: float = setting(
        10.0, "s", "The API closes a connection whose request is not complete after this time.", 0.1, 3600
    )
    api_connections: int = setting(
        64,
        "connections",
        "Open connections to the API; beyond this number, the API closes the connection that has waited longest for a request.",
        2,
    )
    webhook_format: str = setting(
        "plain",
        "",
        "Form of the alerts that are posted to the webhook of the cluster file: `plain`, for `alertmanager`, or for `slack`.",
        choices=("plain", "alertmanager", "slack"),
    )
    metrics_jobs: int = setting(
        200, "jobs", "Jobs with their own series in `/metrics`; further jobs are summed as `other`.", 0
    )
    metrics_operators: int = setting(
        20,
        "operators",
        "Operators of a job with their own series in `/metrics`; further operators are summed as `other`.",
        0,
    )
    metrics_hosts: int = setting(
        200, "hosts", "Hosts with their own series in `/metrics`; further hosts are summed as `other`.", 0
    )
    metrics_state_s: float = setting(
        60.0, "s", "Time after which `/metrics` reads the size of a job's keyed state from disk again.", 0
    )
    objective_share: float = setting(
        0.95,
        "share",
        "Share of rounds in which an intent should be met; the alert rules divide the misses by the remaining share, the error budget.",
        0,
        0.9999,
    )
    login_link_s: float = setting(3600.0, "s", "Dashboard: a login link that was not used is void after this time.", 1)
    session_h: float = setting(12.0, "h", "Dashboard: a browser has to log in again after this time.", 0.01)
    login_failures: int = setting(
        5,
        "logins",
        "After this many failed logins or wrong tokens of an address within a minute, the API refuses further ones of this address.",
        1,
        1000,
    )
    lane_memory_mb: float = setting(
        128.0, "MB", "Memory that a lane counts with against the memory quota of its tenant.", 1
    )
    token_days: float = setting(
        90.0, "days", "A token of a tenant expires after this time, unless it is made for another one.", 0.001, 3650
    )
    tenant_environment: str = setting(
        "",
        "names",
        "Environment variables, separated by commas, that a job file of a tenant sees while it is loaded, beside those such as `PATH`.",
    )
    changes_kept: int = setting(
        1000, "changes", "Changes by people that the service keeps, each with the name of the person.", 1
    )
    what_if_s: float = setting(
        120.0, "s", "Dashboard: the service stops a prediction that takes longer than this.", 1, 3600
    )
    adopt_quiet_s: float = setting(
        30.0,
        "s",
        "`headgate adopt` waits until the last batch of the old query is committed, or was planned this long ago.",
        0,
    )
