"""``ackgate pipeline JOB``: a session, the job, its output and its summary; errors in one line.

Edge: the terminal. Exit codes: 0 fine; 1 the job failed, or found something that must not be; 2 rejected (a
topic that does not exist, an output that does); 130 and 143 interrupted and terminated. The summary is the
only thing on standard output.
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

from ackgate.errors import AckGateError, CallerError, ConfigurationError, OwnershipError
from ackgate.pipeline.catalogue.catalogue import open_catalogue
from ackgate.pipeline.jobs.job import DataAddress, JobRun
from ackgate.pipeline.running.arguments import (
    check_arguments,
    needs_spark,
    parse_command,
    spark_settings,
)
from ackgate.pipeline.running.failures import is_of_spark, message_of, not_started
from ackgate.pipeline.running.outputs import output_directory, staged_output
from ackgate.pipeline.running.session import check_master, check_spark_can_run, register_source
from ackgate.pipeline.running.terminal import JobProgress, summary_json, summary_text
from ackgate.pipeline.schema.options import parse_options
from ackgate.standard_output import unwritten, written_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from ackgate.pipeline.jobs.job import Job, JobSummary

EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

SUMMARY_FILE: Final = "summary.json"
JAVA_LOG_BYTES_MAX: Final = 100_000
"""How much of the end of Java's output is searched for the reason that it did not start."""


def run_pipeline(words: Sequence[str], *, spark: Any = None) -> int:  # noqa: ANN401 - no types
    """Run one job; returns the exit code.

    `spark` is a session that the caller has, and keeps: a notebook's. Otherwise one is made for the
    job, as the command line says, and ends with it.
    """
    arguments, job = parse_command(words)
    try:
        summary = _run(job, arguments, spark)
    except _TerminatedError:
        return _failed("terminated; nothing was written", EXIT_TERMINATED)
    except KeyboardInterrupt:
        return _failed("interrupted; nothing was written", EXIT_INTERRUPTED)
    except AckGateError as error:
        _trace(arguments)
        is_refused = isinstance(error, CallerError | ConfigurationError | OwnershipError)
        return _failed(str(error), EXIT_REFUSED if is_refused else EXIT_FAILED)
    except Exception as error:
        _trace(arguments)
        if not is_of_spark(error):
            raise
        return _failed(message_of(str(error)), EXIT_FAILED)
    code = 0 if summary.is_fine else EXIT_FAILED
    try:
        print(summary_json(summary) if arguments.json else summary_text(summary))  # noqa: T201
    except OSError as error:
        return unwritten(error, code)
    return written_out(code)


def _run(job: Job, arguments: argparse.Namespace, spark: Any) -> JobSummary:  # noqa: ANN401
    with contextlib.ExitStack() as stack:
        stack.enter_context(_interruptible())
        is_on_spark = needs_spark(job)
        output = output_directory(arguments.output)
        check_arguments(job, arguments)
        if is_on_spark and spark is None:
            check_spark_can_run()
            check_master(arguments.master)
        data = _data_address(arguments) if is_on_spark else DataAddress({})
        if is_on_spark:
            check_data(data.options)
        staging = stack.enter_context(staged_output(output))
        if is_on_spark and spark is None:
            spark = stack.enter_context(_session(arguments))
        elif is_on_spark:
            register_source(spark)
        progress = stack.enter_context(JobProgress.on_terminal(spark))
        run = JobRun(
            spark=spark,
            data=data,
            output=staging,
            arguments=arguments,
            result_format=getattr(arguments, "format", "parquet"),
            progress=progress.report,
        )
        with run.kept:
            summary = job.run(run)
        if is_on_spark:
            (staging / SUMMARY_FILE).write_text(summary_json(summary) + "\n", encoding="utf-8")
        return summary


def _data_address(arguments: argparse.Namespace) -> DataAddress:
    pulsar = getattr(arguments, "pulsar", None)
    given = (pulsar, arguments.data_dir, arguments.metadata_url, arguments.config)
    if all(each is None for each in given):
        raise ConfigurationError(
            "--data-dir (or --config, or --metadata-url and --bookies) says where to read"
        )
    options = {
        "path": arguments.data_dir,
        "config": arguments.config,
        "metadataUrl": arguments.metadata_url,
        "bookies": arguments.bookies,
        "pulsar": pulsar,
        "bookkeeper": arguments.bookkeeper,
        "topic": arguments.topic,
        "subscription": arguments.subscription,
    }
    return DataAddress({key: value for key, value in options.items() if value is not None})


@contextlib.contextmanager
def _session(arguments: argparse.Namespace) -> Iterator[Any]:
    from ackgate.pipeline.running import session as sessions  # noqa: PLC0415

    is_quiet = not arguments.verbose
    with tempfile.TemporaryDirectory(
        prefix="ackgate-pipeline-", ignore_cleanup_errors=True
    ) as directory:
        scratch = Path(directory)
        log = scratch / "java.log"
        try:
            with sessions.java_output(log if is_quiet else None):
                session = sessions.local_session(
                    arguments.master,
                    app_name=f"ackgate {arguments.job}",
                    scratch=scratch,
                    driver_memory=arguments.driver_memory,
                    settings=spark_settings(arguments),
                    executor_python=arguments.executor_python,
                    py_files=arguments.py_files,
                    log_level="off" if is_quiet else "warn",
                )
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise ConfigurationError(not_started(str(error), _tail(log))) from error
        if is_quiet:
            _hush()
        register_source(session)
        try:
            with _interruptible():  # again: the session has brought its own way
                if sessions.is_cluster(arguments.master):
                    sessions.wait_for_executors(session, _report)
                yield session
        except KeyboardInterrupt:
            raise  # during a call to Java, which cannot be called again; it ends with this process
        except BaseException:
            _stop(session)
            raise
        _stop(session)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - JAVA_LOG_BYTES_MAX))
        return file.read().decode(errors="replace")
    return ""


def _hush() -> None:
    """No page of traces for a call to Java that was interrupted."""
    logging.getLogger().addFilter(lambda _: False)  # py4j reports some errors to the root logger,
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)  # and its own of others


def _stop(session: Any) -> None:  # noqa: ANN401 - Spark has no types here
    with contextlib.suppress(Exception):  # done, or failed for a reason of its own
        session.stop()


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised like an interrupt."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Python's own way of being interrupted, for SIGTERM as well.

    PySpark's handler calls Java during a call to Java, which ends in a page of traces.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


def _terminate(*_: object) -> None:
    raise _TerminatedError


def _trace(arguments: argparse.Namespace) -> None:
    if arguments.verbose:
        traceback.print_exc()


def _failed(why: str, code: int) -> int:
    _report(f"ackgate: {why}")
    return code


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def check_data(options: Mapping[str, str]) -> None:
    """Look for the store, the bookies, the topic and the subscription that the options name.

    Raises `ConfigurationError`, `CallerError` with near matches, `StorageError`, `CorruptRecordError`.
    """
    wanted = parse_options(options)
    if wanted.pulsar is not None:
        from ackgate.pipeline.source.pulsar_tables import check_pulsar  # noqa: PLC0415 - an extra

        check_pulsar(wanted)
        return
    with open_catalogue(wanted) as catalogue:
        topics = catalogue.topics(wanted.topics)
        if wanted.subscription is not None:
            catalogue.all_cursors(topics, wanted.subscription)
