"""Settings of Spark for much planning and few rows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""Options of Java that halve its processor time on next to no data: machine code costs more than it saves.
The size of the class metadata at which memory is first cleaned up is one that Spark does not reach."""

SMALL_PLANS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Nothing that is planned is compiled, which would take most of the time."""

QUICK_SPARK: Final = {"spark.driver.extraJavaOptions": QUICK_JAVA, **SMALL_PLANS}
"""Of a session on this machine, in tests and in smoke runs of the benchmarks."""

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
