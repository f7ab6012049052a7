from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.state.stores import close_stores


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    close_stores()
