"""The command ``ackgate pipeline rebuild-delayed-index``.

Edge. Spark is imported when the job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from ackgate.pipeline.job import JobRun, JobSummary


class RebuildDelayedIndex:
    """The job."""

    name = "rebuild-delayed-index"
    help = "delayed buckets from messages and ack state, for a broker to load at its next start"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What only this job has."""
        group = parser.add_argument_group("rebuild-delayed-index")
        group.add_argument(
            "--beside",
            action="store_true",
            help="only write the index below --output; the storage stays as it is, and brokers may run",
        )
        group.add_argument(
            "--now-ms",
            type=int,
            metavar="MS",
            help="what is due by then is left to the broker (default: by now)",
        )
        group.add_argument(
            "--on-corrupt",
            choices=("fail", "skip"),
            default="fail",
            help="messages that no copy gives: fail, or leave them to the broker (default: fail)",
        )

    def run(self, run: JobRun) -> JobSummary:
        """Raises `AckGateError` for what the user can mend."""
        from ackgate.pipeline.jobs.rebuild_delayed_index.rebuild import Rebuild  # noqa: PLC0415

        return Rebuild(run).run()


JOB: Final = RebuildDelayedIndex()
