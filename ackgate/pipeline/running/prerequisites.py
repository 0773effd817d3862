"""Checks before a session starts: Java, the packages of the extra `spark`, the master.

Edge: runs the ``java`` that Spark would start, and connects to the master. Spark's own errors for these are
a page of scripts and traces.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

from ackgate.errors import ConfigurationError

JAVA_LEAST: Final = 17
"""Spark 4's own demand."""

_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "fsspec", "vl_convert")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS_MAX: Final = 30.0
_MASTER: Final = re.compile(r"local(\[.*\])?|local-cluster\[.*\]|spark://.+|yarn|k8s://.+")
_MASTER_ADDRESS: Final = re.compile(r"(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d{1,5})")
_KNOCK_SECONDS: Final = 5.0


def check_spark_can_run() -> None:
    """Raises `ConfigurationError` naming a missing or too old package or Java."""
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


def check_master(master: str) -> None:
    """Raises `ConfigurationError` for an unknown kind of master, and for one where nobody answers.

    Spark itself would ask for a minute, and then say so on a page.
    """
    if not _MASTER.fullmatch(master):
        raise ConfigurationError(f"--master {master}: wants local[N], or spark://HOST:PORT")
    if not master.startswith("spark://"):
        return
    faults = []
    for word in master.removeprefix("spark://").split(","):  # one of several may be on duty
        address = _MASTER_ADDRESS.fullmatch(word)
        if address is None or int(address["port"]) > 65_535:
            raise ConfigurationError(f"--master {master}: {word!r} is not HOST:PORT")
        try:
            place = (address["host"].strip("[]"), int(address["port"]))
            socket.create_connection(place, _KNOCK_SECONDS).close()
            return
        except OSError as error:
            faults.append(f"{word}: {error.strerror or error}")
    raise ConfigurationError(f"--master {master}: no master answers ({'; '.join(faults)})")
