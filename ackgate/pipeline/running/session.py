"""A Spark session for a job: what it needs, checked first; on this machine, or on a cluster; quiet.

Edge: runs the ``java`` that Spark would start, connects to the master, starts Spark's Java process. ::

    local[N]             loopback only; tasks run in this interpreter
    spark://HOST:PORT    tasks run in the workers' interpreter, which finds what `py_files` holds

Spark plans a read with the program that it will use on the workers, so that one has to be there on
this machine as well; a name instead of a path is looked up on each machine's own PATH. Spark's own errors
for a missing Java or master are a page of scripts and traces, so both are looked for beforehand.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

JAVA_LEAST: Final = 17
"""Spark 4's own demand."""

_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "fsspec", "vl_convert")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS_MAX: Final = 30.0
_MASTER: Final = re.compile(r"local(\[.*\])?|local-cluster\[.*\]|spark://.+|yarn|k8s://.+")
_MASTER_ADDRESS: Final = re.compile(r"(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d{1,5})")
_KNOCK_SECONDS: Final = 5.0

EXECUTORS_TOLD_SECONDS: Final = 15.0
"""A cluster that has given no executor for so long is worth a word."""

PYTHON_KEY: Final = "spark.pyspark.python"
"""Spark's name for the Python of the workers; PySpark itself heeds it only when Spark starts PySpark."""

_POLL_SECONDS: Final = 0.2
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOCAL: Final = re.compile(r"local(\[(?P<cores>\d+|\*)(,\d+)?\])?")
_LOOPBACK: Final = re.compile(r"spark://(127\.[\d.]+|localhost|\[::1\]):\d+")
_PARTITIONS_MIN: Final = 4
_LOGGING: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss.SSS}} %-5p %c{{1}} - %m%n%ex
"""


def check_spark_can_run() -> None:
    """Raise `ConfigurationError` naming a missing or too old package or Java."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"jobs run on Spark, and {', '.join(missing)} is not installed: "
            "pip install 'ackgate[spark]'"
        )
    home = os.environ.get("JAVA_HOME")  # noqa: TID251 - Spark's scripts go by it
    check_java(str(Path(home) / "bin" / "java") if home else "java")


