"""Where the API may listen: plain HTTP on loopback only, TLS anywhere."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import InputError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate of a service, and its key, as PEM files."""

    certificate: Path
    key: Path


def check_listening(address: str, tls: Tls | None) -> None:
    """Refuse plain HTTP beyond loopback, where others on the network could read the tokens."""
    if tls is None and address not in LOOPBACK:
        raise InputError(
            f"--listen {address} is reachable from other machines, and plain HTTP would show tokens to others on the network;"
            " give --tls-cert FILE and --tls-key FILE, or listen on 127.0.0.1"
        )
    if tls is not None:
        _check_certificate(tls)


def _check_certificate(tls: Tls) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise InputError(f"--tls-cert {tls.certificate} with --tls-key {tls.key} cannot be used: {reason}") from None
