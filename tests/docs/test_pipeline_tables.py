"""What `docs/pipeline.md` says of the data source: its options and tables are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

from ackgate.pipeline.schema.document import BEGIN, END, put_into
from ackgate.pipeline.schema.options import OPTIONS, TABLES_OF
from ackgate.pipeline.schema.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
OPTION = re.compile(r"`([a-z]+[A-Z][A-Za-z]+)(?:=[a-z]+)?`")


def test_options_and_columns_on_the_page_are_fresh(*, rewrite: bool) -> None:
    page = PAGE.read_text()
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    if rewrite:
        PAGE.write_text(put_into(page))
    assert PAGE.read_text() == put_into(page), "run pytest --rewrite and read the difference"


def test_options_in_the_text_are_there() -> None:
    section = PAGE.read_text().partition("## The tables")[2].partition(BEGIN)[0]
    named = set(OPTION.findall(section)) - {
        "readStream",
        "availableNow",
        "bookkeeperMetadataServiceUri",
    }
    assert named
    assert named <= set(OPTIONS)


def test_every_option_is_of_tables_that_there_are() -> None:
    assert set(TABLES_OF) <= set(OPTIONS)
    assert {table for tables in TABLES_OF.values() for table in tables} <= set(TABLES)
