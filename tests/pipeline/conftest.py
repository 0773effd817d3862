"""One Spark session for all tests of the pipeline, as small as it can be."""

from pathlib import Path

import pytest

from tests.pipeline.recorded import recorded_run  # noqa: F401 - a fixture
from tests.pipeline.small_plans import QUICK_JAVA


def pytest_collection_modifyitems(items):
    """PySpark leaves sockets to the garbage collector; that is not ours to mend."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from ackgate.pipeline.running.session import local_session

    scratch = tmp_path_factory.mktemp("spark")
    session = local_session(
        "local[2]",
        app_name="ackgate-tests",
        scratch=scratch,
        driver_memory="1g",
        settings={"spark.driver.extraJavaOptions": QUICK_JAVA},
    )
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark):
    """`ackgate pipeline`, in the session of all tests: words in, exit code out."""
    from ackgate.pipeline.command import run_pipeline

    return lambda *words: run_pipeline([str(word) for word in words], spark=spark)
