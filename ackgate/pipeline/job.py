"""What a job of the pipeline is, and what it is given to run.

A job is a module below ``ackgate/pipeline/jobs``: functions from DataFrames to DataFrames, which
need no command line, and a `Job` that reads the tables, calls them and writes what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ackgate.pipeline.data_addresses import shown_address

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

DataFrame: TypeAlias = Any
"""Spark's, which has no types here."""

Figure: TypeAlias = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class SummaryTable:
    """A small table at the end of a job: what a person wants to see first."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Figure, ...]]
    rows_left_out: int = 0


@dataclass(frozen=True, slots=True)
class JobSummary:
    """What a job tells at its end, as a table and as JSON."""

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
        given = self.options.get("path", self.options.get("metadataUrl", ""))
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
    """Tell people what is being done."""

    def read(self, table: str, **options: str) -> DataFrame:
        """A table of the data, lazily. Options as the data source has them: ``topic``, ``columns``."""
        reader = self.spark.read.format("ackgate").options(**self.data.options, table=table)
        return reader.options(**options).load()

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a result below the output, as `name`."""
        frame.write.format(self.result_format).save(str(self.output / name))


class Job(Protocol):
    """One command of ``ackgate pipeline``."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def help(self) -> str:
        """A line."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its own, beside those of every job. Imports no Spark."""

    def run(self, run: JobRun) -> JobSummary:
        """Do it. Raises `AckGateError` for what the user can mend."""
