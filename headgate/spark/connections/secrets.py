"""Secrets that a job file refers to instead of containing: `env:NAME` is an environment variable, `file:PATH` is the content of a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from headgate.errors import EngineError, GraphError

ENVIRONMENT, FILE, ADDRESS = "env:", "file:", "file://"
SECRET = re.compile(
    r"secret|password|token|credential|account.?key|sas.?key|jaas|\.key\.pem$|oauthbearer\.config$", re.IGNORECASE
)
"""Names of options that may not be spelled out in a job file."""


def has_login(address: str) -> bool:
    """Whether a web address contains a user or a password.

    >>> has_login("https://me:word@registry:8081/schemas"), has_login("https://registry:8081/@schemas")
    (True, False)
    """
    return "@" in address.rpartition("://")[2].partition("/")[0]


def check_options(values: Mapping[str, str], what: str) -> None:
    """Refuse secrets in the job file: Spark and every reader of the file would see them."""
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise GraphError(f"option {name!r} of {what} is not a text; quote it")
        if SECRET.search(name) and not value.startswith((ENVIRONMENT, FILE)):
            raise GraphError(
                f'option "{name}" of {what} is a secret; write "env:NAME" or "file:PATH", where its value is'
            )


def revealed(value: str, what: str) -> str:
    """Return the value itself, or the secret that the value refers to, as this process finds it.

    >>> revealed("eu-central-1", "the region"), revealed("file:///lake", "an address, which is no secret")
    ('eu-central-1', 'file:///lake')
    """
    if value.startswith(ENVIRONMENT):
        return _variable(value.removeprefix(ENVIRONMENT), what)
    if value.startswith(FILE) and not value.startswith(ADDRESS):
        return _content(value.removeprefix(FILE), what)
    return value


def all_revealed(values: Mapping[str, str], what: str) -> dict[str, str]:
    """Return the options with every value revealed."""
    return {name: revealed(value, f'option "{name}" of {what}') for name, value in values.items()}


def _variable(name: str, what: str) -> str:
    if name not in os.environ:
        raise EngineError(
            f'{what} is read from the environment variable "{name}", which is not set; set it where the service starts'
        )
    return os.environ[name]


def _content(path: str, what: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f'{what} is read from the file "{path}", which cannot be read: {error}') from None
