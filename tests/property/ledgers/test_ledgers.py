"""Ledgers under random appends, checkpoints, failing disks, crashes and recoveries.

The model is a list of payloads per ledger and how many of them were confirmed. Whatever happens:
what was confirmed is there and is what was appended; what is there beyond that was appended too,
without a gap; what a recovery has found once is found for ever. Crashes come between any two calls
of the disk.
"""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ackgate.errors import (
    AckGateError,
    NotEnoughBookiesError,
    StorageError,
)
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
from ackgate.persistence.ledgers.settings import BookieSettings
from ackgate.persistence.metadata.memory import MemoryMetadataStore, MemoryTree
from ackgate.persistence.ports import AppendTicket, LedgerOptions, LedgerState, LedgerWriter
from ackgate.testing.faulty_disk import FaultyDisk, disk_error
from ackgate.testing.inline_lane import InlineLane

T = TypeVar("T")

SHAPES = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2)]
BOOKIES = 4


@dataclass
class Model:
    """What one ledger was told."""

    writer: LedgerWriter | None
    options: LedgerOptions
    appended: list[bytes] = field(default_factory=list)
    confirmed: int = 0
    tickets: list[tuple[AppendTicket, int]] = field(default_factory=list)
    recovered: int | None = None
    """Entries that a recovery found; final."""


