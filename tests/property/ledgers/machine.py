"""Ledgers on disks that fail, in processes that die, and what they must be like afterwards.

The model of a ledger is the list of payloads appended and how many of them were confirmed. Whatever
happens: what was confirmed is there and is what was appended; what is there beyond that was appended
too, without a gap; what a recovery has found once is found for ever; who was fenced confirms nothing.

Everything runs on one loop without threads, so that a run is its arguments. Crashes come between any
two calls of the disk. Two processes have the directories open; the second one only recovers.
"""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ackgate.errors import AckGateError, NotEnoughBookiesError, StorageError
from ackgate.persistence import (
    AppendTicket,
    BookieLedgerClient,
    LedgerOptions,
    LedgerState,
    LedgerWriter,
    MemoryMetadataStore,
    open_bookies,
)
from ackgate.persistence.bookies.settings import AuditSettings, BookieSettings
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.faulty_disk import FaultyDisk, disk_error
from tests.support.inline_lane import InlineLane

T = TypeVar("T")

BOOKIES = 4
SHAPES = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2)]
OPERATIONS = ["append", "sync", "create"]
PARTS = ["journal", "ledgers"]

SETTINGS = BookieSettings(
    checkpoint_idle_seconds=None,
    open_files_max=8,
    write_cache_bytes_max=6000,
    journal_bytes_max=9000,
    block_bytes=600,
)


@dataclass
class Model:
    """What one ledger was told."""

    writer: LedgerWriter | None
    ack_quorum: int
    appended: list[bytes] = field(default_factory=list)
    confirmed: int = 0
    tickets: list[tuple[AppendTicket, int]] = field(default_factory=list)
    recovered: int | None = None
    """Entries that a recovery found; final."""
    is_at_risk: bool = False
    """Recovered while disks failed: may have fewer copies than it should."""


