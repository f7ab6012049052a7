"""Connections to PostgreSQL: each answer has a time limit, and each error is one sentence that says whether the error can pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from headgate.spark.connections.failing import failure

CONNECT_S = 10
"""Time limit of a new connection, in seconds, unless the address sets `connect_timeout`."""
PASSING = ("08", "40", "53", "55P03", "57")
"""SQLSTATE prefixes of errors that can pass: connection, conflict, resources, lock, shutdown, statement time-out."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection that closes itself if PostgreSQL accepts a question and does not answer in time."""

    answer_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:
            self.pgconn.finish()  # a rollback would wait for the same server
            raise psycopg.OperationalError(f"no answer within {self.answer_s:g} s") from None


@contextmanager
def connected(url: str, name: str, answer_s: float, operator: str = "") -> Iterator[TimedConnection]:
    """Open a connection for one transaction. The server ends a statement after `answer_s`, unless the statement waits for rows of a lane.

    An error names the table as `name`.
    """
    given = psycopg.conninfo.conninfo_to_dict(url)
    connect_s = given.get("connect_timeout", max(2, round(min(CONNECT_S, answer_s))))
    try:
        with TimedConnection.connect(url, connect_timeout=connect_s) as connection:
            connection.answer_s = answer_s
            if not operator:
                connection.execute(f"SET LOCAL statement_timeout = {round(answer_s * 1000)}")
            yield connection
    except psycopg.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise failure(f"{name} could not be used: {kind(error)}: {reason}", operator) from error


def kind(error: Any) -> str:
    """The kind of an error in messages: `ConnectionError` if the error can pass without a change."""
    passes = (error.sqlstate or "").startswith(PASSING)
    lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return "ConnectionError" if passes or lost else type(error).__name__
