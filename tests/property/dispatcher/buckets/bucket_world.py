"""A bucket tracker between a dumb cursor and a dumb storage, driven step by step.

A step is a name and two numbers, so a run is a list that can be printed, repeated and shortened.
The model knows of every message whether it is to be read, tracked, delivered or acked, and asserts
after every step that the tracker knows the same. ::

    unread --read: add--> tracked --pop--> delivered --> acked
                 |                            ^
                 +--- refused: it is due -----+          a crash, a rewind: delivered --> unread

"""

from __future__ import annotations

import enum
import random
from collections import Counter
from typing import NamedTuple

from pyroaring import BitMap

from ackgate.cursor import Position, StoredSnapshot
from ackgate.dispatcher.buckets import (
    BucketSettings,
    BucketTracker,
    ChangeRegistry,
    MetadataLoaded,
    Outcome,
    Plan,
)
from ackgate.dispatcher.delayed import DelaySettings
from tests.property.dispatcher.buckets.bucket_storage import Storage, failed_for_now

LEDGER_ENTRIES = 6
DRAIN_STEPS_MAX = 3_000


class State(enum.Enum):
    UNREAD = "unread"
    TRACKED = "tracked"
    DELIVERED = "delivered"
    ACKED = "acked"


class Message:
    def __init__(self, deliver_at_ms: int) -> None:
        self.deliver_at_ms = deliver_at_ms
        self.state = State.UNREAD


class Step(NamedTuple):
    name: str
    a: int
    b: int


STEPS = {
    "publish": 14,
    "read": 20,
    "pop": 12,
    "ack": 8,
    "ack_tracked": 2,
    "ack_through": 2,
    "wait": 12,
    "wait_for_deadline": 6,
    "carry_out": 24,
    "fail": 5,
    "lose_answer": 3,
    "answer": 24,
    "answer_again": 3,
    "destroy": 1,
    "corrupt": 1,
    "rewind": 1,
    "seek_back": 1,
    "clear": 1,
    "crash": 2,
    "settle": 2,
}
"""Names of the steps, and how often each comes."""


def random_step(chance: random.Random) -> Step:
    names = list(STEPS)
    name = chance.choices(names, list(STEPS.values()))[0]
    return Step(name, chance.randrange(1 << 16), chance.randrange(1 << 16))


def random_settings(chance: random.Random) -> tuple[DelaySettings, BucketSettings]:
    entries_min = chance.randint(1, 6)
    return (
        DelaySettings(tick_ms=chance.choice([1, 2, 4, 7, 16]), is_strict=chance.random() < 0.6),
        BucketSettings(
            entries_min=entries_min,
            entries_max=chance.randint(entries_min, 12),
            age_max_ms=chance.choice([0, 20, 100]),
            segment_span_ms=chance.choice([1, 5, 20, 200]),
            segment_entries_max=chance.choice([-1, 1, 2, 4]),
            creates_max=chance.choice([1, 2]),
            draft_entries=chance.choice([1, 3, 100, 100]),
            buckets_max=chance.choice([-1, 1, 2, 2, 3, 5]),
            merge_width=chance.choice([2, 3, 4]),
            merge_entries_max=chance.choice([6, 20, 1_000]),
            load_entries_min=chance.choice([1, 2, 5]),
            load_lead_ms=chance.choice([0, 3, 30]),
            load_rest_percent=chance.choice([0, 20, 100]),
            loaded_entries_max=chance.choice([1, 5, 1_000]),
            metadata_loads_max=chance.choice([1, 2]),
            attempts_max=chance.choice([1, 2, 4]),
            retry_ms=chance.choice([1, 5]),
            retry_ms_max=20,
        ),
    )