class LedgersMachine:
    """One process after the other on four directories."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="ledgers-"))
        self.tree = MemoryTree()
        self.disk = FaultyDisk()
        self.rng = random.Random(0)
        self.models: dict[int, Model] = {}
        self.last_id = 0
        self.has_lost_a_bookie = False
        self.seen: Counter[str] = Counter()
        """What the run has come across: a run that meets nothing proves nothing."""
        self.client = self.run(self._open())
        self.other = self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 120))

    @property
    def is_disk_fine(self) -> bool:
        return self.disk.before is None and not self.disk.is_gone

    async def _open(self) -> BookieLedgerClient:
        bookies = await open_bookies(
            [self.directory / str(i) for i in range(BOOKIES)],
            disk=self.disk,
            lane=InlineLane,
            random_bytes=self.rng.randbytes,
            settings=SETTINGS,
        )
        return BookieLedgerClient(
            bookies,
            MemoryMetadataStore(self.tree),
            random_bytes=self.rng.randbytes,
            on_bad_copy=lambda bad: None,
        )

    def _pick(self, pick: int) -> int | None:
        ids = sorted(self.models)
        return ids[pick % len(ids)] if ids else None

    def _pick_writable(self, pick: int) -> Model | None:
        models = [model for model in self.models.values() if model.writer is not None]
        return models[pick % len(models)] if models else None

    # -------------------------------------------------------------------------------------- adding

    def create(self, shape: int) -> None:
        sizes = SHAPES[shape % len(SHAPES)]
        try:
            writer = self.run(self.client.create(LedgerOptions(*sizes)))
        except NotEnoughBookiesError:
            assert not self.is_disk_fine
            return
        assert writer.ledger_id > self.last_id
        self.last_id = writer.ledger_id
        self.models[writer.ledger_id] = Model(writer, sizes[2])

    def append(self, pick: int, sizes: list[int]) -> None:
        model = self._pick_writable(pick)
        if model is None:
            return
        start = len(model.appended)
        payloads = [b"%d:" % (start + i) + bytes(size) for i, size in enumerate(sizes)]
        self.run(self._append(model, start, payloads))

    async def _append(self, model: Model, start: int, payloads: list[bytes]) -> None:
        assert model.writer is not None
        try:
            ticket = model.writer.append(payloads)
        except AckGateError:
            model.writer = None
            return
        assert ticket.first_entry_id == start
        model.appended += payloads
        model.tickets.append((ticket, len(model.appended)))
        self.seen["append"] += 1

    def settle(self) -> None:
        """Wait for all that is in flight."""
        self.run(self._settle())

    async def _settle(self) -> None:
        for model in self.models.values():
            for ticket, count in model.tickets:
                await asyncio.wait([ticket.durable])
                if ticket.durable.exception() is None:
                    model.confirmed = max(model.confirmed, count)
                    self.seen["confirmed"] += 1
                else:
                    model.writer = None
                    self.seen["failed"] += 1
            model.tickets.clear()

    def checkpoint(self, bookie: int) -> None:
        try:
            self.run(self.client.bookies[bookie % BOOKIES].checkpoint())
            self.seen["checkpoint"] += 1
        except StorageError:
            assert not self.is_disk_fine

    # ------------------------------------------------------------------------------------- failing

    def break_disks(self, broken: set[int], operation: str, part: str) -> None:
        parts = [str(self.directory / str(i) / part) for i in sorted(broken)]

        def before(asked: str, path: Path) -> None:
            if asked == operation and any(str(path).startswith(each) for each in parts):
                raise disk_error(errno.EIO, path)

        self.disk.before = before

    def mend_disks(self) -> None:
        self.disk.before = None

    def doom(self, calls: int, seed: int, *, is_power_loss: bool) -> None:
        """The process will die at one of its next disk calls."""

        def before(operation: str, path: Path) -> None:
            nonlocal calls
            calls -= 1
            if not calls:
                self.seen[f"died at {operation}"] += 1
                self._die(seed, is_power_loss=is_power_loss)

        self.disk.before = before

    def _die(self, seed: int, *, is_power_loss: bool) -> None:
        if is_power_loss:
            self.disk.power_loss(random.Random(seed))
        else:
            self.disk.crash()

    def crash(self, seed: int, *, is_power_loss: bool, lost_bookie: int | None = None) -> None:
        """All processes die, and perhaps a whole directory with them; then they start again."""
        self._note_confirmed()
        if not self.disk.is_gone:
            self._die(seed, is_power_loss=is_power_loss)
        for model in self.models.values():
            model.writer = None
            model.tickets.clear()
        # What is left of the dead processes ends without touching anything.
        self.run(self.client.close())
        self.run(self.other.close())
        if lost_bookie is not None and not self.has_lost_a_bookie:
            self.has_lost_a_bookie = True
            shutil.rmtree(self.directory / str(lost_bookie % BOOKIES))
            for ledger_id, model in list(self.models.items()):
                if model.ack_quorum == 1 or model.is_at_risk:
                    del self.models[ledger_id]
        self.disk = FaultyDisk()
        self.client = self.run(self._open())
        self.other = self.run(self._open())
        self.seen["crash"] += 1

    def _note_confirmed(self) -> None:
        for model in self.models.values():
            for ticket, count in model.tickets:
                if ticket.durable.done() and ticket.durable.exception() is None:
                    model.confirmed = max(model.confirmed, count)

    # ----------------------------------------------------------------------------------- recovering

    def recover(self, pick: int, *, is_other: bool) -> None:
        ledger_id = self._pick(pick)
        if ledger_id is not None:
            self.run(self._recover(ledger_id, self.other if is_other else self.client))

    async def _recover(self, ledger_id: int, client: BookieLedgerClient) -> None:
        model = self.models[ledger_id]
        try:
            reader = await client.open(ledger_id)
        except StorageError:
            assert not self.is_disk_fine
            return
        found = reader.last_add_confirmed + 1
        self._note_confirmed()
        assert model.confirmed <= found <= len(model.appended)
        assert model.recovered in (None, found)
        model.is_at_risk |= model.recovered is None and not self.is_disk_fine
        model.recovered = found
        if found:
            try:
                entries = await reader.read(0, found - 1)
            except StorageError:
                assert not self.is_disk_fine
            else:
                assert [e.payload for e in entries] == model.appended[:found]
        assert reader.length_bytes == sum(map(len, model.appended[:found]))
        self.seen["recovered"] += found > 0
        self.seen["recovered more than confirmed"] += found > model.confirmed
        if model.writer is not None:
            assert isinstance(await self._outcome(model.writer), AckGateError)
            self.seen["fenced"] += 1
            model.writer = None
        for ticket, count in model.tickets:
            await asyncio.wait([ticket.durable])
            assert ticket.durable.exception() is not None or count <= found
        model.tickets.clear()

    async def _outcome(self, writer: LedgerWriter) -> BaseException | None:
        try:
            ticket = writer.append([b"after the fence"])
            await asyncio.wait([ticket.durable])
        except AckGateError as error:
            return error
        return ticket.durable.exception()

    # ------------------------------------------------------------------------------- all the others

    def read_some(self, pick: int, first: int) -> None:
        model = self._pick_writable(pick)
        if model is None or model.writer is None or model.writer.last_add_confirmed < 0:
            return
        last = model.writer.last_add_confirmed
        first %= last + 1
        try:
            entries = self.run(model.writer.read(first, last))
        except StorageError:
            assert not self.is_disk_fine
            return
        assert [e.payload for e in entries] == model.appended[first : last + 1]
        self.seen["read"] += 1

    def audit(self, *, is_other: bool) -> None:
        """Mend what can be mended, beside writers and on disks that may fail."""
        self.run(self._audit(self.other if is_other else self.client))

    async def _audit(self, client: BookieLedgerClient) -> None:
        auditor = client.auditor(AuditSettings(window_bytes=500))
        async for found in auditor.audit(is_repair=True):
            assert found.error is None or not self.is_disk_fine, found.error
            self.seen["audited"] += 1
            self.seen["mended"] += found.repaired_entries > 0
            self.seen["moved"] += found.moved_places

    async def _check_copies(self) -> None:
        """Every entry that has a good copy has its write quorum of them."""
        async for found in self.client.auditor().audit(is_repair=True):
            if found.ledger_id in self.models and not self.models[found.ledger_id].is_at_risk:
                assert not found.stuck, found.stuck
                assert found.error is None, found.error
        async for found in self.client.auditor().audit(is_repair=True):
            assert found.repaired_entries == found.moved_places == 0
            if found.ledger_id in self.models and not self.models[found.ledger_id].is_at_risk:
                assert found.is_whole

    def close_writer(self, pick: int) -> None:
        model = self._pick_writable(pick)
        if model is None or model.writer is None:
            return
        self.run(model.writer.close())
        self._note_confirmed()
        found = self.run(self.client.metadata(model.writer.ledger_id))
        model.tickets.clear()
        model.writer = None
        if found.state is LedgerState.IN_RECOVERY:
            # Somebody began to recover it and did not get through; the next one will.
            return
        assert found.last_entry_id + 1 >= model.confirmed
        assert model.recovered in (None, found.last_entry_id + 1)
        model.recovered = found.last_entry_id + 1

    def delete(self, pick: int) -> None:
        ledger_id = self._pick(pick)
        if ledger_id is not None:
            del self.models[ledger_id]
            self.run(self.client.delete(ledger_id))

    def check(self) -> None:
        for model in self.models.values():
            if model.writer is not None:
                assert model.writer.last_add_confirmed + 1 >= model.confirmed

    def finish(self) -> None:
        """On a sound disk everything can be recovered, and what nobody refers to goes."""
        try:
            self.disk.before = None
            self.crash(0, is_power_loss=True)
            for ledger_id in list(self.models):
                self.run(self._recover(ledger_id, self.client))
            self.run(self._check_copies())
            for ledger_id in list(self.models):
                self.run(self._recover(ledger_id, self.client))
            self.run(self.client.delete_orphans())
            assert set(self.run(self.client.ledger_ids())) >= set(self.models)
            self.run(self.client.close())
            self.run(self.other.close())
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)
