"""Answers of the API: JSON, and refusals in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Response


@dataclass(frozen=True, slots=True)
class RefusalAnswer:
    """The answer to a refused request: the reason in one sentence."""

    error: str


@dataclass(frozen=True, slots=True)
class Named:
    """The job or the tenant that was changed."""

    name: str


def documented(model: Any, code: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the schemas of an answer and of refusals for OpenAPI; answers are not validated against the schema."""
    return {code: {"model": model}, "4XX": {"model": RefusalAnswer, "description": "The request is refused"}}


def json_answer(value: Any, code: int = 200) -> Response:
    """Return a value as JSON that browsers must not cache."""
    content = msgspec.json.encode(value)
    return Response(content, code, media_type="application/json", headers={"Cache-Control": "no-store"})


def refusal(sentence: str, code: int) -> Response:
    """Return a refusal with the reason on one line."""
    return json_answer(RefusalAnswer(" ".join(sentence.split())), code)
