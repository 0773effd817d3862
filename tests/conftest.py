"""Options and profiles shared by every test.

`--rewrite` replaces expected output (transcripts, generated documents) with the actual one, so
that the diff shows in review what changed. Hypothesis runs from a fixed seed unless
`HYPOTHESIS_PROFILE=explore`: a run that fails here fails everywhere, and prints how to repeat it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW_MACHINE = [HealthCheck.too_slow]

settings.register_profile(
    "ci",
    derandomize=True,
    print_blob=True,
    deadline=None,
    max_examples=50,
    stateful_step_count=40,
    database=None,
    suppress_health_check=_SLOW_MACHINE,
)
settings.register_profile(
    "explore",
    print_blob=True,
    deadline=None,
    max_examples=1000,
    stateful_step_count=100,
    suppress_health_check=_SLOW_MACHINE,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="replace expected transcripts and generated documents with the actual ones",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be replaced instead of compared."""
    return bool(request.config.getoption("--rewrite"))
