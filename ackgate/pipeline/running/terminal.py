"""What the terminal shows of a job: what it does now, on standard error; its summary, at the end.

Edge: `JobProgress` owns a thread while there is a terminal and a session to ask. The summary is text for
people or JSON for programs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from ackgate.pipeline.jobs.job import Figure, JobSummary, SummaryTable

_POLL_SECONDS: Final = 0.5
_CLEAR_LINE: Final = "\r\x1b[K"


class JobProgress:
    """Shows on standard error what is being done."""

    def __init__(self, stream: TextIO, spark: Any) -> None:  # noqa: ANN401 - Spark's session
        self._stream = stream
        self._tracker = spark.sparkContext.statusTracker() if spark is not None else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_line_shown = False
        self._thread: threading.Thread | None = None

    @classmethod
    def on_terminal(cls, spark: Any) -> Self:  # noqa: ANN401
        """The progress of a session, on standard error."""
        return cls(sys.stderr, spark)

    def report(self, what: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._clear()
            print(what, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        if self._tracker is not None and self._stream.isatty():
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._clear()

    def _follow(self) -> None:
        with contextlib.suppress(Exception):  # a session that ends is asked no more
            while not self._ended.wait(_POLL_SECONDS):
                line = stages_line(self._stages())
                with self._lock:
                    self._clear()
                    if line:
                        self._stream.write(line)
                        self._stream.flush()
                        self._is_line_shown = True

    def _stages(self) -> list[tuple[int, int, int]]:
        assert self._tracker is not None
        found = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        return [(s.stageId, s.numCompletedTasks, s.numTasks) for s in found if s is not None]

    def _clear(self) -> None:
        if self._is_line_shown:
            self._stream.write(_CLEAR_LINE)
            self._is_line_shown = False


def stages_line(stages: list[tuple[int, int, int]]) -> str:
    """Of (stage, tasks done, tasks); nothing when none runs."""
    return "  ".join(f"stage {stage}: {done}/{tasks} tasks" for stage, done, tasks in stages)


def summary_text(summary: JobSummary) -> str:
    """Aligned: figures first, then each table."""
    blocks = []
    if summary.figures:
        blocks.append("\n".join(_aligned([[k, _shown(v)] for k, v in summary.figures.items()])))
    blocks += ["\n".join(_table(table)) for table in summary.tables]
    return "\n\n".join(blocks)


def summary_json(summary: JobSummary) -> str:
    """One object: ``is_fine``, the figures by name, the tables as lists of objects by title."""
    tables = {
        table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in summary.tables
    }
    content = {"is_fine": summary.is_fine, "figures": dict(summary.figures), "tables": tables}
    return json.dumps(content, indent=2, ensure_ascii=False)


def _table(table: SummaryTable) -> Iterator[str]:
    yield table.title
    yield from _aligned(
        [list(table.columns), *([_shown(value) for value in row] for row in table.rows)],
        right=[
            bool(table.rows) and all(_is_number(row[column]) for row in table.rows)
            for column in range(len(table.columns))
        ],
    )
    if table.rows_left_out:
        yield f"... and {table.rows_left_out:,} more"


def _aligned(lines: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> Iterator[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    sides = list(right) or [False] * len(widths)
    for line in lines:
        cells = zip(line, widths, sides, strict=True)
        yield "  ".join(
            text.rjust(width) if is_right else text.ljust(width) for text, width, is_right in cells
        ).rstrip()


def _is_number(value: Figure) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _shown(value: Figure) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3f}" if isinstance(value, float) else value
