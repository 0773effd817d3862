"""Writes what `docs/pipeline.md` says of options and tables, from those that there are.

``pytest --rewrite tests/docs/test_pipeline_tables.py`` puts it into the page, between two marks; the
same test keeps it fresh. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.pipeline.schema.options import OPTIONS, TABLES_OF
from ackgate.pipeline.schema.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.pipeline.schema.tables import Column, Table

BEGIN: Final = (
    "<!-- Generated from ackgate/pipeline/schema/options.py and tables.py: edit those. -->"
)
END: Final = "<!-- The end of what is generated. -->"


def document() -> str:
    """The generated text of `docs/pipeline.md`, from `BEGIN` to `END`."""
    tables = [line for table in TABLES.values() for line in _table(table)]
    return "\n".join([BEGIN, "", *_options(), *tables, END])


def put_into(page: str) -> str:
    """The page with the text between the marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + document() + rest.partition(END)[2]


def _options() -> Iterator[str]:
    yield "### Options"
    yield ""
    yield "| option | tables | meaning |"
    yield "|---|---|---|"
    for name, doc in OPTIONS.items():
        tables = ", ".join(f"`{table}`" for table in TABLES_OF.get(name, ())) or "all"
        yield f"| `{name}` | {tables} | {_cell(doc)} |"
    yield ""


def _table(table: Table) -> Iterator[str]:
    yield f"### `{table.name}`"
    yield ""
    yield table.doc
    yield ""
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for column in table.columns:
        yield f"| `{column.name}` | {_type(column)} | {_cell(column.doc)} |"
    yield ""


def _type(column: Column) -> str:
    words = [f"`{column.kind.value}`"]
    if column.is_nullable:
        words.append("or null")
    if column.is_heavy:
        words.append("(when named)")
    return " ".join(words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