class World:
    """See the module. `apply` takes any step at any time; one that cannot be taken does nothing."""

    def __init__(self, delays: DelaySettings, settings: BucketSettings, seed: int) -> None:
        self.delays = delays
        self.settings = settings
        self.seed = seed
        self.now_ms = 1_000
        self.storage = Storage()
        self.messages: dict[Position, Message] = {}
        self.mark_delete = Position(0, -1)
        self.read_from = Position(0, 0)
        self.seen: Counter[str] = Counter()
        self.lost_allowed = False
        self.never_told: set[int] = set()
        """Snapshots whose creation seemed to fail: only the next start finds them."""
        self.start()

    def start(self) -> None:
        if self.seen:
            self.note_operations()
        self.plans: list[Plan] = []
        self.answers: list[tuple[Plan, Outcome]] = []
        self.answered: list[tuple[Plan, Outcome]] = []
        self.storage.sweep()
        self.tracker = BucketTracker(self.delays, self.settings, seed=self.seed)
        self.tracker.recover(list(self.storage.registry.values()), self.now_ms, self.acked_of)
        self.tracker.forget_through(self.mark_delete)
        self.read_from = Position(self.mark_delete.ledger_id, self.mark_delete.entry_id + 1)
        self.lost_before = 0
        self.after()

    def note_operations(self) -> None:
        """How much happened, so that a run can say that it was worth it."""
        statistics = self.tracker.statistics()
        for operation, counted in statistics.operations.items():
            self.seen[f"{operation.value} succeeded"] += counted.succeeded
            self.seen[f"{operation.value} failed"] += counted.failed
        self.seen["buckets lost"] += statistics.buckets_lost
        self.seen["entries lost"] += statistics.entries_lost
        self.seen["deletes given up"] += statistics.deletes_given_up

    def acked_of(self, ledger_id: int) -> BitMap | None:
        acked = BitMap(
            position.entry_id
            for position, message in self.messages.items()
            if position.ledger_id == ledger_id
            and message.state is State.ACKED
            and position > self.mark_delete
        )
        return acked or None

    def positions(self, state: State) -> list[Position]:
        return [at for at, message in sorted(self.messages.items()) if message.state is state]

    # -- steps ----------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        getattr(self, step.name)(step.a, step.b)
        self.after()

    def publish(self, a: int, b: int) -> None:
        for number in range(1 + a % 9):
            last = max(self.messages, default=Position(0, -1))
            ends = last.entry_id + 1 >= LEDGER_ENTRIES or (b + number) % 7 == 0
            at = Position(last.ledger_id + 1, 0) if ends else last._replace(entry_id=last[1] + 1)
            delay = ((b >> 2) * (number + 3)) % (4, 30, 300, 3_000)[b % 4]
            self.messages[at] = Message(self.now_ms + delay)

    def read(self, a: int, b: int) -> None:
        """The cursor comes by: what is held is left out, the others are offered."""
        count = 1 + a % 8
        offered: list[Position] = []
        for at in sorted(self.messages):
            if at < self.read_from or at <= self.mark_delete:
                continue
            if len(offered) == count:
                break
            self.read_from = at._replace(entry_id=at.entry_id + 1)
            # Left out: what is held, in flight (popped before the cursor came), or acked.
            if self.messages[at].state is State.UNREAD:
                assert at not in self.tracker
                offered.append(at)
        self.offer(offered, in_bulk=bool(b % 2))

    def offer(self, positions: list[Position], *, in_bulk: bool) -> None:
        if in_bulk:
            for ledger_id in sorted({at.ledger_id for at in positions}):
                group = [at for at in positions if at.ledger_id == ledger_id]
                ids = [at.entry_id for at in group]
                times = [self.messages[at].deliver_at_ms for at in group]
                held = self.tracker.add_many(ledger_id, ids, times, self.now_ms).tolist()
                for at, is_held in zip(group, held, strict=True):
                    self.offered(at, is_held=is_held)
        else:
            for at in positions:
                time = self.messages[at].deliver_at_ms
                self.offered(at, is_held=self.tracker.add(at, time, self.now_ms))

    def offered(self, at: Position, *, is_held: bool) -> None:
        message = self.messages[at]
        assert message.state is State.UNREAD
        ahead = 0 if self.delays.is_strict else self.delays.tick_ms
        assert is_held == (message.deliver_at_ms > self.now_ms + ahead)
        message.state = State.TRACKED if is_held else State.DELIVERED

    def pop(self, a: int, _b: int) -> None:
        had_due = self.tracker.has_due(self.now_ms)
        entries_max = a % 6
        popped = self.tracker.pop_due(self.now_ms, entries_max)
        assert len(popped) <= entries_max
        assert bool(popped) == (had_due and entries_max > 0)
        for at in popped:
            message = self.messages[at]
            assert message.state is State.TRACKED, f"{at} is popped, and {message.state}"
            assert message.deliver_at_ms <= self.now_ms + self.early_ms, f"{at} is early"
            message.state = State.DELIVERED
            self.seen["popped"] += 1
        ordered = sorted(popped, key=lambda at: (self.key_of(at), at))
        assert popped == ordered, "out of order"
        if 0 < len(popped) < entries_max:
            assert not self.tracker.has_due(self.now_ms)

    @property
    def early_ms(self) -> int:
        return 0 if self.delays.is_strict else self.delays.tick_ms

    def key_of(self, at: Position) -> int:
        width = 1 << (self.delays.tick_ms.bit_length() - 1)
        time = self.messages[at].deliver_at_ms
        return -(-time // width) * width if self.delays.is_strict else time // width * width

    def ack(self, a: int, _b: int) -> None:
        delivered = self.positions(State.DELIVERED)
        if delivered:
            self.ack_one(delivered[a % len(delivered)])

    def ack_tracked(self, a: int, _b: int) -> None:
        """A delayed message is cancelled."""
        waiting = [*self.positions(State.TRACKED), *self.positions(State.UNREAD)]
        if waiting:
            self.ack_one(waiting[a % len(waiting)])

    def ack_one(self, at: Position) -> None:
        was_tracked = self.messages[at].state is State.TRACKED
        self.messages[at].state = State.ACKED
        assert self.tracker.discard(at) == was_tracked
        self.advance_mark_delete()

    def ack_through(self, a: int, _b: int) -> None:
        """A cumulative ack, a skip, an expiry."""
        candidates = sorted(at for at in self.messages if at > self.mark_delete)[: 1 + a % 12]
        for at in candidates:
            self.messages[at].state = State.ACKED
        if candidates:
            self.advance_mark_delete()

    def advance_mark_delete(self) -> None:
        for at in sorted(self.messages):
            if self.messages[at].state is not State.ACKED:
                break
            self.mark_delete = max(self.mark_delete, at)
        self.tracker.forget_through(self.mark_delete)

    def wait(self, a: int, b: int) -> None:
        self.now_ms += a % (2, 3, 30, 400)[b % 4]

    def wait_for_deadline(self, _a: int, _b: int) -> None:
        deadline = self.tracker.next_deadline_ms
        if deadline is not None:
            self.now_ms = max(self.now_ms, deadline)

    def carry_out(self, a: int, _b: int) -> None:
        plan = self.choose_plan(a)
        if plan is not None:
            self.answers.append((plan, self.storage.carry_out(plan)))

    def fail(self, a: int, b: int) -> None:
        """A plan fails before it has done anything."""
        plan = self.choose_plan(a)
        if plan is not None:
            self.answers.append((plan, failed_for_now(plan)))

    def lose_answer(self, a: int, _b: int) -> None:
        """A plan is carried out, and then it seems that it was not."""
        plan = self.choose_plan(a)
        if plan is not None:
            outcome = self.storage.carry_out(plan)
            if isinstance(outcome, StoredSnapshot):
                self.never_told.add(outcome.snapshot_id)
            self.answers.append((plan, failed_for_now(plan)))

    def choose_plan(self, a: int) -> Plan | None:
        if not self.plans:
            return None
        changes = [plan for plan in self.plans if isinstance(plan, ChangeRegistry)]
        assert len(changes) <= 1, "two changes of the registry at a time"
        return self.plans.pop(a % len(self.plans))

    def answer(self, a: int, _b: int) -> None:
        if self.answers:
            given = self.answers.pop(a % len(self.answers))
            self.answered = [*self.answered[-7:], given]
            self.tell(*given)

    def answer_again(self, a: int, _b: int) -> None:
        if self.answered:
            self.tell(*self.answered[a % len(self.answered)])

    def tell(self, plan: Plan, outcome: Outcome) -> None:
        self.tracker.answer(plan.plan, outcome, self.now_ms)
        if isinstance(outcome, MetadataLoaded):
            named = {
                Position(ledger_id, entry_id)
                for segment in outcome.segments
                for ledger_id, bitmap in segment.positions.items()
                for entry_id in bitmap
            }
            for at in sorted(named):
                if at in self.tracker and self.messages[at].state is not State.TRACKED:
                    assert self.messages[at].state is State.UNREAD, f"{at} comes a second time"
                    self.messages[at].state = State.TRACKED
                    self.seen["recovered"] += 1

    def destroy(self, a: int, _b: int) -> None:
        snapshots = sorted(self.storage.snapshots)
        if snapshots:
            self.storage.destroy(snapshots[a % len(snapshots)])
            self.lost_allowed = True

    def corrupt(self, a: int, b: int) -> None:
        snapshots = sorted(self.storage.snapshots)
        if snapshots:
            self.storage.corrupt(snapshots[a % len(snapshots)], b // 3, b % 3)
            # What is in a wrong order only is put right.
            self.lost_allowed |= b % 3 < 2

    def rewind(self, _a: int, _b: int) -> None:
        """The last consumer went: what it had is read again, what is held stays so."""
        for message in self.messages.values():
            if message.state is State.DELIVERED:
                message.state = State.UNREAD
        self.read_from = Position(self.mark_delete.ledger_id, self.mark_delete.entry_id + 1)

    def seek_back(self, a: int, _b: int) -> None:
        """Some of what was acked is not any more."""
        acked = self.positions(State.ACKED)[-(1 + a % 12) :]
        if not acked:
            return
        for at in acked:
            self.messages[at].state = State.UNREAD
        before = [at for at in sorted(self.messages) if at < acked[0]]
        if self.mark_delete >= acked[0]:
            self.mark_delete = before[-1] if before else Position(0, -1)
        self.rewind(0, 0)

    def clear(self, _a: int, _b: int) -> None:
        self.tracker.clear()
        for message in self.messages.values():
            if message.state is State.TRACKED:
                message.state = State.UNREAD
        self.rewind(0, 0)
        assert self.tracker.entry_count == 0

    def crash(self, a: int, b: int) -> None:
        """The broker dies. What it had asked for may be done yet, or not."""
        self.seen["restarts with buckets"] += bool(self.storage.registry)
        for number, plan in enumerate(self.plans):
            if b >> (number % 16) & 1:
                self.storage.carry_out(plan)
        for message in self.messages.values():
            if message.state in {State.TRACKED, State.DELIVERED}:
                message.state = State.UNREAD
        self.start()

    def settle(self, _a: int, _b: int) -> None:
        """Everything is carried out and answered: then nothing that is due is held back."""
        self.finish_work()
        for _ in range(DRAIN_STEPS_MAX):
            deadline = self.tracker.next_deadline_ms
            is_asked = deadline is not None and deadline <= self.now_ms
            if not is_asked and not self.tracker.has_due(self.now_ms):
                break
            self.pop(5, 0)
            self.finish_work()
        else:
            raise AssertionError("a deadline stays in the past")
        assert not self.tracker.has_due(self.now_ms)
        statistics = self.tracker.statistics()
        hindered = statistics.buckets_blocked or statistics.buckets_unread or self.lost_allowed
        if not hindered:
            width = 1 << (self.delays.tick_ms.bit_length() - 1)
            for at in self.positions(State.TRACKED):
                late_ms = self.now_ms - self.messages[at].deliver_at_ms
                assert late_ms < width, f"{at} is {late_ms} ms late, and nothing hinders it"

    def finish_work(self) -> None:
        self.tracker.pop_due(self.now_ms, 0)
        self.after()
        for _ in range(DRAIN_STEPS_MAX):
            if not self.plans and not self.answers:
                return
            self.carry_out(0, 0)
            self.after()
            self.answer(0, 0)
            self.after()
        raise AssertionError("the tracker never comes to rest")

    # -- the end --------------------------------------------------------------------------------

    def drain(self) -> None:
        """Nothing fails any more: every message comes, and nothing is left behind."""
        for _ in range(DRAIN_STEPS_MAX):
            self.finish_work()
            self.read(7, 1)
            self.after()
            self.pop(5, 0)
            self.after()
            for at in self.positions(State.DELIVERED):
                self.ack_one(at)
                self.after()
            if all(message.state is State.ACKED for message in self.messages.values()):
                break
            if not self.tracker.has_due(self.now_ms) and not self.positions(State.UNREAD):
                self.finish_work()
                if self.positions(State.UNREAD):
                    continue  # lost, just now
                deadline = self.tracker.next_deadline_ms
                assert deadline is not None or self.plans or self.answers, "nobody ever wakes it"
                if deadline is not None:
                    self.now_ms = max(self.now_ms, deadline)
        else:
            raise AssertionError(f"never delivered: {self.positions(State.TRACKED)}")
        for _ in range(DRAIN_STEPS_MAX):
            self.finish_work()
            if self.tracker.next_deadline_ms is None:
                break
            self.now_ms = max(self.now_ms + 1, self.tracker.next_deadline_ms)
        statistics = self.tracker.statistics()
        assert not self.storage.registry, f"still registered: {self.storage.registry}"
        assert statistics.entries == statistics.loaded_entries == statistics.mutable_entries == 0
        assert statistics.buckets == 1
        assert statistics.snapshots_to_delete == 0
        left = self.storage.snapshots.keys() - self.never_told
        assert not left or statistics.deletes_given_up, f"nobody deletes {left}"
        self.note_operations()

    # -- after every step -----------------------------------------------------------------------

    def after(self) -> None:
        self.plans += self.tracker.take_plans()
        lost = self.tracker.take_lost()
        for ledger_id, bitmap in lost.items():
            for entry_id in bitmap:
                at = Position(ledger_id, entry_id)
                assert self.lost_allowed, f"{at} is lost, and nothing was destroyed"
                assert self.messages[at].state is State.TRACKED
                self.messages[at].state = State.UNREAD
                self.read_from = min(self.read_from, at)
        self.tracker.check()
        tracked = {at for at, message in self.messages.items() if message.state is State.TRACKED}
        assert self.tracker.entry_count == len(tracked)
        for at in tracked:
            assert at in self.tracker, f"{at} is tracked no more"
        self.check_wakes()

    def check_wakes(self) -> None:
        """What is tracked has a deadline, or somebody works on it."""
        if self.tracker.entry_count and self.tracker.next_deadline_ms is None:
            assert self.plans or self.answers, "nobody ever wakes it"
