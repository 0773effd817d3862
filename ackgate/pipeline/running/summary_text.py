"""A job's summary as text for people and as JSON for programs. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.jobs.job import Figure, JobSummary, SummaryTable


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
