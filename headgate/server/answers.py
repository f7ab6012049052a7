"""Answers of the API: JSON, and refusals in one sentence."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Response


def json_answer(value: Any, code: int = 200) -> Response:
    """A value as JSON; pages must not keep it."""
    content = msgspec.json.encode(value)
    return Response(content, code, media_type="application/json", headers={"Cache-Control": "no-store"})


def refusal(sentence: str, code: int) -> Response:
    """Why a request is not fulfilled, on one line."""
    return json_answer({"error": " ".join(sentence.split())}, code)
