"""Settings of Spark for much planning and few rows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java that halve its processor time on next to no data: machine code costs more than it saves."""

SMALL_PLANS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def small_plans(spark: Any) -> Iterator[None]:
    """Without compiling what is planned, which would take most of the time."""
    before = {key: spark.conf.get(key) for key in SMALL_PLANS}
    try:
        for key, value in SMALL_PLANS.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
