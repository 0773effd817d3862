"""Options and profiles shared by every test.

`--rewrite` replaces expected output (transcripts, generated documents) with the actual one, so
that the diff shows in review what changed. Hypothesis runs from a fixed seed unless
`HYPOTHESIS_PROFILE=explore`: a run that fails here fails everywhere, and prints how to repeat it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from ackgate.testing import BrokerProcess, ZooKeeperProcess
from tests.pipeline.small_plans import quick_spark
from tests.support.bookkeeper import RealBookKeeper, missing
from tests.support.class_archives import ZOOKEEPER

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
settings.register_profile(
    "quick",
    derandomize=True,
    print_blob=True,
    deadline=None,
    max_examples=10,
    stateful_step_count=20,
    database=None,
    suppress_health_check=_SLOW_MACHINE,
)
BrokerProcess.is_forked = True  # a twentieth of the processor time
ZooKeeperProcess.java_options = staticmethod(lambda: ZOOKEEPER.options)  # half of it

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


SLOWEST_FIRST = (
    *(
        "tests/pipeline/",
        "tests/chaos/",
        "tests/bookkeeper/",
        "tests/pulsar/",
        "tests/broker/",
        "tests/simulation/",
    ),
)
"""Where files take longest: they begin first, so that no worker is left alone with one at the end."""

ON_SPARK = "tests/pipeline/"
"""One worker takes all of these: they share a Spark session, which keeps two cores busy by itself."""

ON_REAL_PULSAR = "tests/pulsar/"
"""One worker takes these: they share a Pulsar, which needs a gigabyte."""

ON_REAL_BOOKIES = ("tests/bookkeeper/", "tests/conformance/ledgers/")
"""One worker takes these: they share a BookKeeper cluster, which needs a gigabyte."""


class ByFile(LoadScopeScheduling):
    """Gives a worker of `pytest -n` a file at a time, or everything that shares something large."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ON_REAL_BOOKIES):
            return ON_REAL_BOOKIES[0]
        if nodeid.startswith(ON_REAL_PULSAR):
            return ON_REAL_PULSAR
        return ON_SPARK if nodeid.startswith(ON_SPARK) else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_slowest_first)


def _slowest_first(item: pytest.Item) -> int:
    place = item.location[0]
    found = (index for index, slow in enumerate(SLOWEST_FIRST) if place.startswith(slow))
    return next(found, len(SLOWEST_FIRST))


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


@pytest.fixture(scope="session")
def real_bookkeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBookKeeper]:
    """Real bookies and their ZooKeeper. Not to be killed or paused: other tests use them."""
    if why := missing():
        pytest.skip(why)
    with RealBookKeeper(tmp_path_factory.mktemp("bookkeeper")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session, as small as it can be."""
    from ackgate.pipeline.running.session import local_session

    session = local_session(
        "local[2]",
        app_name="ackgate-tests",
        scratch=tmp_path_factory.mktemp("spark"),
        driver_memory="1g",
        settings=quick_spark(),
    )
    yield session
    session.stop()
