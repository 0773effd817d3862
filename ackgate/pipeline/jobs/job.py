"""What a job of the pipeline is, and what it gets to run.

A job is a folder below ``ackgate/pipeline/jobs``, with one form for all::

    job.py      edge: its arguments, and `run`: read tables, keep frames, write results, page, summary
                (of a job that is no more than its arguments and a call: `__init__.py`)
    frames.py   from DataFrames to DataFrames; needs no command line
    page.py     pure: the report, of values that the driver has collected
    others      pure: what tasks work out, with no word of Spark
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ackgate.pipeline.schema.addresses import shown_address

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

REPORT_FILE: Final = "report.html"

DataFrame: TypeAlias = Any
"""Spark's, which has no types here."""

Figure: TypeAlias = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class SummaryTable:
    """A small table at the end of a job, with the most important results."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Figure, ...]]
    rows_left_out: int = 0


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Figures and tables that a job ends with."""

    figures: Mapping[str, Figure]
    """Name to number; the names are the keys of the JSON object."""
    tables: tuple[SummaryTable, ...] = ()
    is_fine: bool = True
    """False: it ran, and found what must not be (a loss, a damaged ledger). Exit code 1."""


@dataclass(frozen=True, slots=True)
class DataAddress:
    """Where the ledgers are, as the data source's options have it."""

    options: Mapping[str, str] = field(repr=False)
    """`path`, `metadataUrl`, `bookies`, `config` and so on; may hold a password."""

    @property
    def path(self) -> str:
        """The data directory, for people: no user and no password in it."""
        names = ("pulsar", "path", "metadataUrl", "config")
        given = next((self.options[name] for name in names if name in self.options), "")
        return ",".join(shown_address(each) for each in given.split(",")) or "?"


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job."""

    spark: Any
    data: DataAddress
    output: Path
    """An empty directory. What is written below it appears under its final name when the job has
    ended well, all at once, and is removed when it has not."""
    arguments: argparse.Namespace
    result_format: str
    """What results are written as: parquet, csv, json, orc."""
    progress: Callable[[str], None]
    """Shows people what is being done."""
    kept: ExitStack = field(default_factory=ExitStack, compare=False)
    """Closed at the job's end; frees what `keep` has kept."""

    def read(self, table: str, **options: str) -> DataFrame:
        """A table of the data, lazily. Options as the data source has them: ``topic``, ``columns``."""
        reader = self.spark.read.format("ackgate").options(**self.data.options, table=table)
        return reader.options(**options).load()

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once and kept on disk until the job ends."""
        from pyspark import StorageLevel  # noqa: PLC0415

        persisted = frame.persist(StorageLevel.DISK_ONLY)
        self.kept.callback(persisted.unpersist)
        return persisted

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a result below the output, as `name`."""
        frame.write.format(self.result_format).save(str(self.output / name))

    def write_page(self, page: str) -> None:
        """Write the report beside the results."""
        (self.output / REPORT_FILE).write_text(page, encoding="utf-8")


class Job(Protocol):
    """One command of ``ackgate pipeline``.

    A job may have two more attributes: `needs_spark` (default True), and `reads_pulsar` (default False):
    whether it offers ``--pulsar``, the address of a real Pulsar cluster.
    """

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def help(self) -> str: ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the job's own arguments to those of every job. Imports no Spark."""

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raise `ConfigurationError` for arguments that make no sense.

        Called before Spark starts.
        """

    def run(self, run: JobRun) -> JobSummary:
        """Run the job. Raises `AckGateError` for what the user can fix."""
