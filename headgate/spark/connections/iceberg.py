"""Iceberg catalogs with a time limit for each answer: pyiceberg waits for a REST catalog without a limit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import RestCatalog

if TYPE_CHECKING:
    from requests import Session

ANSWER_S = "headgate.answer-s"
"""The catalog property that holds the time limit of a request, in seconds."""
STORES = ("s3.connect-timeout", "s3.request-timeout")


class TimedRestCatalog(RestCatalog):
    """A REST catalog with a time limit for each request, including the first request for a token."""

    def _config_headers(self, session: Session) -> None:
        """Add the time limit to a new session: pyiceberg calls this method first."""
        super()._config_headers(session)
        limited = partial(session.request, timeout=float(self.properties[ANSWER_S]))
        session.request = limited  # type: ignore[method-assign]


def open_catalog(name: str, properties: Mapping[str, str], answer_s: float) -> Catalog:
    """Open the catalog that pyiceberg's configuration and these properties describe."""
    limits = dict.fromkeys((*STORES, ANSWER_S), f"{answer_s:g}")
    AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, found: TimedRestCatalog(name, **found)
    return load_catalog(name, **(limits | dict(properties)))
