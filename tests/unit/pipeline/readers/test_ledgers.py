"""Rows of the table `ledgers`: of a ledger whose ensemble changed, and of each kind of owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ackgate.persistence import DigestType, Fragment, LedgerMetadata, LedgerState
from ackgate.persistence.buckets.snapshots import DELAYED_CURSOR_KEY
from ackgate.persistence.cursors.ledger import CURSOR_PATH_KEY
from ackgate.persistence.deliveries.node import JOURNAL_TOPIC_KEY
from ackgate.persistence.nodes.paths import DELAYED_INDEX_CURSOR
from ackgate.persistence.nodes.topic_node import TOPIC_PATH_KEY
from ackgate.pipeline.readers.ledgers import fragment_rows, ledger_rows
from ackgate.pipeline.schema.tables import LEDGERS
from ackgate.pipeline.storage.bookie_files import FoundFile, OpenBookies
from ackgate.pipeline.storage.places import BookiePlaces

TOPIC = "/managed-ledgers/public/default/persistent/orders%2F1"

CLOSED = LedgerMetadata(
    ledger_id=7,
    state=LedgerState.CLOSED,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    fragments=(Fragment(0, ("a", "b")), Fragment(50, ("a", "c"))),
    last_entry_id=119,
    length_bytes=4711,
    created_ms=1000,
    custom_metadata={TOPIC_PATH_KEY: TOPIC.encode()},
)


def test_a_row_for_each_fragment_with_its_files() -> None:
    files = [
        FoundFile("a", "/a/0", 0, 10),
        FoundFile("a", "/a/50", 50, 11),
        FoundFile("b", "/b/0", 0, 12),
        FoundFile("c", "/c/60", 60, 13),  # written again by a recovery
    ]

    first, second = fragment_rows(CLOSED, files)

    assert (first["fragment"], first["first_entry_id"], first["end_entry_id"]) == (0, 0, 50)
    assert first["ensemble"] == ["a", "b"]
    assert [file["file"] for file in first["files"]] == ["/a/0", "/b/0"]
    assert (second["fragment"], second["first_entry_id"], second["end_entry_id"]) == (1, 50, 120)
    assert [(f["bookie"], f["bytes"]) for f in second["files"]] == [("a", 11), ("c", 13)]
    assert {first["length_bytes"], second["length_bytes"]} == {4711}


def test_what_is_not_known_of_an_open_one() -> None:
    about = replace(CLOSED, state=LedgerState.OPEN, last_entry_id=-1, length_bytes=0)

    first, second = fragment_rows(about, [])

    assert (first["end_entry_id"], second["end_entry_id"]) == (50, None)
    assert (second["last_entry_id"], second["length_bytes"], second["state"]) == (
        None,
        None,
        "OPEN",
    )


@pytest.mark.parametrize(
    ("custom", "owner"),
    [
        ({TOPIC_PATH_KEY: TOPIC}, ("messages", True, None)),
        ({CURSOR_PATH_KEY: f"{TOPIC}/billing"}, ("cursor", True, "billing")),
        ({DELAYED_CURSOR_KEY: f"{TOPIC}/billing"}, ("delayed", True, "billing")),
        ({DELAYED_CURSOR_KEY: f"{TOPIC}/{DELAYED_INDEX_CURSOR}"}, ("delayed", True, None)),
        ({JOURNAL_TOPIC_KEY: TOPIC}, ("journal", True, None)),
        ({}, ("other", False, None)),
    ],
)
def test_role_topic_and_subscription(
    custom: dict[str, str], owner: tuple[str, bool, str | None]
) -> None:
    marks = {key: path.encode() for key, path in custom.items()}

    row = next(fragment_rows(replace(CLOSED, custom_metadata=marks), []))

    topic = "persistent://public/default/orders/1" if owner[1] else None
    assert (row["role"], row["topic"], row["subscription"]) == (owner[0], topic, owner[2])


def test_batches_of_the_columns_asked_for() -> None:
    columns = LEDGERS.select(["end_entry_id", "ledger_id"])

    with OpenBookies(BookiePlaces({})) as bookies:
        (batch,) = ledger_rows(bookies, [CLOSED, replace(CLOSED, ledger_id=8)], columns)

    assert batch.to_pylist() == [
        {"end_entry_id": end, "ledger_id": ledger_id} for ledger_id in (7, 8) for end in (50, 120)
    ]
