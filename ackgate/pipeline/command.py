"""``ackgate pipeline JOB``: a session, the job, its output and its summary; errors in one line.

Edge: the terminal. Exit codes: 0 fine; 1 failed, or the job found what must not be; 2 a wrong command
line, or an output that exists; 130 interrupted. The summary is the only thing on standard output.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.errors import AckGateError, ConfigurationError, OwnershipError
from ackgate.pipeline import register
from ackgate.pipeline.arguments import needs_spark, parse_command, spark_settings
from ackgate.pipeline.failures import is_of_spark, told_by
from ackgate.pipeline.job import DataAddress, JobRun
from ackgate.pipeline.outputs import staged_output
from ackgate.pipeline.prerequisites import check_spark_can_run
from ackgate.pipeline.progress import Progress
from ackgate.pipeline.summary_text import summary_json, summary_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.job import Job, JobSummary

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

SUMMARY_FILE: Final = "summary.json"


def run_pipeline(words: Sequence[str], *, spark: Any = None) -> int:  # noqa: ANN401 - no types
    """Run one job; returns the exit code.

    `spark` is a session that the caller has, and keeps: a notebook's. Otherwise one is made for the
    job, as the command line says, and ends with it.
    """
    arguments, job = parse_command(words)
    try:
        summary = _run(job, arguments, spark)
    except KeyboardInterrupt:
        return _failed("interrupted; nothing was written", EXIT_INTERRUPTED)
    except AckGateError as error:
        _trace(arguments)
        is_usage = isinstance(error, OwnershipError | ValueError)
        return _failed(str(error), EXIT_USAGE if is_usage else EXIT_FAILED)
    except Exception as error:
        _trace(arguments)
        if not is_of_spark(error):
            raise
        return _failed(told_by(str(error)), EXIT_FAILED)
    with contextlib.suppress(BrokenPipeError):
        print(summary_json(summary) if arguments.json else summary_text(summary), flush=True)  # noqa: T201
    return 0 if summary.is_fine else EXIT_FAILED


def _run(job: Job, arguments: argparse.Namespace, spark: Any) -> JobSummary:  # noqa: ANN401
    with contextlib.ExitStack() as stack:
        is_on_spark = needs_spark(job)
        if is_on_spark and spark is None:
            check_spark_can_run()
        data = _data_address(arguments) if is_on_spark else DataAddress({})
        staging = stack.enter_context(staged_output(arguments.output))
        if is_on_spark and spark is None:
            spark = stack.enter_context(_session(arguments))
        elif is_on_spark:
            register(spark)
        progress = stack.enter_context(Progress.on_terminal(spark))
        summary = job.run(
            JobRun(
                spark=spark,
                data=data,
                output=staging,
                arguments=arguments,
                result_format=getattr(arguments, "format", "parquet"),
                progress=progress.tell,
            )
        )
        if is_on_spark:
            (staging / SUMMARY_FILE).write_text(summary_json(summary) + "\n", encoding="utf-8")
        return summary


def _data_address(arguments: argparse.Namespace) -> DataAddress:
    """Raises `ConfigurationError`."""
    if arguments.data_dir is None and arguments.metadata_url is None:
        raise ConfigurationError("--data-dir (or --metadata-url and --bookies) says where to read")
    path = arguments.data_dir
    if path is not None and "://" not in path and not Path(path).is_dir():
        raise ConfigurationError(f"--data-dir {path}: there is no such directory")
    options = {
        "path": path,
        "config": arguments.config,
        "metadataUrl": arguments.metadata_url,
        "bookies": arguments.bookies,
        "topic": arguments.topic,
        "subscription": arguments.subscription,
    }
    return DataAddress({key: value for key, value in options.items() if value is not None})


@contextlib.contextmanager
def _session(arguments: argparse.Namespace) -> Iterator[Any]:
    from ackgate.pipeline.session import local_session  # noqa: PLC0415 - Spark, when it is needed

    with tempfile.TemporaryDirectory(
        prefix="ackgate-pipeline-", ignore_cleanup_errors=True
    ) as scratch:
        session = local_session(
            arguments.master,
            app_name=f"ackgate {arguments.job}",
            scratch=Path(scratch),
            driver_memory=arguments.driver_memory,
            settings=spark_settings(arguments),
        )
        if not arguments.verbose:
            _hush(session)
        register(session)
        try:
            with _interruptible():
                yield session
        except KeyboardInterrupt:
            raise  # amid a call to Java, which cannot be called again; it ends with this process
        except BaseException:
            _stop(session)
            raise
        _stop(session)


def _hush(session: Any) -> None:  # noqa: ANN401 - Spark has no types here
    """No page of traces for a task that failed, nor for a call to Java that was interrupted."""
    session.sparkContext.setLogLevel("OFF")
    logging.getLogger().addFilter(lambda _: False)  # py4j's own; loggers with a name are not asked


def _stop(session: Any) -> None:  # noqa: ANN401 - Spark has no types here
    with contextlib.suppress(Exception):  # done, or failed for a reason of its own
        session.stop()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Python's own way of being interrupted.

    PySpark's handler calls Java amid a call to Java, which ends in a page of traces.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _trace(arguments: argparse.Namespace) -> None:
    if arguments.verbose:
        traceback.print_exc()


def _failed(why: str, code: int) -> int:
    print(f"ackgate: {why}", file=sys.stderr)  # noqa: T201
    return code
