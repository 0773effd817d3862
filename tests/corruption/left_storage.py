"""A data directory with messages and acks, as a host left it, and whether it still says the same.

`Left.make` lives through several lives of `open_embedded` and keeps a copy of every earlier state, so that
old files can take the place of new ones. `verdict` opens a directory that was damaged and compares.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import ackgate
from ackgate.config.persistence import PersistenceSettings
from ackgate.cursor import Position
from ackgate.errors import AckGateError
from ackgate.persistence.ledgers.client import BookieLedgerClient

SETTINGS = PersistenceSettings(managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=3)
"""Cursors of more than a few ranges have ledgers of their own."""

LEFT = ("stopped", "killed", "killed when it was new")
TOPICS = ("orders", "bills")
SUBSCRIPTIONS = ("one", "two")
CLUSTER = "c1u57e4"

Payloads = dict[Position, bytes]
Acks = dict[tuple[str, str], frozenset[Position]]


@dataclass
class Left:
    """Where it lies, and what was confirmed."""

    directory: Path
    older: Path
    """The same directory as it was in an earlier life."""
    payloads: dict[str, Payloads] = field(default_factory=dict)
    """As stored, by topic and position."""
    acks: Acks = field(default_factory=dict)

    @classmethod
    async def make(cls, root: Path, left: str, rng: random.Random) -> Left:
        """Live, and leave in one of the ways."""
        working, found, older = root / "working", root / "left", root / "older"
        made = cls(found, older)
        lives = 1 if left == "killed when it was new" else 3
        for life in range(lives):
            async with ackgate.open_embedded(working, settings=SETTINGS) as storage:
                assert isinstance(storage.ledger_client, BookieLedgerClient)
                for bookie in storage.ledger_client.bookies:
                    await bookie.claim(CLUSTER)
                await made._work(storage, rng)
                if life + 1 == lives and left != "stopped":
                    shutil.copytree(working, found)
                elif life + 2 == lives or lives == 1:
                    shutil.rmtree(older, ignore_errors=True)
                    shutil.copytree(working, older)
        if left == "stopped":
            shutil.copytree(working, found)
        if not older.exists():
            shutil.copytree(found, older)
        return made

    async def _work(self, storage: ackgate.EmbeddedStorage, rng: random.Random) -> None:
        for name in TOPICS:
            topic = await storage.topic(name)
            known = self.payloads.setdefault(name, {})
            for _ in range(4):
                batch = [rng.randbytes(rng.randrange(20, 400)) for _ in range(15)]
                positions = await topic.publish(batch)
                known.update(dict.fromkeys(positions, b""))
            for position in sorted(known):
                known[position] = await raw(storage, position)
            for subscription in SUBSCRIPTIONS:
                opened = await topic.subscribe(subscription)
                acked = self.acks.get((name, subscription), frozenset())
                new = {p for p in known if p not in acked and rng.random() < 0.4}
                opened._store.cursor.ack_individual(sorted(new))
                await opened._store.until_durable()
                self.acks[name, subscription] = acked | new

    def files(self) -> list[str]:
        """Names of all files, below the directory."""
        return sorted(
            path.relative_to(self.directory).as_posix()
            for path in self.directory.rglob("*")
            if path.is_file()
        )


async def raw(storage: ackgate.EmbeddedStorage, position: Position) -> bytes:
    """An entry as it is stored."""
    client = storage.ledger_client
    reader = await client.open_without_recovery(position.ledger_id)
    (entry,) = await reader.read_unconfirmed(position.entry_id, position.entry_id)
    return entry.payload


@dataclass
class Verdict:
    """What became of a damaged directory."""

    refusal: str | None = None
    told: list[str] = field(default_factory=list)
    """Log lines of the start, and errors of reads, each naming what is damaged."""
    wrong: list[str] = field(default_factory=list)
    """Data that are not what was confirmed. Never allowed."""
    missing: list[str] = field(default_factory=list)
    """Confirmed messages and acks that are not there. Allowed if it is told."""


async def verdict(left: Left, directory: Path) -> Verdict:
    """Open it as a host would, read everything, and audit every copy."""
    found = Verdict()
    with _collected(found.told):
        try:
            async with ackgate.open_embedded(directory, settings=SETTINGS) as storage:
                for name in TOPICS:
                    await _compare_topic(left, storage, name, found)
                await _audit(storage, found)
        except AckGateError as error:
            found.refusal = f"{type(error).__name__}: {error}"
    return found


async def _compare_topic(
    left: Left, storage: ackgate.EmbeddedStorage, name: str, found: Verdict
) -> None:
    topic = await storage.topic(name)
    known = left.payloads[name]
    stored = {
        Position(ledger_id, entry_id)
        for ledger_id in topic.message_ledgers.ledger_ids
        for entry_id in range(topic.message_ledgers.entry_count(ledger_id))
    }
    found.wrong += [f"{name}: {p} was never published" for p in sorted(stored - known.keys())]
    for position, payload in sorted(known.items()):
        try:
            if await raw(storage, position) != payload:
                found.wrong.append(f"{name}: {position} is another message")
            elif position not in stored:
                found.missing.append(f"{name}: {position}")
        except AckGateError as error:
            found.missing.append(f"{name}: {position}")
            found.told.append(str(error))
    for subscription in SUBSCRIPTIONS:
        opened = await topic.subscribe(subscription)
        acked = left.acks[name, subscription]
        if opened._store.report.lost is not None:
            found.told.append(opened._store.report.lost)
        for position in sorted(stored & known.keys()):
            is_acked = opened.is_acked(position)
            if is_acked and position not in acked:
                found.wrong.append(f"{name} {subscription}: {position} was never acked")
            if not is_acked and position in acked:
                found.missing.append(f"{name} {subscription}: the ack of {position}")


async def _audit(storage: ackgate.EmbeddedStorage, found: Verdict) -> None:
    client = storage.ledger_client
    assert isinstance(client, BookieLedgerClient)
    async for audit in client.auditor().audit(is_repair=False):
        if audit.error is not None:
            found.told.append(f"ledger {audit.ledger_id}: {audit.error}")
        for fragment in audit.fragments:
            if not fragment.is_whole:
                found.told.append(f"ledger {audit.ledger_id}: {fragment}")
    for bookie in client.bookies:
        found.told += bookie.statistics().damages


@contextlib.contextmanager
def _collected(lines: list[str]) -> Iterator[None]:
    """Warnings and errors of the package, whatever else listens."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, keep = logging.getLogger("ackgate"), Keep(logging.WARNING)
    logger.addHandler(keep)
    was = logger.propagate
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = was
        logger.removeHandler(keep)
