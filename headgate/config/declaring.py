"""How a setting is declared: default, unit, range, and a sentence that stands alone in a table."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

UNLIMITED = math.inf


def setting(
    default: Any, unit: str, text: str, low: float = 0.0, high: float = UNLIMITED, choices: tuple[str, ...] = ()
) -> Any:
    """Declare one setting: numbers have an inclusive range, words a list of choices."""
    return field(default=default, metadata={"unit": unit, "text": text, "low": low, "high": high, "choices": choices})
