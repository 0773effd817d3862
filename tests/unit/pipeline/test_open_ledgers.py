"""How far a ledger is read that nobody closed: what is found in it, or what is confirmed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ackgate import open_embedded
from ackgate.errors import CallerError
from tests.unit.pipeline.table_reads import message, put_ledger, read_table

ENTRIES = 5


def entries(data: Path, **options: str) -> int:
    return len(read_table(data, "messages", **options))


@pytest.fixture
async def written(tmp_path: Path) -> Path:
    """Nobody has asked for anything since the last entry, so the one before is the last confirmed."""
    async with open_embedded(tmp_path) as storage:
        payloads = [message(number) for number in range(ENTRIES)]
        await put_ledger(storage, "orders", payloads, is_closed=False)
        as_usual, confirmed, found = [
            await asyncio.to_thread(entries, tmp_path, **options)
            for options in ({}, {"openLedgers": "confirmed"}, {"openLedgers": "found"})
        ]
    assert as_usual == confirmed < found == ENTRIES, "while it is written to"
    return tmp_path


def test_when_nobody_writes_all_that_is_found_is_read(written: Path) -> None:
    assert entries(written) == entries(written, openLedgers="found") == ENTRIES
    assert entries(written, openLedgers="auto") == ENTRIES
    assert entries(written, openLedgers="confirmed") < ENTRIES


def test_it_is_said_by_one_of_these_words_and_of_tables_that_have_a_use_for_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        CallerError, match=r"openLedgers: 'all' is not one of auto, found, confirmed"
    ):
        entries(tmp_path, openLedgers="all")
    with pytest.raises(CallerError, match="openLedgers has no meaning for table ack_state"):
        read_table(tmp_path, "ack_state", openLedgers="found")
