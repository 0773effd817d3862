"""The command line of ``ackgate pipeline``: what all jobs understand, and the job's own beside it.

Jobs are loaded for this, and none of them imports Spark by that. One that is not part of this build
is not offered.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.jobs.job import Job

JOBS: Final = {
    "rebuild-delayed-index": "delayed buckets from messages and ack state, for a broker to load",
    "audit": "what was delivered to whom, how often, how late; losses and duplicates",
    "ack-stats": "history of ack ranges and holes, and when each limit will be reached",
    "what-if": "replay recorded traffic under other settings",
    "generate": "a data directory of any size, without a broker and without Spark",
}
"""Job to a line of help."""

FORMATS: Final = ("parquet", "csv", "json", "orc")

_PACKAGE: Final = "ackgate.pipeline.jobs"
_EPILOG: Final = (
    "Exit codes: 0 fine, 1 failed or found a defect, 2 rejected (arguments, data, Java)."
)


def parse_command(words: Sequence[str]) -> tuple[argparse.Namespace, Job]:
    """Read the arguments of ``ackgate pipeline``. Ends the process for help and mistakes."""
    parser = argparse.ArgumentParser(
        prog="ackgate pipeline",
        description="Jobs on Spark over everything that a broker has stored.",
        epilog=_EPILOG,
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    offered = offered_jobs()
    for name in offered:
        jobs.add_parser(name, help=JOBS[name], add_help=False)
    if not words or words[0] not in offered:
        parser.parse_args(words)  # help, or what is wrong
        raise AssertionError(words)
    job = load_job(words[0])
    own = argparse.ArgumentParser(
        prog=f"ackgate pipeline {job.name}", description=job.help, epilog=_EPILOG
    )
    if needs_spark(job):
        _add_output_arguments(own)
        _add_data_arguments(own, has_pulsar=reads_pulsar(job))
        _add_spark_arguments(own)
    job.add_arguments(own)
    _add_common_arguments(own)
    arguments = own.parse_args(words[1:])
    arguments.job = job.name
    return arguments, job


def offered_jobs() -> tuple[str, ...]:
    """Names of the jobs in this build."""
    return tuple(name for name in JOBS if _has_job(_module_of(name)))


def load_job(name: str) -> Job:
    """The job of this name, which must be one of `offered_jobs`."""
    job: Job = importlib.import_module(_module_of(name)).JOB
    return job


def _has_job(module: str) -> bool:
    is_there = importlib.util.find_spec(module) is not None
    return is_there and hasattr(importlib.import_module(module), "JOB")


def _module_of(name: str) -> str:
    return f"{_PACKAGE}.{name.replace('-', '_')}"


def needs_spark(job: Job) -> bool:
    """Whether the job needs a session: yes, unless it has ``needs_spark = False``."""
    return bool(getattr(job, "needs_spark", True))


def reads_pulsar(job: Job) -> bool:
    """Whether the job reads real Pulsar clusters, too: only if it has ``reads_pulsar = True``."""
    return bool(getattr(job, "reads_pulsar", False))


def check_arguments(job: Job, arguments: argparse.Namespace) -> None:
    """Have the job check its arguments, before Spark starts.

    Raises `ConfigurationError`.
    """
    check = getattr(job, "check_arguments", None)
    if check is not None:
        check(arguments)


def spark_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Spark's settings from ``--conf KEY=VALUE``. Raises `ConfigurationError`."""
    settings = {}
    for word in arguments.conf:
        key, sign, value = word.partition("=")
        if not sign or not key.strip():
            raise ConfigurationError(f"--conf {word!r}: must be KEY=VALUE")
        settings[key.strip()] = value
    return settings


def _files(text: str) -> tuple[Path, ...]:
    return tuple(Path(word.strip()) for word in text.split(",") if word.strip())


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="where results go; must not exist"
    )


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="show where an error arose")


def _add_data_arguments(parser: argparse.ArgumentParser, *, has_pulsar: bool) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data-dir", metavar="DIR", help="data directory of a broker: a path or an address"
    )
    group.add_argument("--config", metavar="FILE", help="the broker's broker.conf")
    group.add_argument("--metadata-url", metavar="URL", help="sqlite:PATH or zk:HOST:PORT,.../ROOT")
    group.add_argument("--bookies", metavar="DIR[,DIR]", help="storage directories")
    if has_pulsar:
        group.add_argument(
            "--pulsar",
            metavar="URL",
            help="instead of all these a real Pulsar cluster: zk:HOST:PORT,.../CHROOT",
        )
    group.add_argument(
        "--bookkeeper",
        metavar="URI",
        help="the BookKeeper cluster that has the ledgers, where --config does not name it",
    )
    group.add_argument("--topic", help="only this one")
    group.add_argument("--subscription", metavar="S", help="only this one")


def _add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master", default="local[*]", help="local[N] or spark://HOST:PORT (default: local[*])"
    )
    group.add_argument(
        "--py-files",
        type=_files,
        default=(),
        metavar="FILE[,FILE]",
        help="files that workers import: wheels (of ackgate), zips, modules",
    )
    group.add_argument(
        "--executor-python",
        metavar="PROGRAM",
        help="Python on the workers: a path, or a name on their PATH (default: the path of this one)",
    )
    group.add_argument(
        "--format", choices=FORMATS, default="parquet", help="format of results (default: parquet)"
    )
    group.add_argument(
        "--driver-memory", default="1g", metavar="SIZE", help="memory of the driver (default: 1g)"
    )
    group.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )
