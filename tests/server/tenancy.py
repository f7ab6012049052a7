"""A service that answers tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from fastapi import FastAPI

from headgate.config import ServiceSettings
from headgate.server.app import app_of, listen, served

if TYPE_CHECKING:
    from tests.server.conftest import Bench

HOME_TOKEN = "the token of the home"
MINE, THEIRS = "mine", "secret-orders"


@dataclass
class House:
    """A service with the tenants a and b, each with a job."""

    bench: Bench
    app: FastAPI

    url: str
    clients: ExitStack

    def client(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.clients.enter_context(httpx.Client(base_url=self.url, headers=headers, trust_env=False))

    def token(self, tenant: str = "a", role: str = "editor", days: float = 1.0) -> str:
        return self.bench.service.tenants.new_token(tenant, role, days)[0]

    def browser(self, token: str) -> httpx.Client:
        """Logged in with the token, without showing it again."""
        browser = self.client()
        session = browser.post("/api/v1/session", json={"secret": token}).json()
        browser.headers["X-CSRF-Token"] = session["csrf"]
        return browser


@contextmanager
def answering(bench: Bench, settings: ServiceSettings | None = None) -> Iterator[House]:
    app = app_of(bench.service, HOME_TOKEN, settings)
    with closing(listen()) as listening, served(app, listening) as url, ExitStack() as clients:
        yield House(bench, app, url, clients)
