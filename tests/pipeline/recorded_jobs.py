"""Jobs on the recorded run by the command, in the session of all tests: each runs once, and many read it."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from pyarrow import parquet

from tests.pipeline.recorded import RecordedRun

LIMIT: Final = "managedLedgerMaxUnackedRangesToPersist"
OPTIONS: Final = {
    "ack-stats": ("--limit", "40"),
    "audit": (),
    "what-if": ("--set", f"{LIMIT}=10,100000"),
}
AS_KILLED: Final = "ack-stats"
"""The job that reads what kill -9 left; the others read what a broker left that ended well."""


@dataclass(frozen=True, slots=True)
class JobDone:
    """What a job leaves."""

    code: int
    printed: str
    """Its summary, as JSON."""
    output: Path

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Of one result."""
        found: list[dict[str, Any]] = parquet.read_table(self.output / name).to_pylist()
        return found


JobsHere: TypeAlias = Callable[[str], JobDone]


def words_of(job: str, run: RecordedRun, output: Path) -> list[str]:
    """The words after ``ackgate pipeline``."""
    data = run.killed_data_dir if job == AS_KILLED else run.data_dir
    return [job, "--data-dir", str(data), *OPTIONS[job], "--json", "--output", str(output)]


@pytest.fixture(scope="session")
def job_here(
    spark: Any, recorded_run: RecordedRun, tmp_path_factory: pytest.TempPathFactory
) -> JobsHere:
    """By name of the job, which is run when it is first asked for."""
    from ackgate.pipeline.command import run_pipeline

    @functools.cache
    def done(job: str) -> JobDone:
        output = tmp_path_factory.mktemp(job) / "out"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = run_pipeline(words_of(job, recorded_run, output), spark=spark)
        return JobDone(code, printed.getvalue(), output)

    return done
