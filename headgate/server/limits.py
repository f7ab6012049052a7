"""Limits of the API: open connections, time until a request is complete, bytes of a body."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headgate.config import ServiceSettings

KB = 1024
TOO_LARGE = 413
INCOMPLETE = (h11.IDLE, h11.SEND_BODY)
"""States of a connection whose request has not arrived as a whole."""


def protocol_of(settings: ServiceSettings) -> type[asyncio.Protocol]:
    """Return an HTTP protocol for uvicorn with a limit on connections and on the time that a request takes to arrive.

    Requests that are never completed must not keep others out: above the limit, the connection that has waited longest for its request
    is closed. All of this runs on the thread of the API, which owns `waiting`.
    """
    waiting: dict[Limited, None] = {}

    class Limited(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_request()
            if len(self.connections) > settings.api_connections:
                next(iter(waiting)).transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state in INCOMPLETE:
                self._await_request()
            else:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_request(self) -> None:
            if self._patience is None:
                self._patience = self.loop.call_later(settings.api_request_s, self.transport.abort)
                waiting[self] = None

        def _stop_waiting(self) -> None:
            waiting.pop(self, None)
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    return Limited


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Middleware that refuses a body above the limit, with or without a header `Content-Length`."""

    app: ASGIApp
    most_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        announced = int(declared) if declared.isdecimal() else 0
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            if announced > self.most_bytes:
                raise self._refusal()
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.most_bytes:
                raise self._refusal()
            return message

        await self.app(scope, limited, send)

    def _refusal(self) -> HTTPException:
        most = f"{self.most_bytes // KB:,} KB"
        return HTTPException(TOO_LARGE, f"the body of the request is larger than {most} (setting api_body_kb)")
