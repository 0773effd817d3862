"""The command, in the Spark session that all tests share."""

from pathlib import Path

import pytest

from tests.pipeline.recorded import recorded_run  # noqa: F401 - a fixture
from tests.pipeline.recorded_jobs import job_here  # noqa: F401 - a fixture


def pytest_collection_modifyitems(items):
    """PySpark leaves sockets to the garbage collector; that is not ours to mend."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture
def pipeline(spark):
    """`ackgate pipeline`, in the session of all tests: words in, exit code out."""
    from ackgate.pipeline.command import run_pipeline

    return lambda *words: run_pipeline([str(word) for word in words], spark=spark)