def check_java(java: str) -> None:
    """Raise `ConfigurationError` when this program is not there, or not Java 17 or newer."""
    found = shutil.which(java)
    if found is None:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_LEAST} or newer, and there is no {java} "
            "(JAVA_HOME, or PATH, says where)"
        )
    try:
        ran = subprocess.run(  # noqa: S603 - what Spark would start
            [found, "-version"], capture_output=True, text=True, check=False, timeout=_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{found} does not say its version: {error}") from error
    version = _VERSION.search(ran.stderr + ran.stdout)
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
        raise ConfigurationError(f"--master {master}: must be local[N], or spark://HOST:PORT")
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


def local_session(
    master: str,
    *,
    app_name: str,
    scratch: Path,
    driver_memory: str,
    settings: Mapping[str, str] | None = None,
    executor_python: str | None = None,
    py_files: Sequence[Path] = (),
    log_level: str = "error",
) -> Any:  # noqa: ANN401 - Spark has no types here
    """A session in this process; `scratch` takes what Spark spills and its warehouse.

    `settings` are Spark's, and go before those that are chosen here. `py_files` are what workers are
    to import: wheels, zips, eggs or single modules. Raises `ConfigurationError`.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415

    shipped = shippable(py_files, scratch)
    settings = settings or {}
    python = _interpreter(executor_python or settings.get(PYTHON_KEY))
    chosen = {
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    local = _LOCAL.fullmatch(master)
    if local is not None:
        chosen["spark.sql.shuffle.partitions"] = str(_partitions(local["cores"]))
    if local is not None or _LOOPBACK.fullmatch(master):
        chosen |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    chosen |= {**settings, PYTHON_KEY: python}
    logging = _written_logging(scratch, log_level)
    chosen[_JAVA_OPTIONS] = f"{logging} {chosen.get(_JAVA_OPTIONS, '')}".strip()
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _no_java_left():
        session = builder.getOrCreate()
    context = session.sparkContext
    context.setLogLevel(log_level.upper())
    context.pythonExec = python
    for file in shipped:
        context.addPyFile(str(file))
    return session


@contextlib.contextmanager
def _no_java_left() -> Iterator[None]:
    """If the block is interrupted before PySpark has reached the Java that it starts, end that one.

    PySpark has removed the directory by then in which Java is to write its port. Java fails to, and stays.
    """
    from pyspark import SparkContext, java_gateway  # noqa: PLC0415

    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401
            started.append(self)
            super().__init__(*arguments, **more)

    java_gateway.Popen = Noted
    try:
        yield
    except KeyboardInterrupt:
        if SparkContext._gateway is None:
            for process in started:
                if getattr(process, "pid", None) is not None:
                    process.kill()
                    process.wait()
        raise
    finally:
        java_gateway.Popen = subprocess.Popen


def register_source(session: Any) -> None:  # noqa: ANN401 - Spark has no types here
    """Make the data source known to this session; see `ackgate.pipeline.register`."""
    from ackgate.pipeline.source.data_source import AckgateDataSource  # noqa: PLC0415 - imports Spark

    choose_python(session)
    session.dataSource.register(AckgateDataSource)


def choose_python(session: Any) -> None:  # noqa: ANN401 - Spark has no types here
    """Let the tasks of a session run in this interpreter, unless another one is configured.

    PySpark takes whatever ``python3`` is on the PATH. Without an activated environment that has neither
    ackgate nor Arrow. On a cluster that name is left for each machine to look up, if it is this one here.
    """
    context = getattr(session, "sparkContext", None)
    if context is None or "PYSPARK_PYTHON" in os.environ:  # noqa: TID251 - PySpark goes by it
        return
    asked = context.getConf().get(PYTHON_KEY)
    if asked is None and is_cluster(context.master) and _is_this(context.pythonExec):
        return
    context.pythonExec = asked or sys.executable


def _is_this(program: str) -> bool:
    """Whether it is this interpreter in this environment: one's `python` and `python3` lie side by side."""
    found = shutil.which(program)
    return found is not None and Path(found).parent == Path(sys.executable).parent


def is_cluster(master: str) -> bool:
    """Whether tasks run in processes of their own, on workers."""
    return _LOCAL.fullmatch(master) is None


def wait_for_executors(session: Any, report: Callable[[str], None]) -> None:  # noqa: ANN401
    """Until the cluster has given at least one; says so when that takes long."""
    context = session.sparkContext._jsc.sc()
    begun = time.monotonic()
    is_reported = False
    while context.getExecutorMemoryStatus().size() < 2:  # one is the driver's own
        if not is_reported and time.monotonic() > begun + EXECUTORS_TOLD_SECONDS:
            report("waiting for the cluster: no worker has cores and memory for this job yet")
            is_reported = True
        time.sleep(_POLL_SECONDS)


def shippable(files: Sequence[Path], scratch: Path) -> list[Path]:
    """The same as files that Spark puts on the workers' path: a wheel is a zip by another name.

    Raises `ConfigurationError` for one that is not there.
    """
    found = []
    for file in files:
        if not file.is_file():
            raise ConfigurationError(f"--py-files {file}: there is no such file")
        if file.suffix == ".whl":
            (scratch / "wheels").mkdir(parents=True, exist_ok=True)
            found.append(Path(shutil.copy(file, scratch / "wheels" / f"{file.stem}.zip")))
        else:
            found.append(file)
    return found


@contextlib.contextmanager
def java_output(log: Path | None) -> Iterator[None]:
    """What Java processes started in the block write to standard error goes to this file; None: on.

    For as long as they live. It redirects the whole process, so nothing else should write there then.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _interpreter(executor_python: str | None) -> str:
    if executor_python is None:
        return sys.executable
    if shutil.which(executor_python) is None:
        raise ConfigurationError(
            f"--executor-python {executor_python}: there is no such program on this machine, where "
            "Spark plans with it"
        )
    return executor_python


def _partitions(cores: str | None) -> int:
    """Partitions of a shuffle: two for each core."""
    count = (os.cpu_count() or 1) if cores == "*" else int(cores or 1)
    return max(_PARTITIONS_MIN, 2 * count)


def _written_logging(scratch: Path, level: str) -> str:
    """Java's option for Spark's log, from the first line on."""
    file = scratch / "log4j2.properties"
    file.write_text(_LOGGING.format(level=level), encoding="utf-8")
    return f"-Dlog4j2.configurationFile={file.as_uri()}"
