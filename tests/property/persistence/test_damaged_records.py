"""A damaged record loses itself, not its neighbours: random lives of a cursor, then random damage.

A life is acks of every kind, resets, clears, roll-overs, ledgers that fail (the state goes to the node,
and back), a metadata store that is out of touch, and crashes. Then records of the cursor ledger are
damaged or lost, and the cursor is opened. The model knows what was acked at each version and which
records there are; of the fold it knows nothing:

- nothing comes back acked that was not acked at the newest durable version;
- what an intact record of the newest descent says was acked is acked;
- if anything is not as it was, the report says so, and if nothing was lost it says nothing;
- with no damage it is exactly the newest durable state.

Then it goes on: what is acked after it is durable, and is there again after another crash.

The seed is in the name of the test.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest

from ackgate.cursor import ManagedCursor, Position
from ackgate.errors import LedgerWriteError, NotEnoughBookiesError
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import (
    ChunkRecord,
    CursorRecord,
    DeltaRecord,
    SnapshotRecord,
    Stamp,
)
from tests.property.persistence.states import ENTRIES, LEDGERS, message_ledgers
from tests.support.virtual_time import VirtualTimeLoop
from tests.unit.persistence.store_world import World

STEPS = 25
DAMAGES = 25
"""Ways in which what one life left is damaged, each by itself."""

POSITIONS = [Position(ledger_id, entry) for ledger_id in LEDGERS for entry in range(ENTRIES)]

NODE_CAP = {"managed_ledger_max_unacked_ranges_to_persist_in_metadata_store": 3}
CAPS = {
    **NODE_CAP,
    "managed_ledger_max_unacked_ranges_to_persist": 12,
    "managed_ledger_max_batch_deleted_index_to_persist": 3,
}


class Truth(NamedTuple):
    """What is acked at a version."""

    acked: frozenset[Position]
    unacked_masks: dict[Position, int]
    properties: dict[str, int]
    resets: int
    """How many there had been."""

    @classmethod
    def of(cls, cursor: ManagedCursor, resets: int = 0) -> Truth:
        snapshot = cursor.snapshot()
        return cls(
            frozenset(filter(cursor.is_acked, POSITIONS)),
            dict(snapshot.unacked_indexes),
            dict(snapshot.properties),
            resets,
        )


class Stored(NamedTuple):
    """What is durable of the cursor."""

    ledger_id: int | None
    records: list[CursorRecord]
    in_node: SnapshotRecord


class Life:
    """One cursor, its owners one after the other, its stores, and its diary."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.caps = self.random.choice([{}, {}, NODE_CAP, CAPS])
        self.world = World(
            ack_persist_linger_ms=0,
            managed_ledger_cursor_max_entries_per_ledger=self.random.choice([4, 12, 1000]),
            cursor_deltas_per_snapshot_max=self.random.choice([0, 2, 5, 1000]),
            fallback_rate_limit=1000.0,
            **self.caps,
        )
        self.world.messages = message_ledgers()
        self.diary: dict[tuple[int, int], Truth] = {}
        self.resets = 0
        self.resets_out_of_touch: set[int] = set()
        self.is_out_of_touch = False
        self.seen: Counter[str] = Counter()

    async def live(self) -> None:
        self.store = await self.world.open()
        self._note()
        steps = [
            *[self._ack] * 20,
            *[self._reset] * self.random.choice([0, 1, 3]),
            *[self._lose_touch, self._regain_touch] * self.random.choice([0, 2]),
            *[self._clear, self._fall_back, self._fill_ledger, self._wait, self._crash]
            * self.random.choice([0, 1]),
        ]
        for _ in range(STEPS):
            await self.random.choice(steps)()

    def _note(self) -> None:
        cursor = self.store.cursor
        self.diary[self.world.epoch, cursor.version] = Truth.of(cursor, self.resets)

    async def _flush(self) -> None:
        self.store.notify()
        await self.store.flush()

    # ------------------------------------------------------------------------- steps

    async def _ack(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self._ack_something(self.store.cursor)
            self._note()
        await self._flush()

    def _ack_something(self, cursor: ManagedCursor) -> None:
        random, position = self.random, self.random.choice(POSITIONS)
        kind = random.randrange(14)
        if kind < 7:
            cursor.ack(position)
        elif kind < 9:
            cursor.ack_many(position.ledger_id, random.sample(range(ENTRIES), random.randint(1, 8)))
        elif kind < 11:
            cursor.ack_mixed([(position, random.randint(1, 511))])
        elif kind == 11:
            cursor.skip(random.randint(1, 2))
        elif kind == 12:
            cursor.set_properties({"p": random.getrandbits(60)})
        else:
            target = self.world.messages.next_valid(cursor.mark_delete)
            if target <= self.world.messages.last_confirmed:
                mask = random.choice([None, random.randint(1, 511)])
                cursor.ack_cumulative(
                    target, unacked_mask=mask, properties={"c": random.randint(0, 9)}
                )

    async def _reset(self) -> None:
        cursor = self.store.cursor
        before = cursor.version
        cursor.reset(self.random.choice(POSITIONS))
        if cursor.version > before:
            self.resets += 1
            if self.is_out_of_touch:
                self.resets_out_of_touch.add(self.resets)
        self._note()
        await self._ack()

    async def _clear(self) -> None:
        self.store.cursor.clear_backlog()
        self._note()
        await self._flush()

    async def _fall_back(self) -> None:
        """The ledger fails: the state goes to the node, if that can be written."""
        faults = self.world.ledgers.faults
        faults.append, faults.create = LedgerWriteError("no"), NotEnoughBookiesError("none")
        await self._ack()
        faults.append = faults.create = None

    async def _fill_ledger(self) -> None:
        """Another ledger is due, and cannot be made."""
        faults = self.world.ledgers.faults
        faults.create = NotEnoughBookiesError("none")
        for _ in range(5):
            await self._ack()
        faults.create = None

    async def _wait(self) -> None:
        await asyncio.sleep(self.random.choice([11, 61]))

    async def _lose_touch(self) -> None:
        self.world.metadata.suspend()
        self.is_out_of_touch = True
        await self._ack()

    async def _regain_touch(self) -> None:
        self.world.metadata.resume()
        self.is_out_of_touch = False
        await self._ack()

    async def _crash(self) -> None:
        self.store = await self.world.crash_and_reopen(self.store)
        self.is_out_of_touch = False
        assert self.store.report.lost is None
        assert self.store.report.versions_lost == 0
        self._note()

    # ------------------------------------------------------------------------ damage

    async def damage(self) -> None:
        """Damage what is stored in many ways, one after the other, and open it each time."""
        stored = await self._stored()
        count = len(stored.records)
        self.seen["records"] += count
        for attempt in range(DAMAGES if count else 1):
            sizes = [0, 1, 1, 1, 2, 3, max(0, count - 1), count]
            size = min(self.random.choice(sizes), count) if attempt else 0
            damaged = set(self.random.sample(range(count), size))
            ledger = None if stored.ledger_id is None else self.world.stored[stored.ledger_id]
            whole = [] if ledger is None else list(ledger.entries)
            for number in damaged:
                assert ledger is not None
                if self.random.random() < 0.5:
                    ledger.bad.add(number)
                else:
                    flipped = bytearray(ledger.entries[number])
                    flipped[self.random.randrange(len(flipped))] ^= 1 << self.random.randrange(8)
                    ledger.entries[number] = bytes(flipped)
            self.store = await self.world.crash_and_reopen(self.store)
            self._check(stored, damaged)
            if ledger is not None:
                ledger.entries[:] = whole
                ledger.bad.clear()
        await self._go_on()

    async def _stored(self) -> Stored:
        node = await self.world.node()
        assert node.state is not None
        in_node = decode_record(node.state)
        assert isinstance(in_node, SnapshotRecord)
        ledger_id = node.cursor_ledger_id
        records: list[CursorRecord] = []
        for payload in [] if ledger_id is None else self.world.stored[ledger_id].entries:
            record = decode_record(payload)
            assert not isinstance(record, ChunkRecord)
            records.append(record)
        return Stored(ledger_id, records, in_node)

    def _truth_of(self, record: CursorRecord) -> Truth:
        return self.diary[record.owner_epoch, record.stamp.version]

    def _check(self, stored: Stored, damaged: set[int]) -> None:
        records, in_node = stored.records, stored.in_node
        intact = [each for number, each in enumerate(records) if number not in damaged]
        truth = self._truth_of(max([*records, in_node], key=lambda each: each.stamp))
        report, cursor = self.store.report, self.store.cursor
        cursor.check()
        recovered = Truth.of(cursor, truth.resets)
        if max(self._truth_of(each).resets for each in [*intact, in_node]) < truth.resets:
            # It could not be told to the node, nothing was acked after it, and its record is damaged.
            assert truth.resets in self.resets_out_of_touch
            assert report.lost is not None
            self.seen["the only record of a reset is damaged"] += 1
            return
        assert recovered.acked <= truth.acked, "an unacked message would be skipped"
        for position, mask in recovered.unacked_masks.items():
            left = 0 if position in truth.acked else truth.unacked_masks[position]
            assert mask & left == left, "an unacked message of a batch would be skipped"
        self._check_kept(intact, in_node, truth, recovered)
        if report.lost is None:
            assert report.versions_lost == 0
            assert recovered == truth or self.caps == CAPS or not damaged
        else:
            assert damaged
            assert report.versions_lost is None or report.versions_lost > 0
        if not damaged:
            assert recovered == truth or self.caps
            assert report.damaged_records == 0
        elif len(records) - 1 in damaged:
            assert report.damaged_records > 0
        how = "damaged" if damaged else "whole"
        self.seen[f"{how}, {'nothing lost' if report.lost is None else 'lost'}"] += 1

    def _check_kept(
        self,
        intact: list[CursorRecord],
        in_node: SnapshotRecord,
        truth: Truth,
        recovered: Truth,
    ) -> None:
        # What a cap left out of a later snapshot is not to be had from an earlier record.
        snapshots = [each.stamp for each in intact if isinstance(each, SnapshotRecord)]
        cut_at = max(snapshots, default=Stamp(0, 0)) if self.caps == CAPS else Stamp(0, 0)
        for record in [*intact, in_node]:
            if self._truth_of(record).resets == truth.resets and record.stamp >= cut_at:
                said = record.growth if isinstance(record, DeltaRecord) else record.snapshot
                for position in POSITIONS:
                    is_acked = position <= said.mark_delete or (
                        position.entry_id in said.acked.get(position.ledger_id, ())
                    )
                    assert not is_acked or position in recovered.acked, f"{record.stamp} is intact"

    async def _go_on(self) -> None:
        """The new owner works as if nothing had been."""
        for position in POSITIONS[::7]:
            self.store.cursor.ack(position)
        await self._flush()
        assert not self.store.is_dirty
        expected = Truth.of(self.store.cursor)
        again = await self.world.crash_and_reopen(self.store)
        assert again.report.lost is None
        assert Truth.of(again.cursor) == expected or self.caps == CAPS


async def live(seed: int) -> Life:
    life = Life(seed)
    await life.live()
    await life.damage()
    return life


def run(seed: int) -> Counter[str]:
    loop = VirtualTimeLoop()
    try:
        life: Any = loop.run_until_complete(live(seed))
        seen: Counter[str] = life.seen
        return seen
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


@pytest.mark.parametrize("seed", range(60))
def test_what_is_intact_is_kept_and_what_is_missing_is_told(seed: int) -> None:
    run(seed)


if __name__ == "__main__":
    import itertools
    import logging
    import sys

    logging.disable()
    seen: Counter[str] = Counter()
    for seed in itertools.islice(itertools.count(int(sys.argv[1])), int(sys.argv[2])):
        try:
            seen += run(seed)
        except BaseException:
            print("seed", seed)
            raise
    print(seen)