class LedgersMachine(RuleBasedStateMachine):
    """One process after the other on four directories."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="ledgers-"))
        self.tree = MemoryTree()
        self.disk = FaultyDisk()
        self.models: dict[int, Model] = {}
        self.last_id = 0
        self.rng = random.Random(0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 20))

    @initialize()
    def start(self) -> None:
        self.client = self.run(self._open())

    @property
    def is_disk_fine(self) -> bool:
        return self.disk.before is None and not self.disk.is_gone

    async def _open(self) -> BookieLedgerClient:
        bookies = await open_bookies(
            [self.directory / str(i) for i in range(BOOKIES)],
            disk=self.disk,
            lane=InlineLane,
            random_bytes=self.rng.randbytes,
            settings=BookieSettings(
                checkpoint_idle_seconds=None,
                open_files_max=8,
                write_cache_bytes_max=6000,
                journal_bytes_max=9000,
                block_bytes=600,
            ),
        )
        return BookieLedgerClient(
            bookies, MemoryMetadataStore(self.tree), random_bytes=self.rng.randbytes
        )

    def writable(self) -> list[int]:
        return [ledger_id for ledger_id, model in self.models.items() if model.writer is not None]

    @rule(shape=st.sampled_from(SHAPES))
    def create(self, shape: tuple[int, int, int]) -> None:
        try:
            writer = self.run(self.client.create(LedgerOptions(*shape)))
        except NotEnoughBookiesError:
            assert not self.is_disk_fine
            return
        assert writer.ledger_id > self.last_id
        self.last_id = writer.ledger_id
        self.models[writer.ledger_id] = Model(writer, LedgerOptions(*shape))

    @precondition(writable)
    @rule(data=st.data(), sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12))
    def append(self, data: st.DataObject, sizes: list[int]) -> None:
        model = self.models[data.draw(st.sampled_from(self.writable()))]
        start = len(model.appended)
        payloads = [b"%d:" % (start + i) + bytes(size) for i, size in enumerate(sizes)]

        async def append() -> None:
            assert model.writer is not None
            try:
                ticket = model.writer.append(payloads)
            except AckGateError:
                model.writer = None
                return
            assert ticket.first_entry_id == start
            model.appended += payloads
            model.tickets.append((ticket, len(model.appended)))

        self.run(append())

    @rule()
    def settle(self) -> None:
        """Wait for all that is in flight."""

        async def settle() -> None:
            for model in self.models.values():
                for ticket, count in model.tickets:
                    await asyncio.wait([ticket.durable], timeout=20)
                    assert ticket.durable.done()
                    if ticket.durable.exception() is None:
                        model.confirmed = max(model.confirmed, count)
                    else:
                        model.writer = None
                model.tickets.clear()

        self.run(settle())

    @rule(bookie=st.integers(0, BOOKIES - 1))
    def checkpoint(self, bookie: int) -> None:
        try:
            self.run(self.client.bookies[bookie].checkpoint())
        except StorageError:
            assert not self.is_disk_fine

    @rule(
        broken=st.sets(st.integers(0, BOOKIES - 1), min_size=1, max_size=2),
        operation=st.sampled_from(["append", "sync", "create"]),
        part=st.sampled_from(["journal", "ledgers"]),
    )
    def break_disks(self, broken: set[int], operation: str, part: str) -> None:
        parts = {str(self.directory / str(i) / part) for i in broken}

        def before(asked: str, path: Path) -> None:
            if asked == operation and any(str(path).startswith(each) for each in parts):
                raise disk_error(errno.EIO, path)

        self.disk.before = before

    @rule()
    def mend_disks(self) -> None:
        self.disk.before = None

    @rule(calls=st.integers(1, 40), seed=st.integers(0, 2**32), is_power_loss=st.booleans())
    def doom(self, calls: int, seed: int, is_power_loss: bool) -> None:
        """The process will die at one of its next disk calls."""

        def before(operation: str, path: Path) -> None:
            nonlocal calls
            calls -= 1
            if not calls:
                self._die(seed, is_power_loss)

        self.disk.before = before

    def _die(self, seed: int, is_power_loss: bool) -> None:
        if is_power_loss:
            self.disk.power_loss(random.Random(seed))
        else:
            self.disk.crash()

    @rule(seed=st.integers(0, 2**32), is_power_loss=st.booleans())
    def crash(self, seed: int, is_power_loss: bool) -> None:
        self._note_confirmed()
        if not self.disk.is_gone:
            self._die(seed, is_power_loss)
        for model in self.models.values():
            model.writer = None
            model.tickets.clear()
        # What is left of the dead process ends without touching anything.
        self.run(self.client.close())
        self.disk = FaultyDisk()
        self.client = self.run(self._open())

    def _note_confirmed(self) -> None:
        for model in self.models.values():
            for ticket, count in model.tickets:
                if ticket.durable.done() and ticket.durable.exception() is None:
                    model.confirmed = max(model.confirmed, count)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def recover(self, data: st.DataObject) -> None:
        ledger_id = data.draw(st.sampled_from(sorted(self.models)))
        self.run(self._recover(ledger_id))

    async def _recover(self, ledger_id: int) -> None:
        model = self.models[ledger_id]
        try:
            reader = await self.client.open(ledger_id)
        except StorageError:
            assert not self.is_disk_fine
            return
        found = reader.last_add_confirmed + 1
        self._note_confirmed()
        assert model.confirmed <= found <= len(model.appended)
        if model.recovered is not None:
            assert found == model.recovered
        model.recovered = found
        if found:
            try:
                entries = await reader.read(0, found - 1)
            except StorageError:
                assert not self.is_disk_fine
            else:
                assert [e.payload for e in entries] == model.appended[:found]
        assert reader.length_bytes == sum(map(len, model.appended[:found]))
        if model.writer is not None:
            ticket_or_error = await self._outcome(model.writer)
            assert isinstance(ticket_or_error, AckGateError)
            model.writer = None
        for ticket, count in model.tickets:
            await asyncio.wait([ticket.durable], timeout=20)
            assert ticket.durable.exception() is not None or count <= found
        model.tickets.clear()

    async def _outcome(self, writer: LedgerWriter) -> BaseException | None:
        try:
            ticket = writer.append([b"after the fence"])
            await asyncio.wait([ticket.durable], timeout=20)
        except AckGateError as error:
            return error
        return ticket.durable.exception()

    @precondition(writable)
    @rule(data=st.data())
    def read_some(self, data: st.DataObject) -> None:
        model = self.models[data.draw(st.sampled_from(self.writable()))]
        assert model.writer is not None
        last = model.writer.last_add_confirmed
        if last < 0:
            return
        first = data.draw(st.integers(0, last))
        try:
            entries = self.run(model.writer.read(first, last))
        except StorageError:
            assert not self.is_disk_fine
            return
        assert [e.payload for e in entries] == model.appended[first : last + 1]

    @precondition(writable)
    @rule(data=st.data())
    def close_writer(self, data: st.DataObject) -> None:
        ledger_id = data.draw(st.sampled_from(self.writable()))
        model = self.models[ledger_id]
        assert model.writer is not None
        self.run(model.writer.close())
        self._note_confirmed()
        model.tickets.clear()
        model.writer = None
        found = self.run(self.client.metadata(ledger_id))
        if found.state is LedgerState.IN_RECOVERY:
            # Somebody began to recover it and did not get through; the next one will.
            return
        assert found.last_entry_id + 1 >= model.confirmed
        model.recovered = found.last_entry_id + 1

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        ledger_id = data.draw(st.sampled_from(sorted(self.models)))
        del self.models[ledger_id]
        self.run(self.client.delete(ledger_id))

    @invariant()
    def nothing_confirmed_goes_back(self) -> None:
        for model in self.models.values():
            if model.writer is not None:
                assert model.writer.last_add_confirmed + 1 >= model.confirmed

    def teardown(self) -> None:
        try:
            if hasattr(self, "client"):
                self.disk.before = None
                self.crash(0, is_power_loss=False)
                for ledger_id in list(self.models):
                    self.run(self._recover(ledger_id))
                self.run(self.client.delete_orphans())
                self.run(self.client.close())
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)


LedgersMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLedgers = LedgersMachine.TestCase
