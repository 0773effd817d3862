"""What options leave of the tables: topics, ledgers, entries, times; and the state as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ackgate import EmbeddedStorage, open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import CallerError
from ackgate.persistence import CursorStore
from tests.unit.pipeline.table_reads import PUBLISHED_MS, message, put_ledger, read_table

ENTRIES = 60
TOPICS = ("orders", "payments", "empty")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics with two ledgers each, the one's entries with checksums in front and without."""
    root = tmp_path_factory.mktemp("filters")

    async def make() -> None:
        async with open_embedded(root) as storage:
            for topic in TOPICS[:2]:
                for first in (0, ENTRIES):
                    entries = [
                        message(number, with_magic=bool(number % 2))
                        for number in range(first, first + ENTRIES)
                    ]
                    await put_ledger(storage, topic, entries)
            await put_ledger(storage, "empty", [])

    asyncio.run(make())
    return root


def numbers(data: Path, **options: str) -> list[int]:
    rows = read_table(data, "messages", **options)
    assert len({(row["ledger_id"], row["entry_id"]) for row in rows}) == len(rows)
    return sorted(row["sequence_id"] for row in rows)


def test_several_topics(data: Path) -> None:
    rows = read_table(data, "messages")
    found = {(row["topic"].rpartition("/")[2], row["sequence_id"]) for row in rows}
    assert found == {(topic, n) for topic in TOPICS[:2] for n in range(2 * ENTRIES)}
    two = numbers(data, topic="embedded/default/orders, embedded/default/payments")
    assert len(two) == 4 * ENTRIES
    assert numbers(data, topic="embedded/default/orders") == list(range(2 * ENTRIES))
    assert numbers(data, topic="embedded/default/empty") == []


def test_ledgers_and_entries(data: Path) -> None:
    rows = read_table(data, "ledgers", topic="embedded/default/orders")
    first, second = (row["ledger_id"] for row in rows)
    assert numbers(data, ledgerIds=str(second)) == list(range(ENTRIES, 2 * ENTRIES))
    chosen = numbers(data, ledgerIds=f"{first},{second}", entryIds="58-1000,3,2-3")
    assert chosen == [2, 3, 58, 59, *(ENTRIES + n for n in (2, 3, 58, 59))]
    assert numbers(data, ledgerIds="4711") == []
    assert numbers(data, entryIds="60") == []


def test_publish_times_are_both_included(data: Path) -> None:
    one = {"topic": "embedded/default/orders"}
    between = numbers(
        data,
        minPublishTimeMs=str(PUBLISHED_MS + 55),
        maxPublishTimeMs=str(PUBLISHED_MS + 64),
        columns="ledger_id,entry_id,sequence_id",
        **one,
    )
    assert between == list(range(55, 65))
    assert numbers(data, minPublishTimeMs=str(PUBLISHED_MS + 118), **one) == [118, 119]
    assert numbers(data, maxPublishTimeMs=str(PUBLISHED_MS), **one) == [0]
    assert numbers(data, maxPublishTimeMs="0", **one) == []


def acked(rows: list[dict[str, Any]], ledger_id: int) -> set[int]:
    """Entries that rows of `ack_state` say are acked."""
    found = set()
    for row in rows:
        assert row["ledger_id"] == ledger_id
        if row["kind"] != "partly_acked":
            found.update(range(row["first_entry_id"], row["end_entry_id"]))
    return found


STEPS = (range(5), range(10, 30, 2), range(5, 8), range(40, 60, 3), range(8, 25))


async def test_the_ack_state_of_every_version_and_time(tmp_path: Path) -> None:
    after: list[set[int]] = []
    async with open_embedded(tmp_path) as storage:
        ledger_id = await put_ledger(storage, "orders", map(message, range(ENTRIES)))
        store = await _cursor(storage, ledger_id)
        for step in STEPS:
            store.cursor.ack_many(ledger_id, step)
            await until_durable(store)
            after.append((after[-1] if after else set()) | set(step))
        rows = await asyncio.to_thread(read_table, tmp_path, "ledgers", subscription="billing")
        assert [(row["role"], row["subscription"]) for row in rows] == [("cursor", "billing")]
        # Beside a writer: a cursor that is closed keeps no more than its newest state.
        await asyncio.to_thread(_check_history, tmp_path, ledger_id, after)
    assert acked(read_table(tmp_path, "ack_state"), ledger_id) == after[-1]


def _check_history(root: Path, ledger_id: int, after: list[set[int]]) -> None:
    records = [row for row in read_table(root, "cursor_records") if row["place"] == "ledger"]
    versions = sorted({row["version"] for row in records})
    assert len(versions) == len(STEPS)
    states = {}
    for version in versions:
        rows = read_table(root, "ack_state", version=str(version))
        assert {row["version"] for row in rows} == {version}
        states[version] = acked(rows, ledger_id)
    assert list(states.values()) == after
    # A version that was never written: what was newest then.
    newest = read_table(root, "ack_state", version=str(versions[-1] + 1000))
    assert acked(newest, ledger_id) == after[-1]
    times = sorted({row["written_ms"] for row in records})
    for at_ms in (*times, times[-1] + 1):
        then = max(row["version"] for row in records if row["written_ms"] <= at_ms)
        assert acked(read_table(root, "ack_state", atMs=str(at_ms)), ledger_id) == states[then]
    assert read_table(root, "ack_state", atMs="1") == []


async def _cursor(storage: EmbeddedStorage, ledger_id: int) -> CursorStore:
    facts = MessageLedgers()
    facts.open_ledger(ledger_id)
    facts.add_entries(ledger_id, ENTRIES)
    return await storage.open_cursor("orders", "billing", facts, create_at=Position(ledger_id, -1))


async def test_a_version_of_which_nothing_is_kept(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        ledger_id = await put_ledger(storage, "orders", map(message, range(ENTRIES)))
        store = await _cursor(storage, ledger_id)
        store.cursor.ack_many(ledger_id, range(3, 9, 2))
        await until_durable(store)
    (row,) = await asyncio.to_thread(read_table, tmp_path, "cursor_records")
    assert row["version"] > 0
    with pytest.raises(CallerError, match=r"'billing' of .*orders: nothing is stored any more"):
        await asyncio.to_thread(read_table, tmp_path, "ack_state", version="0")
