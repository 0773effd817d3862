"""The command ``ackgate pipeline rebuild-delayed-index``.

Edge. Spark is imported when the job runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.config.load import load_settings
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from ackgate.pipeline.jobs.job import JobRun, JobSummary


class RebuildDelayedIndex:
    """Rebuilds delayed buckets: in a stopped broker's storage, or as rows below the output."""

    name = "rebuild-delayed-index"
    help = (
        "make delayed buckets from messages and ack state, for a broker to load at its next start"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--beside``, ``--now-ms`` and ``--on-corrupt``."""
        group = parser.add_argument_group("rebuild-delayed-index")
        group.add_argument(
            "--beside",
            action="store_true",
            help="write the index below --output only and change no storage; brokers may run",
        )
        group.add_argument(
            "--now-ms",
            type=int,
            metavar="MS",
            help="leave messages that are due by then to the broker (default: now)",
        )
        group.add_argument(
            "--on-corrupt",
            choices=("fail", "skip"),
            default="fail",
            help="messages without a good copy: fail, or leave them to the broker (default: fail)",
        )

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raise `ConfigurationError` if settings or ``--now-ms`` allow no rebuild."""
        from ackgate.pipeline.jobs.rebuild_delayed_index.finding import (  # noqa: PLC0415
            check_settings,
        )

        config = None if arguments.config is None else Path(arguments.config)
        check_settings(
            load_settings(config, is_serving=False).settings.delayed, arguments.subscription
        )
        now_ms = arguments.now_ms
        if now_ms is not None and not 0 <= now_ms <= TIME_MS_MAX:
            raise ConfigurationError(f"--now-ms {now_ms}: must be 0 to {TIME_MS_MAX}")

    def run(self, run: JobRun) -> JobSummary:
        """Run the job. Raises `AckGateError` for what the user can fix."""
        from ackgate.pipeline.jobs.rebuild_delayed_index.rebuild import Rebuild  # noqa: PLC0415

        return Rebuild(run).run()


JOB: Final = RebuildDelayedIndex()

__all__ = ["JOB"]
