"""Property tests draw more examples in `make explore` than in `make test`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.examples import examples

HERE = Path(__file__).parent


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> Iterator[None]:
    """The profile that a test names, then the one before."""
    before = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile(request.param)
    yield
    hypothesis.settings.load_profile(before)


@pytest.mark.parametrize(("profile", "times"), [("same", 1), ("explore", 5)], indirect=["profile"])
@pytest.mark.usefixtures("profile")
def test_exploring_draws_five_times_as_many_examples(times):
    assert [examples(count).max_examples for count in (5, 50, 300)] == [5 * times, 50 * times, 300 * times]
    assert hypothesis.settings().max_examples == 100 * times


def test_no_test_has_the_same_number_of_examples_in_both():
    fixed = [
        f"{path.relative_to(HERE)}: {found[0]}"
        for path in sorted(HERE.rglob("*.py"))
        if path.name not in ("conftest.py", "examples.py", "test_examples.py")
        for found in re.finditer(r"max_examples=.*", path.read_text())
    ]
    assert fixed == []
