"""A seeded run of ledgers on bookies, step by step, and what must be left of it after any crash.

Per ledger: what was confirmed is there with its bytes; what is there beyond that was appended, and
has no gap; what a recovery has found stays so. Then life goes on: a new ledger takes entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ackgate.errors import AckGateError, NoSuchLedgerError
from ackgate.persistence import (
    AppendTicket,
    BookieLedgerClient,
    DigestType,
    LedgerOptions,
    LedgerReader,
    LedgerWriter,
)
from tests.crash_consistency.machine import Machine, Moment

SHAPES = {
    1: [(1, 1, 1)],
    3: [(3, 2, 2), (3, 3, 2), (2, 2, 2), (1, 1, 1), (3, 3, 3)],
    4: [(3, 2, 2), (3, 3, 2), (2, 2, 2)],
}
"""By the number of bookies. Of four, one has sectors that go bad, and an auditor mends that."""
PASSWORD = b"secret"


class Fact(NamedTuple):
    """What is known of one ledger at some moment."""

    appended: int
    confirmed: int
    recovered: int | None
    """Entries that a recovery has found; final."""
    is_deleted: bool
    """Its deletion has begun."""


@dataclass
class Model:
    """What one ledger was told."""

    ledger_id: int
    writer: LedgerWriter | None
    digest_type: DigestType
    appended: list[bytes] = field(default_factory=list)
    tickets: list[tuple[AppendTicket, int]] = field(default_factory=list)
    confirmed: int = 0
    recovered: int | None = None
    is_deleted: bool = False

    def fact(self) -> Fact:
        """What holds at this very moment."""
        for ticket, count in self.tickets:
            durable = ticket.durable
            if durable.done() and not durable.cancelled() and durable.exception() is None:
                self.confirmed = max(self.confirmed, count)
        self.tickets = [pair for pair in self.tickets if not pair[0].durable.done()]
        return Fact(len(self.appended), self.confirmed, self.recovered, self.is_deleted)


Facts = dict[int, Fact]


class LedgerRun:
    """Two processes on the same bookies; each step is something that one of them does."""

    def __init__(self, seed: int, bookie_count: int) -> None:
        self.rng = random.Random(f"ledgers {seed}")
        self.machine = Machine(bookie_count, seed=f"run {seed}")
        self.models: dict[int, Model] = {}
        self.clients: dict[str, BookieLedgerClient] = {}
        self.gone: list[BookieLedgerClient] = []
        self.seen: Counter[str] = Counter()
        self._processes = 0

    def facts(self) -> Facts:
        """What holds at this very moment."""
        return {ledger_id: model.fact() for ledger_id, model in self.models.items()}

    # ------------------------------------------------------------------------------------ its steps

    async def step(self) -> None:
        """Do something."""
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (14, self._append),
            (6, self._settle),
            (4, self._create),
            (3, self._checkpoint),
            (2, self._close_ledger),
            (2, self._take_ledger_over),
            (1, self._delete),
            (1, self._remove_orphans),
            (1, self._fail_once),
            (1, self._kill),
            (1, self._restart),
        ]
        if self.machine.bookie_count == 4:
            steps += [(3, self._damage), (1, self._audit)]
        await self._client("a")
        chosen = self.rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        await chosen()
        self.seen[chosen.__name__.strip("_")] += 1

    async def _client(self, role: str) -> BookieLedgerClient:
        client = self.clients.get(role)
        if client is None:
            self._processes += 1
            client = await self.machine.open(f"{role}{self._processes}")
            self.clients[role] = client
        return client

    def _pick(self) -> Model | None:
        open_ones = [model for model in self.models.values() if model.writer is not None]
        return self.rng.choice(open_ones) if open_ones else None

    async def _create(self) -> None:
        client = await self._client("a")
        digest = self.rng.choice([DigestType.CRC32C, DigestType.MAC])
        shape = self.rng.choice(SHAPES[self.machine.bookie_count])
        options = LedgerOptions(*shape, digest_type=digest, password=PASSWORD)
        with contextlib.suppress(AckGateError):
            writer = await client.create(options)
            self.models[writer.ledger_id] = Model(writer.ledger_id, writer, digest)

    async def _append(self) -> None:
        model = self._pick()
        if model is None:
            await self._create()
            return
        start = len(model.appended)
        ticket = self._add(
            model,
            [
                b"%d-%d " % (model.ledger_id, start + i)
                + self.rng.randbytes(self.rng.choice((0, 30, 300)))
                for i in range(self.rng.randint(1, 4))
            ],
        )
        if ticket is None:
            return
        if self.rng.random() < 0.6:
            await asyncio.wait([ticket.durable])
            self.seen["confirmed"] += ticket.durable.exception() is None
        else:
            for _ in range(self.rng.randint(0, 6)):
                await asyncio.sleep(0)

    def _add(self, model: Model, payloads: list[bytes]) -> AppendTicket | None:
        assert model.writer is not None
        try:
            ticket = model.writer.append(payloads)
        except AckGateError:
            model.writer = None
            return None
        model.appended += payloads
        model.tickets.append((ticket, len(model.appended)))
        return ticket

    async def _settle(self) -> None:
        waiting = [ticket.durable for model in self.models.values() for ticket, _ in model.tickets]
        if waiting:
            await asyncio.wait(waiting)

    async def _checkpoint(self) -> None:
        client = await self._client(self.rng.choice("aab"))
        with contextlib.suppress(AckGateError):
            await self.rng.choice(client.bookies).checkpoint()

    async def _close_ledger(self) -> None:
        model = self._pick()
        if model is not None and model.writer is not None:
            writer, model.writer = model.writer, None
            with contextlib.suppress(AckGateError):
                await writer.close()

    async def _take_ledger_over(self) -> None:
        """The second process recovers a ledger that the first one may still write to."""
        if not self.models:
            return
        model = self.rng.choice(list(self.models.values()))
        if model.is_deleted:
            return
        if model.writer is not None and self.rng.random() < 0.5:
            self._add(model, [b"%d-late" % model.ledger_id])
        await self._recover_ledger(model)

    async def _recover_ledger(self, model: Model) -> None:
        client = await self._client("b")
        with contextlib.suppress(AckGateError):
            reader = await client.open(model.ledger_id, password=PASSWORD)
            found = reader.last_add_confirmed + 1
            assert model.recovered in (None, found)
            model.recovered = found
            self.seen["taken over from a living writer"] += model.writer is not None

    async def _delete(self) -> None:
        if self.models and self.rng.random() < 0.7:
            model = self.rng.choice(list(self.models.values()))
            if not model.is_deleted:
                model.is_deleted = True
                model.writer = None
                with contextlib.suppress(AckGateError):
                    await (await self._client("a")).delete(model.ledger_id)

    async def _remove_orphans(self) -> None:
        with contextlib.suppress(AckGateError):
            await (await self._client(self.rng.choice("ab"))).delete_orphans()

    async def _fail_once(self) -> None:
        """A disk that refuses something while a few entries are added."""
        bookie = self.rng.randrange(self.machine.bookie_count)
        part = self.rng.choice(("journal", "ledgers"))
        operation = self.rng.choice(("append", "sync", "create"))
        path = f"/data/bookies/{bookie}/{part}"
        self.machine.files.fail(path, errno.EIO, {operation})
        await self._append()
        await self._settle()
        self.machine.files.fail(path, None)

    async def _damage(self) -> None:
        """On the first bookie's disk a sector goes bad, or a whole file is lost."""
        files, place = self.machine.files, Path("/data/bookies/0/ledgers")
        with contextlib.suppress(AckGateError):
            await (await self._client("a")).bookies[0].checkpoint()
        if self.rng.random() < 0.5:
            self.seen["bad sector"] += files.corrupt(self.rng, str(place)) is not None
        elif found := files.files(str(place)):
            somebody = files.disk("somebody")
            somebody.remove(Path(self.rng.choice(found)[0]))
            somebody.sync_directory(place)
            self.seen["lost file"] += 1
        if self.rng.random() < 0.7:
            # A process that has a file open still reads it; the next process does not.
            while self.clients:
                await self._restart()
            for model in self.models.values():
                if not model.is_deleted:
                    await self._recover_ledger(model)
            await self._audit()

    async def _audit(self) -> None:
        auditor = (await self._client(self.rng.choice("ab"))).auditor(password=PASSWORD)
        async for audit in auditor.audit(is_repair=True):
            self.seen["mended"] += audit.repaired_entries

    async def _kill(self) -> None:
        """One process is killed; the page cache stays, and the other may go on."""
        role = self.rng.choice(list(self.clients))
        client = self.clients.pop(role)
        self.machine.files.kill(f"{role}{self._processes_of(client)}")
        self._forget_writers(role)
        await client.close()

    def _processes_of(self, client: BookieLedgerClient) -> str:
        disk = client.bookies[0]._opened.disk
        process: str = disk.process  # type: ignore[attr-defined]
        return process[1:]

    async def _restart(self) -> None:
        role = self.rng.choice(list(self.clients))
        self._forget_writers(role)
        client = self.clients.pop(role)
        await client.close()

    def _forget_writers(self, role: str) -> None:
        self.facts()
        if role == "a":
            for model in self.models.values():
                model.writer = None

    async def finish(self) -> None:
        """End all that runs; nothing is recorded any more."""
        self.machine.stop_recording()
        for client in self.clients.values():
            await client.close()
        for model in self.models.values():
            for ticket, _ in model.tickets:
                await asyncio.wait([ticket.durable])
                ticket.durable.exception()

    # ------------------------------------------------------------------------------ after a crash

    async def verify(self, state: Machine, facts: Facts, moments: list[Moment] | None) -> None:
        """Recover from a state; `moments`: where to note one of the recovery's.

        Raises `AssertionError`, or whatever the recovery did not bear.
        """
        known = dict(facts)
        if moments is not None:
            state.record(moments, lambda: dict(known), state.rng)
        client = await state.open("first")
        for ledger_id in sorted(known):
            reader = await self._recover(client, ledger_id, known[ledger_id])
            if reader is not None:
                found = reader.last_add_confirmed + 1
                known[ledger_id] = known[ledger_id]._replace(recovered=found)
        await client.delete_orphans()
        writer = await client.create(LedgerOptions())
        await writer.append([b"life", b"goes on"]).durable
        await client.close()
        state.stop_recording()
        client = await state.open("second")
        for ledger_id, fact in known.items():
            await self._recover(client, ledger_id, fact)
        reader = await client.open(writer.ledger_id)
        assert [entry.payload for entry in await reader.read(0, 1)] == [b"life", b"goes on"]
        assert reader.last_add_confirmed == 1
        await client.close()

    async def _recover(
        self, client: BookieLedgerClient, ledger_id: int, fact: Fact
    ) -> LedgerReader | None:
        try:
            reader = await client.open(ledger_id, password=PASSWORD)
        except NoSuchLedgerError:
            assert fact.is_deleted, f"ledger {ledger_id} is gone"
            return None
        if fact.is_deleted:
            return None
        found = reader.last_add_confirmed + 1
        where = f"ledger {ledger_id}: {found} entries found, {fact}"
        assert fact.confirmed <= found <= fact.appended, where
        assert fact.recovered in (None, found), where
        appended = self.models[ledger_id].appended[:found]
        if found:
            entries = await reader.read(0, found - 1)
            assert [entry.entry_id for entry in entries] == list(range(found)), where
            assert [entry.payload for entry in entries] == appended, where
        assert reader.length_bytes == sum(map(len, appended)), where
        return reader
