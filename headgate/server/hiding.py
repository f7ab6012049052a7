"""Hides the names of other tenants' jobs in texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

ANOTHER = "a job of another tenant"


def hiding(names: Collection[str]) -> Callable[[str], str]:
    """Return a function that replaces these names in a text."""
    if not names:
        return lambda text: text
    pattern = _any_of(names)
    return lambda text: pattern.sub(ANOTHER, text)


def mentions(text: str, names: Collection[str]) -> bool:
    """Whether a text contains one of these names."""
    return bool(names) and _any_of(names).search(text) is not None


def _any_of(names: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(longest_first)})(?![\w-])")
