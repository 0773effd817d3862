"""The managed cursor against sets of positions: every operation, across every kind of border."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from ackgate.cursor import EARLIEST, LATEST, ManagedCursor, MessageLedgers, Position
from ackgate.errors import CallerError, PositionError
from tests.property.cursor.cursor_model import CursorModel, Folded, TopicModel, runs

MASKS = st.integers(min_value=0, max_value=0b1111)
ANYWHERE = st.builds(Position, st.integers(1, 9), st.integers(-1, 9))


class CursorMachine(RuleBasedStateMachine):
    """One topic, one cursor, and the model of both."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = TopicModel()
        self.ledgers = MessageLedgers()
        self.version = 0
        self.last_persisted: object = None

    @initialize(count=st.integers(0, 8), is_latest=st.booleans())
    def create(self, count: int, is_latest: bool) -> None:
        self.open(count)
        start = self.ledgers.last_confirmed if is_latest else self.ledgers.first_position
        self.cursor = ManagedCursor(self.ledgers, start)
        self.model = CursorModel(self.topic, start)
        self.folded: Folded | None = None
        self.last_persisted = self.model.persisted()

    def open(self, count: int) -> None:
        newest = max([*self.topic.ledgers, self.topic.newest_ever])
        self.topic.newest_ever = newest + 1
        self.topic.ledgers[newest + 1] = count
        self.ledgers.open_ledger(newest + 1)
        self.ledgers.add_entries(newest + 1, count)

    # -- positions to act on

    def existing(self, data: st.DataObject) -> Position:
        entries = self.topic.entries()
        return data.draw(st.sampled_from(entries)) if entries else Position(1, 0)

    def some(self, data: st.DataObject, *, size: int = 6) -> list[Position]:
        """Mostly existing entries; now and then one that is not."""
        entries = self.topic.entries()
        one = st.sampled_from(entries) if entries else ANYWHERE
        if data.draw(st.integers(0, 9)) == 0:
            one = one | ANYWHERE
        return data.draw(st.lists(one, max_size=size))

    def refuses(self, positions: list[Position]) -> bool:
        return any(self.model.is_refused(position) for position in positions)

    # -- facts

    @rule(count=st.integers(0, 6))
    def open_ledger(self, count: int) -> None:
        if len(self.topic.ledgers) < 5:
            self.open(count)

    @rule(count=st.integers(0, 5))
    def add_entries(self, count: int) -> None:
        newest = max(self.topic.ledgers)
        if self.topic.ledgers[newest] < 9:
            self.topic.ledgers[newest] += count
            self.ledgers.add_entries(newest, count)

    @precondition(lambda self: len(self.topic.ledgers) > 1)
    @rule(data=st.data(), is_front=st.booleans())
    def trim(self, data: st.DataObject, is_front: bool) -> None:
        *old, _ = sorted(self.topic.ledgers)
        ledger_id = old[0] if is_front else data.draw(st.sampled_from(old))
        self.topic.trim(ledger_id)
        self.ledgers.trim_ledger(ledger_id)
        self.cursor.ledger_trimmed(ledger_id)
        self.model.trimmed(ledger_id)

    # -- acks

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        position = self.existing(data)
        if self.refuses([position]):
            return
        assert self.cursor.ack(position) == bool(self.model.ack([position]))

    @rule(position=ANYWHERE)
    def ack_anything(self, position: Position) -> None:
        if self.refuses([position]):
            with pytest.raises(PositionError):
                self.cursor.ack(position)
        else:
            assert self.cursor.ack(position) == bool(self.model.ack([position]))

    @rule(data=st.data(), as_arrays=st.booleans())
    def ack_individual(self, data: st.DataObject, as_arrays: bool) -> None:
        positions = self.some(data, size=12)
        ack = self.ack_pairs if as_arrays else self.cursor.ack_individual
        if self.refuses(positions):
            with pytest.raises(PositionError):
                ack(positions)
        else:
            assert ack(positions) == self.model.ack(positions)

    def ack_pairs(self, positions: list[Position]) -> int:
        ledger_ids = np.array([p.ledger_id for p in positions], dtype=np.int64)
        return self.cursor.ack_many_pairs(ledger_ids, [p.entry_id for p in positions])

    @rule(data=st.data(), dtype=st.sampled_from([np.int32, np.int64, np.uint32, np.uint64]))
    def ack_many(self, data: st.DataObject, dtype: type) -> None:
        ledger_id = data.draw(st.sampled_from(sorted(self.topic.ledgers)))
        ids = data.draw(st.lists(st.integers(0, 9), max_size=9))
        positions = [Position(ledger_id, entry_id) for entry_id in ids]
        array: np.ndarray = np.array(ids, dtype=dtype)
        if self.refuses(positions):
            with pytest.raises(PositionError):
                self.cursor.ack_many(ledger_id, array)
        else:
            assert self.cursor.ack_many(ledger_id, array) == self.model.ack(positions)

    @rule(data=st.data())
    def ack_mixed(self, data: st.DataObject) -> None:
        positions = self.some(data)
        acks = [(position, data.draw(MASKS | st.none())) for position in positions]
        if self.refuses(positions):
            with pytest.raises(PositionError):
                self.cursor.ack_mixed(acks)
            return
        expected = sum(
            self.model.ack_indexes(position, mask) if mask else self.model.ack([position])
            for position, mask in acks
        )
        assert self.cursor.ack_mixed(acks) == expected

    @rule(
        data=st.data(),
        mask=MASKS | st.none(),
        anywhere=ANYWHERE,
        is_odd=st.booleans(),
        properties=st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)),
    )
    def ack_cumulative(
        self,
        data: st.DataObject,
        mask: int | None,
        anywhere: Position,
        is_odd: bool,
        properties: dict[str, int] | None,
    ) -> None:
        position = anywhere if is_odd else self.existing(data)
        is_border = (
            not mask and position.entry_id == -1 and position.ledger_id in self.topic.ledgers
        )
        is_fine = position == self.model.mark_delete or (
            position > self.model.mark_delete and (is_border or not self.refuses([position]))
        )
        if not is_fine:
            with pytest.raises(PositionError):
                self.cursor.ack_cumulative(position, unacked_mask=mask, properties=properties)
            return
        self.cursor.ack_cumulative(position, unacked_mask=mask, properties=properties)
        if properties is not None:
            self.model.properties = properties
        if mask and not self.model.is_acked(position):
            self.model.ack_through(self.topic.before(position))
            self.model.ack_indexes(position, mask)
        else:
            self.model.ack_through(position)

    @rule(entries=st.integers(-1, 5))
    def skip(self, entries: int) -> None:
        if entries < 0:
            with pytest.raises(CallerError):
                self.cursor.skip(entries)
            return
        backlog = self.model.backlog()
        if wanted := backlog[:entries]:
            self.model.ack_through(wanted[-1])
        assert self.cursor.skip(entries) == len(wanted)

    @rule()
    def clear_backlog(self) -> None:
        backlog = self.model.backlog()
        if backlog:
            self.model.is_pure = False
            self.model.ack_through(self.ledgers.last_confirmed)
        assert self.cursor.clear_backlog() == len(backlog)

    # -- moves

    @rule(data=st.data(), odd=st.none() | st.sampled_from([EARLIEST, LATEST]) | ANYWHERE)
    def reset(self, data: st.DataObject, odd: Position | None) -> None:
        position = odd or self.existing(data)
        self.cursor.reset(position)
        self.model.reset(position)

    @rule()
    def rewind(self) -> None:
        self.cursor.rewind()
        self.model.read_position = self.topic.after(self.model.mark_delete)

    @rule(position=ANYWHERE, force=st.booleans())
    def seek(self, position: Position, force: bool) -> None:
        self.cursor.seek(position, force=force)
        self.model.read_position = self.topic.at_or_after(position)
        self.model.forced_at = self.model.mark_delete if force else None
        self.model.settle()

    @rule(properties=st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)))
    def set_properties(self, properties: dict[str, int]) -> None:
        self.cursor.set_properties(properties)
        self.model.properties = properties

    # -- records

    @rule()
    def take_snapshot(self) -> None:
        self.folded = Folded.of(self.cursor.take_snapshot())
        self.model.is_pure = True

    @rule()
    def take_growth(self) -> None:
        growth = self.cursor.take_growth()
        assert (growth is not None) == self.model.is_pure
        if growth is not None:
            assert self.folded is not None
            assert all(growth.acked.values())
            assert growth.range_count == self.cursor.range_count
            self.folded = self.folded.plus(growth)
            self.fold_equals_state()

    def fold_equals_state(self) -> None:
        assert self.folded is not None
        assert self.folded.version == self.cursor.version
        assert self.folded.mark_delete == self.model.mark_delete
        assert self.folded.acked == self.model.acked
        assert self.folded.unacked == self.model.unacked
        assert self.folded.properties == self.model.properties

    @rule()
    def recover(self) -> None:
        snapshot = self.cursor.snapshot()
        self.cursor, report = ManagedCursor.from_snapshot(self.ledgers, snapshot)
        assert report.is_clean
        assert self.cursor.version == snapshot.version
        assert self.cursor.snapshot() == snapshot
        self.model.is_pure = False
        self.model.forced_at = None
        self.model.read_position = self.topic.after(self.model.mark_delete)

    @rule(limit=st.integers(0, 3))
    def ask_for_a_budget(self, limit: int) -> None:
        """A remembered budget is the one that a cursor without memory works out."""
        fresh, _ = ManagedCursor.from_snapshot(self.ledgers, self.cursor.snapshot())
        fresh.seek(self.cursor.read_position, force=True)
        assert self.cursor.entry_budget(limit) == fresh.entry_budget(limit)

    # -- after every step

    @invariant()
    def agrees_with_model(self) -> None:
        cursor, model = self.cursor, self.model
        self.ledgers.check()
        cursor.check()
        acked_runs = runs(model.acked)
        backlog = model.backlog()
        assert cursor.mark_delete == model.mark_delete
        assert cursor.read_position == model.read_position
        assert cursor.range_count == len(acked_runs)
        assert cursor.acked_count == len(model.acked)
        assert cursor.hole_count == model.hole_count()
        assert cursor.backlog_entries == len(backlog)
        assert cursor.partly_acked_count == len(model.unacked)
        assert cursor.properties == model.properties
        assert cursor.last_acked_position() == (max(model.acked) if model.acked else None)
        snapshot = cursor.snapshot()
        assert Folded.of(snapshot).acked == model.acked
        assert snapshot.unacked_indexes == model.unacked
        text = ",".join(f"({id_}:{a - 1}..{id_}:{b - 1}]" for id_, a, b in acked_runs)
        assert cursor.ranges_text(1000) == f"[{text}]"

    @invariant()
    def version_counts_changes(self) -> None:
        persisted = self.model.persisted()
        if persisted == self.last_persisted:
            assert self.cursor.version == self.version, "no change, yet a new version"
        else:
            assert self.cursor.version > self.version, "a change without a new version"
        self.version, self.last_persisted = self.cursor.version, persisted

    @rule(start=ANYWHERE, entries_max=st.integers(0, 12))
    def read(self, start: Position, entries_max: int) -> None:
        backlog = [entry for entry in self.model.backlog() if entry >= start]
        spans = self.cursor.unacked_spans(start, entries_max)
        assert [tuple(span) for span in spans] == runs(backlog[:entries_max])

    @rule(
        start=ANYWHERE,
        entries_max=st.integers(0, 12),
        gap=st.integers(0, 5),
        seed=st.integers(0, 2**20),
    )
    def read_around_held(self, start: Position, entries_max: int, gap: int, seed: int) -> None:
        """Held entries are passed over; short gaps are read through, and not too many."""
        held = {entry for entry in self.model.backlog() if hash((entry, seed)) % 3 == 0}
        wanted = [e for e in self.model.backlog() if e >= start and e not in held][:entries_max]

        def left_out(ledger_id: int) -> BitMap | None:
            ids = BitMap(entry_id for ledger, entry_id in held if ledger == ledger_id)
            return ids or (None if seed % 2 else ids)

        expected: list[list[int]] = []
        gaps_left = entries_max
        for ledger_id, run_start, stop in runs(wanted):
            between = run_start - expected[-1][2] if expected else 0
            if gap and expected and expected[-1][0] == ledger_id and between <= min(gap, gaps_left):
                gaps_left -= between
                expected[-1][2] = stop
            else:
                expected.append([ledger_id, run_start, stop])
        spans = self.cursor.unacked_spans(
            start, entries_max, left_out=left_out, gap_entries_max=gap
        )
        assert [list(span) for span in spans] == expected

    @rule(position=ANYWHERE)
    def look(self, position: Position) -> None:
        assert self.cursor.is_acked(position) == self.model.is_acked(position)
        assert self.cursor.unacked_mask(position) == self.model.unacked.get(position)
        above = any(entry > position for entry in self.model.acked)
        assert self.cursor.has_acked_above(position) == above
        below = [entry for entry in self.model.backlog() if entry < self.model.read_position]
        stats = self.cursor.statistics()
        assert stats.unread_entries == stats.backlog_entries - len(below)


TestCursor = CursorMachine.TestCase
