"""The page of the dashboard and its files, as the service serves them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from fastapi import FastAPI, Response

from headgate.server.answers import refusal
from headgate.server.gate import PAGE

WEB = resources.files("headgate.server") / "web"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page and its files, which are the same for all users and hold no data."""

    @app.get(PAGE, include_in_schema=False)
    def page() -> Response:
        return _asset(["index.html"])

    @app.get("/web/{path:path}", include_in_schema=False)
    def asset(path: str) -> Response:
        return _asset(path.split("/"))


def _asset(parts: Sequence[str]) -> Response:
    ending = f".{parts[-1].rpartition('.')[2]}"
    file = WEB.joinpath(*parts)
    if ".." in parts or ending not in TYPES or not file.is_file():
        return refusal(f"there is no file {'/'.join(parts)}", 404)
    return Response(file.read_bytes(), media_type=TYPES[ending], headers={"Cache-Control": "no-cache"})
