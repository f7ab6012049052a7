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
"""Processes of Spark prove to each other that they know a secret, and encrypt what they say; embedded Spark makes one up."""
PRIVATE_FILES = {"spark.hadoop.fs.permissions.umask-mode": "077"}
"""Hadoop's file systems have a mask of their own, which would make checkpoints readable for all users."""


def new_secret() -> str:
    """256 bits."""
    return secrets.token_hex(32)


def encrypted(secret: str) -> dict[str, str]:
    """Configures processes of a cluster that share a secret."""
    return {**ENCRYPTED, SECRET: secret}


def public(configuration: Mapping[str, str]) -> dict[str, str]:
    """What may become an argument of a process."""
    return {key: value for key, value in configuration.items() if key not in SECRETS}


def guarded_pages(secret: str) -> dict[str, str]:
    """Configures the pages of masters and workers: only for requests with the token, and nothing can be ended there."""
    return {
        "spark.ui.filters": PAGE_FILTER,
        f"spark.{PAGE_FILTER}.param.secretKey": _base64(_page_key(secret)),
        "spark.ui.killEnabled": "false",
        "spark.master.ui.decommission.allow.mode": "DENY",
    }


def page_token(secret: str) -> str:
    """What a request to these pages must carry: a signed token (JWS, RFC 7515)."""
    said = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": "headgate"}))
    return f"{said}.{_base64(hmac.digest(_page_key(secret), said.encode(), hashlib.sha256))}"


def _page_key(secret: str) -> bytes:
    """Another secret made of the first: the page must not give that away."""
    return hmac.digest(secret.encode(), b"page", hashlib.sha256)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def guard_callbacks(gateway: Any) -> None:
    """Calls from Java to Python must show the gateway's secret, as calls from Python to Java must."""
    logging.getLogger("py4j.clientserver").addFilter(_is_ours)
    jvm.start_callback_server(gateway)


def _is_ours(record: logging.LogRecord) -> bool:
    """Py4J prints a stack trace for each caller without the secret; other users must not fill the log."""
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
