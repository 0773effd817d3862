"""Settings of Spark for much planning and few rows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.class_archives import ClassArchive

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""Options of Java that halve its processor time on next to no data: machine code costs more than it saves.
The size of the class metadata at which memory is first cleaned up is one that Spark does not reach."""

_PROGRAM: Final = """
import sys
from pathlib import Path

from ackgate.pipeline.running.session import local_session

scratch = Path(sys.argv[1])
session = local_session(
    "local[1]", app_name="classes", scratch=scratch, driver_memory="512m",
    settings={"spark.driver.extraJavaOptions": sys.argv[2], "spark.sql.codegen.wholeStage": "false"},
)
rows = session.range(10).mapInArrow(lambda batches: batches, "id bigint")
sums = rows.groupBy((rows.id % 2).alias("id")).count().join(rows, "id", "left")
sums.orderBy("id").write.parquet(str(scratch / "rows"))
session.read.parquet(str(scratch / "rows")).createOrReplaceTempView("rows")
session.sql("SELECT row_number() OVER (PARTITION BY id ORDER BY count) FROM rows").collect()
java = session.sparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait()
"""


def _run_spark(option: str) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, scratch, f'{QUICK_JAVA} "{option}"'],
            check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _spark_jars() -> Path:
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return Path(spark.origin).parent / "jars"


_CLASSES: Final = ClassArchive("spark", _spark_jars, _run_spark)


SMALL_PLANS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Nothing that is planned is compiled, which would take most of the time."""


def quick_java() -> str:
    """The same for a driver, with its archive of classes. (An executor has another class path.)"""
    return " ".join((QUICK_JAVA, *(f'"{option}"' for option in _CLASSES.options)))


def quick_spark() -> dict[str, str]:
    """Settings of a session on this machine, in tests and in smoke runs of the benchmarks."""
    return {"spark.driver.extraJavaOptions": quick_java(), **SMALL_PLANS}


_USUAL_PLANS: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.shuffle.partitions": "4",
}


@contextmanager
def usual_plans(spark: Any) -> Iterator[None]:
    """Spark's own settings, as users have them: one run of a job is planned and compiled as theirs are."""
    before = {key: spark.conf.get(key) for key in _USUAL_PLANS}
    try:
        for key, value in _USUAL_PLANS.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
