"""How many examples a property is tested with."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Examples of a property that says nothing else, except in `make explore`."""


def examples(count: int) -> settings:
    """So many examples, as a decorator; `make explore` draws more of them, as it does of all properties.

    A property that takes long names a small count, one that is quick and has rare cases a large one.
    """
    return settings(max_examples=count * settings().max_examples // USUAL)
