"""A Spark session that runs this interpreter, quietly, with the data source registered.

Edge.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def local_session(
    master: str,
    *,
    app_name: str,
    scratch: Path,
    driver_memory: str,
    settings: Mapping[str, str] | None = None,
) -> Any:  # noqa: ANN401 - Spark has no types here
    """A session in this process; `scratch` takes what Spark spills and its warehouse.

    `settings` are Spark's, and go before those that are chosen here.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415

    chosen = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # Else it is the environment's PYSPARK_PYTHON, or whatever `python3` happens to be.
    session.sparkContext.pythonExec = sys.executable
    return session
