"""Answers of the API: JSON, and refusals in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Response


@dataclass(frozen=True, slots=True)
class RefusalAnswer:
    """Why a request is not fulfilled, in one sentence."""

    error: str


@dataclass(frozen=True, slots=True)
class Named:
    """The job or the tenant that was changed."""

    name: str


def documented(model: Any, code: int = 200) -> dict[int | str, dict[str, Any]]:
    """The shapes of an answer and of refusals for OpenAPI; the answer itself is encoded without a second check."""
    return {code: {"model": model}, "4XX": {"model": RefusalAnswer, "description": "The request is refused"}}


def json_answer(value: Any, code: int = 200) -> Response:
    """A value as JSON; pages must not keep it."""
    content = msgspec.json.encode(value)
    return Response(content, code, media_type="application/json", headers={"Cache-Control": "no-store"})


def refusal(sentence: str, code: int) -> Response:
    """Why a request is not fulfilled, on one line."""
    return json_answer(RefusalAnswer(" ".join(sentence.split())), code)
