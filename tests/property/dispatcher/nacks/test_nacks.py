"""The nack tracker against a dumb model: a table of what waits for when, sorted when it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.dispatcher.held import held_positions
from ackgate.dispatcher.nacks import (
    WHOLE,
    DueNacks,
    MultiplierRedeliveryBackoff,
    NackSettings,
    NackTracker,
)

MEMBERS = 4
"""Messages that the model thinks an entry has; a whole nack is of these and of one more bit, the
rest of the batch."""

REST = 1 << MEMBERS
ALL = 2 * REST - 1

ENTRY_IDS = st.sampled_from([0, 1, 2, 3, 65_535, 65_536, 2**32 - 1])
LEDGERS = st.sampled_from([0, 3, 4, 2**63 - 1])
POSITIONS = st.builds(Position, LEDGERS, ENTRY_IDS)
DELAYS = st.sampled_from([0, 1, 5, 100, 255, 256, 1_000, 1_001, 10_000])
MASKS = st.integers(1, REST - 1)


@dataclass
class Model:
    """What each message waits for."""

    bits: int
    waits: dict[Position, dict[int, int]] = field(default_factory=dict)
    """Position -> message -> key. The message `MEMBERS` stands for the rest of the batch."""

    def key(self, now_ms: int, delay_ms: int) -> int:
        width = 1 << self.bits
        return (now_ms + delay_ms) // width * width

    def add(self, position: Position, key: int, mask: int) -> None:
        waits = self.waits.setdefault(position, {})
        waits |= dict.fromkeys(bits_of(mask), key)

    def remove(self, position: Position, mask: int) -> bool:
        waits = self.waits.get(position, {})
        gone = [message for message in bits_of(mask) if waits.pop(message, None) is not None]
        if not waits:
            self.waits.pop(position, None)
        return bool(gone)

    def holds_whole(self, position: Position) -> bool:
        return MEMBERS in self.waits.get(position, {})

    def mask(self, position: Position) -> int:
        return sum(1 << message for message in self.waits.get(position, {}))

    def due(self, now_ms: int, entries_max: int) -> tuple[list[Position], dict[Position, int]]:
        """By key, then by position; an (entry, key) counts as one of the most that are wanted."""
        positions: list[Position] = []
        masks: dict[Position, int] = {}
        pairs = sorted({(k, p) for p, waits in self.waits.items() for k in waits.values()})
        for key, position in pairs:
            if key > now_ms or (len(positions) == entries_max and position not in masks):
                break
            found = [m for m, waits_for in self.waits[position].items() if waits_for == key]
            mask = sum(1 << message for message in found)
            self.remove(position, mask)
            if position not in masks:
                positions.append(position)
            masks[position] = masks.get(position, 0) | mask
            if len(positions) == entries_max:
                break
        return positions, masks


def bits_of(mask: int) -> list[int]:
    return [bit for bit in range(MEMBERS + 1) if mask >> bit & 1]


def seen_mask(indexes: int) -> int:
    """The tracker's mask as the model's: bits without end are one bit, the rest of the batch."""
    return indexes & ALL


class NackMachine(RuleBasedStateMachine):
    @initialize(
        bits=st.sampled_from([0, 1, 8, 12]),
        stale_max=st.sampled_from([0, 5, 1_000]),
        moved_max=st.sampled_from([0, 3, 1_000]),
        look_entries=st.sampled_from([1, 3, 1_000]),
    )
    def start(self, bits: int, stale_max: int, moved_max: int, look_entries: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(held_positions, "STALE_ENTRIES_MIN", stale_max)
        self.patch.setattr(held_positions, "MOVED_MAX", moved_max)
        self.patch.setattr(held_positions, "LOOK_ENTRIES", look_entries)
        self.settings = NackSettings(precision_bits=bits, backoff=MultiplierRedeliveryBackoff(3, 9))
        self.tracker = NackTracker(self.settings)
        self.model = Model(bits)
        self.now_ms = 1_000_000

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(position=POSITIONS, delay=DELAYS)
    def add(self, position: Position, delay: int) -> None:
        key = self.model.key(self.now_ms, delay)
        assert self.tracker.add(position, self.now_ms, delay_ms=delay) == key
        self.model.add(position, key, ALL)

    @rule(position=POSITIONS, delay=DELAYS, mask=MASKS)
    def add_messages(self, position: Position, delay: int, mask: int) -> None:
        key = self.model.key(self.now_ms, delay)
        assert self.tracker.add(position, self.now_ms, delay_ms=delay, indexes=mask) == key
        self.model.add(position, key, mask)

    @rule(position=POSITIONS, count=st.integers(-1, 4))
    def add_by_count(self, position: Position, count: int) -> None:
        key = self.model.key(self.now_ms, [3, 3, 6, 9, 9, 9][count + 1])
        assert self.tracker.add(position, self.now_ms, redelivery_count=count) == key
        self.model.add(position, key, ALL)

    @rule(
        ledger_id=LEDGERS,
        entries=st.lists(st.tuples(ENTRY_IDS, DELAYS), max_size=8),
        is_one_delay=st.booleans(),
    )
    def add_many(self, ledger_id: int, entries: list[tuple[int, int]], is_one_delay: bool) -> None:
        ids = np.array([entry_id for entry_id, _ in entries], dtype=np.int64)
        delays = [entries[0][1] if is_one_delay else delay for _, delay in entries]
        positions = {Position(ledger_id, entry_id) for entry_id, _ in entries}
        new = sum(not self.model.holds_whole(position) for position in positions)
        given = delays[0] if is_one_delay and delays else np.array(delays, dtype=np.int64)
        assert self.tracker.add_many(ledger_id, ids, self.now_ms, delays_ms=given) == new
        for (entry_id, _), delay in zip(entries, delays, strict=True):
            self.model.add(Position(ledger_id, entry_id), self.model.key(self.now_ms, delay), ALL)

    @rule(position=POSITIONS)
    def ack(self, position: Position) -> None:
        assert self.tracker.discard(position) == self.model.remove(position, ALL)

    @rule(position=POSITIONS, mask=MASKS)
    def ack_messages(self, position: Position, mask: int) -> None:
        assert self.tracker.discard_indexes(position, mask) == self.model.remove(position, mask)

    @rule(
        mark_delete=st.builds(
            Position, st.sampled_from([-1, 0, 3, 4, 2**63 - 1]), st.one_of(st.just(-1), ENTRY_IDS)
        )
    )
    def forget_through(self, mark_delete: Position) -> None:
        gone = [position for position in self.model.waits if position <= mark_delete]
        assert self.tracker.forget_through(mark_delete) == len(gone)
        for position in gone:
            del self.model.waits[position]

    @rule()
    def clear(self) -> None:
        self.tracker.clear()
        self.model.waits.clear()

    @rule(forward=st.sampled_from([0, 1, 100, 255, 256, 1_000, 20_000]))
    def time_passes(self, forward: int) -> None:
        self.now_ms += forward

    @rule(entries_max=st.integers(0, 9))
    def pop_due(self, entries_max: int) -> None:
        self.agree(self.tracker.pop_due(self.now_ms, entries_max), entries_max)

    @precondition(lambda self: self.model.waits)
    @rule(entries_max=st.integers(1, 9))
    def pop_at_deadline(self, entries_max: int) -> None:
        deadline = self.tracker.next_deadline_ms
        assert deadline is not None
        self.now_ms = max(self.now_ms, deadline)
        due = self.tracker.pop_due(self.now_ms, entries_max)
        assert due.positions, "woken for nothing"
        self.agree(due, entries_max)

    def agree(self, due: DueNacks, entries_max: int) -> None:
        positions, masks = self.model.due(self.now_ms, entries_max)
        assert due.positions == positions
        assert set(due.indexes) <= set(positions)
        for position in positions:
            assert seen_mask(due.indexes.get(position, WHOLE)) == masks[position]

    @rule()
    def restart(self) -> None:
        """Whole entries are kept as a whole; messages of others are not kept."""
        keys = {at: waits[MEMBERS] for at, waits in self.model.waits.items() if MEMBERS in waits}
        parts = list(self.tracker.parts())
        order = [(key, ledger_id) for key, ledger_id, _ in parts]
        assert order == sorted({(key, at.ledger_id) for at, key in keys.items()})
        held = {Position(ledger, entry): key for key, ledger, ids in parts for entry in ids}
        assert held == keys
        self.tracker.check()
        self.tracker = NackTracker.restore(parts, self.settings)
        self.model.waits = {at: dict.fromkeys(bits_of(ALL), key) for at, key in keys.items()}

    @rule()
    def look(self) -> None:
        """An image is taken of the first ones only, and nothing changes by that."""
        next(self.tracker.parts(), None)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tracker"):
            return
        self.tracker.check()
        waits = self.model.waits
        keys = [key for each in waits.values() for key in each.values()]
        assert self.tracker.next_deadline_ms == min(keys, default=None)
        for position, each in waits.items():
            assert position in self.tracker
            mask = sum(1 << message for message in each)
            assert seen_mask(self.tracker.indexes(position)) == mask
        whole = {position for position in waits if self.model.holds_whole(position)}
        assert self.tracker.whole_count == len(whole)
        for ledger_id in (0, 3, 4, 5, 2**63 - 1):
            entry_ids = [at.entry_id for at in whole if at.ledger_id == ledger_id]
            assert self.tracker.tracked(ledger_id) == (BitMap(entry_ids) if entry_ids else None)
        assert bool(self.tracker.byte_estimate) == bool(len(self.tracker)) == bool(waits)


NackMachine.TestCase.settings = settings(max_examples=4 * settings.default.max_examples)
TestNackTracker = NackMachine.TestCase
