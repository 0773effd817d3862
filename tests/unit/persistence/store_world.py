"""One cursor with its stores, for tests of the store: crash it, reopen it, break it."""

from __future__ import annotations

import asyncio
from typing import Any

from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import AckGateError, MetadataStoreError
from ackgate.persistence import CursorStore, MemoryMetadataStore, NodeValue, PersistenceSettings
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node
from ackgate.persistence.metadata.memory import MemoryTree
from tests.unit.persistence.scripted_ledgers import ScriptedLedgers, StoredLedger

PATH = "/managed-ledgers/public/default/persistent/topic/sub"
START = Position(3, -1)


class BreakableMetadata(MemoryMetadataStore):
    """Fails on demand, before or after doing the work."""

    failure: Exception | None = None
    put_lands = False
    puts = 0

    async def get(self, path: str) -> NodeValue | None:
        if self.failure is not None:
            raise self.failure
        return await super().get(path)

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        self.puts += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            if self.put_lands:
                await super().put(path, value, expected_version=expected_version)
            raise self.failure
        return await super().put(path, value, expected_version=expected_version)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        if self.failure is not None:
            raise self.failure
        await super().delete(path, expected_version=expected_version)


class World:
    """A topic of ledgers 3 (100,000 entries) and 5 (open, 100,000 entries so far)."""

    def __init__(self, **settings: Any) -> None:
        self.settings = PersistenceSettings(**settings)
        self.messages = MessageLedgers()
        self.messages.open_ledger(3)
        self.messages.close_ledger(3, 100_000)
        self.messages.open_ledger(5)
        self.messages.add_entries(5, 100_000)
        self.stored: dict[int, StoredLedger] = {}
        self.tree = MemoryTree()
        self.epoch = 0
        self.connect()

    def connect(self) -> None:
        """New clients of the same stores, as a new process has them."""
        self.ledgers = ScriptedLedgers(self.stored)
        self.metadata = BreakableMetadata(self.tree)

    async def open(self, *, create: bool = True, epoch: int | None = None) -> CursorStore:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        return await CursorStore.open(
            path=PATH,
            ledgers=self.messages,
            ledger_client=self.ledgers,
            metadata=self.metadata,
            settings=self.settings,
            batch_index_acks=True,
            owner_epoch=self.epoch,
            clock_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            create_at=START if create else None,
            cursor_properties={"made": "by a test"},
        )

    async def crash_and_reopen(self, store: CursorStore) -> CursorStore:
        """Nothing is written any more, whatever was on its way; then a new owner opens."""
        tasks = [t for t in (store._task, store._sweep) if t is not None]
        store._give_up()
        if tasks:
            await asyncio.wait(tasks)
        self.ledgers.crash()
        self.connect()
        return await self.open(create=False)

    async def node(self) -> CursorNode:
        spectator = MemoryMetadataStore(self.tree)
        found = await spectator.get(PATH)
        await spectator.close()
        assert found is not None
        return decode_cursor_node(found.value, path=PATH)


class Heard:
    """A receipt's callback that remembers."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.errors.append(error)

    @property
    def is_durable(self) -> bool:
        assert len(self.errors) <= 1, "a receipt was answered twice"
        return self.errors == [None]


def metadata_down() -> AckGateError:
    return MetadataStoreError("metadata is down")


def state_of(store: CursorStore) -> Any:
    """What must survive: comparable."""
    snapshot = store.cursor.snapshot()
    return (
        snapshot.mark_delete,
        dict(snapshot.acked),
        snapshot.range_count,
        dict(snapshot.unacked_indexes),
        dict(snapshot.properties),
    )
