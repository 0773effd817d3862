"""The command ``ackgate pipeline generate``: its options and its summary."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from ackgate.pipeline.jobs.generate.plan import PLAN_FIELDS, START_MS, GeneratePlan
from ackgate.pipeline.jobs.job import JobSummary

if TYPE_CHECKING:
    import argparse

    from ackgate.pipeline.jobs.job import JobRun


class GenerateJob:
    """Writes a data directory, which is also the job's output. Runs without Spark."""

    name = "generate"
    help = "make a data directory of any size, which a broker can start on; the same for one seed"
    needs_spark = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--data-dir`` and one option for each field of `GeneratePlan`."""
        parser.add_argument(
            "--data-dir",
            dest="output",
            required=True,
            metavar="DIR",
            help="directory to create; must not exist",
        )
        parser.add_argument("--messages", type=int, required=True, metavar="N")
        parser.add_argument("--seed", type=int, required=True, metavar="N")
        for name, default, what in _NUMBERS:
            parser.add_argument(
                name, type=int, default=default, metavar="N", help=f"{what} (default: {default})"
            )
        for name, what in _SHARES:
            parser.add_argument(name, type=float, default=0.0, metavar="SHARE", help=what)

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raise `ConfigurationError` for an impossible plan."""
        _plan(arguments)

    def run(self, run: JobRun) -> JobSummary:
        """Write the data directory. Raises `ConfigurationError` or `StorageError`."""
        from ackgate.pipeline.jobs.generate.writing import write_data  # noqa: PLC0415 - not to parse

        plan = _plan(run.arguments)
        begun = time.perf_counter()
        written = asyncio.run(write_data(run.output, plan, run.progress))
        seconds = time.perf_counter() - begun
        return JobSummary(
            {
                "messages": plan.messages,
                "topics": plan.topics,
                "entries": written.entries,
                "message_ledgers": written.message_ledgers,
                "entry_bytes": written.entry_bytes,
                "cursors": written.cursors,
                "seconds": round(seconds, 3),
                "messages_per_second": round(plan.messages / seconds),
            }
        )


def _plan(arguments: argparse.Namespace) -> GeneratePlan:
    return GeneratePlan(**{name: getattr(arguments, name) for name in PLAN_FIELDS})


_NUMBERS: Final = (
    ("--topics", 1, "topics, generated-0 and on"),
    ("--subscriptions", 1, "on each topic, subscription-0 and on"),
    ("--keys", 1_000, "different keys; 0: none"),
    ("--properties", 0, "of each message, property-0 and on"),
    ("--event-seconds-max", 0, "how long before publishing its event time may be; 0: it has none"),
    ("--batch-size", 1, "messages in an entry"),
    ("--payload-bytes", 100, "of each message"),
    ("--ledger-entries", 50_000, "entries of a ledger"),
    ("--holes", 100, "entries of the acked part that are not acked, for each subscription"),
    ("--delay-seconds-max", 86_400, "longest delay of a delayed message"),
    ("--start-ms", START_MS, "publish time of the first message"),
)
_SHARES: Final = (
    ("--skew", "of the messages, for the first topic (default: as many for each)"),
    ("--delayed-share", "of the messages that are delayed (default: none)"),
    ("--acked-share", "of each topic that is acked, from its beginning (default: nothing)"),
)

JOB: Final = GenerateJob()

__all__ = ["JOB"]
