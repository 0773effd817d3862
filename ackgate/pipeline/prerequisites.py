"""What a session needs and pip does not bring: Java, and the packages of the `spark` extra.

Edge: asks the ``java`` that Spark would start. Looked at before anything is started or written, since
what Spark itself says of it is a page of scripts and traces.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from ackgate.errors import ConfigurationError

JAVA_LEAST: Final = 17
"""Spark 4's own demand."""

_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "fsspec")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS_MAX: Final = 30.0


def check_spark_can_run() -> None:
    """Raises `ConfigurationError` naming what is missing, or too old."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"jobs run on Spark, and {', '.join(missing)} is not installed: "
            "pip install 'ackgate[spark]'"
        )
    home = os.environ.get("JAVA_HOME")  # noqa: TID251 - Spark's scripts go by it
    check_java(str(Path(home) / "bin" / "java") if home else "java")


def check_java(java: str) -> None:
    """Raises `ConfigurationError` when this program is not there, or not Java 17 or newer."""
    found = shutil.which(java)
    if found is None:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_LEAST} or newer, and there is no {java} "
            "(JAVA_HOME, or PATH, says where)"
        )
    try:
        told = subprocess.run(  # noqa: S603 - what Spark would start
            [found, "-version"], capture_output=True, text=True, check=False, timeout=_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{found} does not say its version: {error}") from error
    version = _VERSION.search(told.stderr + told.stdout)
    if version is None:
        raise ConfigurationError(f"{found} does not say its version, so it may not be Java")
    if int(version[1]) < JAVA_LEAST:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_LEAST} or newer; {found} is Java {version[1]}"
        )
