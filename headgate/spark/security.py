"""Access to Spark: secrets for its processes, for the calls between Python and Java, and for the master's page.

None of them is ever an argument of a process: every user of a machine can read those.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Any

from headgate.errors import EngineError
from headgate.spark import jvm

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = "spark.authenticate.secret"
SECRETS = frozenset([SECRET])
"""Configuration that must not become an argument of a process."""
PAGE_FILTER = "org.apache.spark.ui.JWSFilter"
ENCRYPTED = {
    "spark.authenticate": "true",
    # Mutual authentication and AES instead of DIGEST-MD5.
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
"""Spark's processes prove knowledge of a shared secret and encrypt their connections; embedded Spark makes a secret itself."""
PRIVATE_FILES = {"spark.hadoop.fs.permissions.umask-mode": "077"}
"""Hadoop's file systems have their own default umask, with which all users could read checkpoints."""


def new_secret() -> str:
    """Return a random secret of 256 bits."""
    return secrets.token_hex(32)


def encrypted(secret: str) -> dict[str, str]:
    """Return the settings of processes that share a secret."""
    return {**ENCRYPTED, SECRET: secret}


def public(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that may become arguments of a process."""
    return {key: value for key, value in configuration.items() if key not in SECRETS}


def guarded_pages(secret: str) -> dict[str, str]:
    """Return the settings of the pages of masters and workers: requests need a token, and no page can end anything."""
    return {
        "spark.ui.filters": PAGE_FILTER,
        f"spark.{PAGE_FILTER}.param.secretKey": _base64(_page_key(secret)),
        "spark.ui.killEnabled": "false",
        "spark.master.ui.decommission.allow.mode": "DENY",
    }


def page_token(secret: str) -> str:
    """Return the signed token (JWS, RFC 7515) that a request to these pages must carry."""
    said = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": "headgate"}))
    return f"{said}.{_base64(hmac.digest(_page_key(secret), said.encode(), hashlib.sha256))}"


def _page_key(secret: str) -> bytes:
    """Derive the key of the pages from the secret, so that a page cannot give away the secret."""
    return hmac.digest(secret.encode(), b"page", hashlib.sha256)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def guard_callbacks(gateway: Any) -> None:
    """Require the gateway's secret for calls from Java to Python, as for calls from Python to Java."""
    logging.getLogger("py4j.clientserver").addFilter(_is_ours)
    jvm.start_callback_server(gateway)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether to log a record: Py4J logs a stack trace for each caller without the secret, with which other users could fill the log."""
    return "authenticate" not in record.getMessage()


def java() -> str:
    """The Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        where = (
            f"JAVA_HOME is {home}, which has no bin/java" if home else 'no "java" is on PATH and JAVA_HOME is not set'
        )
        raise EngineError(f"Spark needs Java 17 or later, but {where}; install a JDK or set JAVA_HOME")
    return found
