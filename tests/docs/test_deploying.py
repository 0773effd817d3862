"""What `docs/deploying.md` says of stored formats is what the code says; its links and files exist."""

from __future__ import annotations

import re
from pathlib import Path

from ackgate.persistence.bookies import avro_container, layout
from ackgate.persistence.metadata import node_table
from ackgate.persistence.nodes import sealed_json
from ackgate.persistence.records import codec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploying.md").read_text()


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_formats_are_those_of_the_code() -> None:
    table = PAGE.partition("## Downgrade")[2]
    stated = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|", table, re.MULTILINE))
    assert {name: int(number) for name, number in stated.items()} == {
        "`metadata.sqlite`": node_table.FORMAT_VERSION,
        "states of cursors": codec.NEWEST_FORMAT,
        "the node of a topic": sealed_json.FORMAT_VERSION,
        "files of bookies": int(avro_container.FORMAT),
        "a bookie's identity": layout.IDENTITY_FORMAT,
        "the list of a delivery journal's ledgers": sealed_json.FORMAT_VERSION,
    }


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w.-]*)(?:#([\w-]+))?\)", PAGE)
    assert len(links) > 10
    for name, anchor in links:
        text = (ROOT / "docs" / name).read_text() if name else PAGE
        assert not anchor or anchor in anchors(text), (name, anchor)


def test_files_that_it_names_exist() -> None:
    named = set(re.findall(r"\b(?:deploy|tests)/[\w./-]+", PAGE))
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []
