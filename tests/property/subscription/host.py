"""A host of one subscription: calls it, carries out its `Ready`s, and follows all of it in the model.

Every step on the machine is a function of a `Bare` (ledgers, subscription, the read and the write under
way), so that all steps can be taken again on another one: the outcomes must be the same.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ackgate.cursor import (
    NO_NACKS,
    CursorSnapshot,
    ManagedCursor,
    MessageLedgers,
    Position,
    WrittenCounts,
    unacked_nacks,
)
from ackgate.errors import AckGateError
from ackgate.subscription import EntryRead, ReadRequest, Ready, Subscription, SubscriptionSettings
from tests.property.subscription.model import Model, whole
from tests.written_counts import written_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.cursor import PendingNacks
    from ackgate.dispatcher import SubscriptionKind
    from ackgate.subscription import Write

TURNS_MAX = 500
NACK_BYTES_MAX = 1 << 20
FIRST_LEDGER = 1


class Bare:
    """The machine and what belongs to it; steps are functions of this."""

    def __init__(self, make: Callable[..., Subscription[str, EntryRead]]) -> None:
        self.make = make
        self.ledgers = MessageLedgers()
        self.ledgers.open_ledger(FIRST_LEDGER)
        self.sub = make(self.ledgers, now_ms=0)
        self.request: ReadRequest | None = None
        self.write: Write | None = None
        self.durable: tuple[CursorSnapshot, PendingNacks] = (
            self.sub.cursor.snapshot(),
            NO_NACKS,
        )

    def turn(self, now_ms: int, read_max: int | None) -> Ready[str, EntryRead]:
        ready = self.sub.ready(now_ms=now_ms, read_entries_max=read_max)
        if ready.read is not None:
            self.request = ready.read
        if ready.write is not None:
            self.write = ready.write
        return ready

    def answer(self) -> ReadRequest:
        assert self.request is not None
        request, self.request = self.request, None
        return request

    def persist(self, keep: int, keep_parts: int, now_ms: int) -> WrittenCounts:
        """The write is durable, with so many of its ranges and partly acked entries."""
        assert self.write is not None
        snapshot, image = self.write.snapshot(), self.write.held_nacks(NACK_BYTES_MAX)
        self.write = None
        stored, written = written_of(snapshot, ranges_max=keep, batch_indexes_max=keep_parts)
        self.durable = stored, NO_NACKS if image is None else image.nacks
        self.sub.persisted(written, now_ms=now_ms)
        return written

    def crash(self, settings: SubscriptionSettings, now_ms: int) -> None:
        """The process dies; another one recovers what was durable."""
        snapshot, nacks = self.durable
        cursor, _ = ManagedCursor.from_snapshot(self.ledgers, snapshot)
        nacks = unacked_nacks(nacks, snapshot.mark_delete, snapshot.acked)
        self.request = self.write = None
        self.sub = self.make(
            self.ledgers, cursor=cursor, nacks=nacks, settings=settings, now_ms=now_ms
        )


class Host:
    """Does everything twice: on the machine, and in the model."""

    def __init__(
        self,
        settings: SubscriptionSettings,
        kind: SubscriptionKind,
        *,
        is_durable: bool = True,
        keeps_promise: bool = False,
        is_patient: bool = True,
    ) -> None:
        """`keeps_promise`: acks are of what was sent, so that a strict gate can keep its limit.

        `is_patient` False: entries may wait for ever though there is room (limits of Key_Shared).
        """

        def make(ledgers: MessageLedgers, **given: Any) -> Subscription[str, EntryRead]:
            return Subscription(
                ledgers,
                kind=kind,
                settings=given.pop("settings", settings),
                is_durable=is_durable,
                keeps_notes=True,
                **given,
            )

        backoff = settings.backoff
        self.settings = settings
        self.first_kind = kind
        self.keeps_promise = keeps_promise
        self.is_patient = is_patient
        self.bare = Bare(make)
        self.twin = lambda: Bare(make)
        self.model = Model(
            is_durable,
            settings.delays.tick_ms,
            settings.delays.is_strict,
            None if backoff is None else (backoff.min_delay_ms, backoff.max_delay_ms),
            kind,
        )
        self.steps: list[tuple[Callable[[Bare], object], str]] = []
        self.now_ms = 0
        self.reads_at_once = True
        self.read_max: int | None = None
        self.broken: set[Position] = set()
        self.retry_at_ms = 0
        self.write_retry_at_ms = 0
        self.is_suspended = False
        self.wake_at_ms: int | None = None
        self.receipts: dict[str, tuple[str, int, int]] = {}
        """Token -> consumer, version, when it was asked for."""
        self.tokens = 0
        self.persisted_version = 0
        self.durable_nacked: dict[Position, tuple[int, int]] = {}
        self.durable_nack_changes = 0

    @property
    def sub(self) -> Subscription[str, EntryRead]:
        return self.bare.sub

    def step(self, act: Callable[[Bare], object]) -> Any:
        """One step on the machine, to be taken again by `check_repeats`."""
        outcome, shown = taken(act, self.bare)
        self.steps.append((act, shown))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def refused(self, act: Callable[[Bare], object]) -> None:
        """The call is illegal: it raises, and everything is as it was."""
        before = fingerprint(self.sub)
        outcome, shown = taken(act, self.bare)
        self.steps.append((act, shown))
        assert isinstance(outcome, AckGateError), f"not refused: {shown}"
        after = fingerprint(self.sub)
        assert after == before, f"refused ({outcome}), and yet it changed something"

    def check_repeats(self) -> None:
        """The same calls with the same times give the same answers."""
        twin = self.twin()
        for place, (act, shown) in enumerate(self.steps):
            again = taken(act, twin)[1]
            assert again == shown, f"step {place} of {len(self.steps)}: {shown} then, {again} now"

    # ------------------------------------------------------------------ turns

    def settle(self) -> None:
        """Turns until there is nothing to do."""
        for _ in range(TURNS_MAX):
            ready = self.turn()
            if not ready:
                break
            self.carry_out(ready)
        else:
            raise AssertionError("it does not come to rest")
        self.check_rest()

    def turn(self) -> Ready[str, EntryRead]:
        now_ms, read_max = self.now_ms, self.read_max
        ready: Ready[str, EntryRead] = self.step(lambda bare: bare.turn(now_ms, read_max))
        self.wake_at_ms = ready.wake_at_ms
        return ready

    def carry_out(self, ready: Ready[str, EntryRead]) -> None:
        for change in ready.active_changes:
            assert change.consumer in self.model.out
            if change.is_active:
                self.model.sent.clear()
        for delivery in ready.deliveries:
            assert not self.is_suspended
            self.model.delivered(delivery, self.now_ms)
        for receipt in ready.receipts:
            who, version, asked_at_ms = self.receipts.pop(str(receipt.token))
            assert receipt.consumer == who
            if receipt.error is not None:
                assert self.now_ms >= asked_at_ms + self.settings.receipt_timeout_ms
            elif self.settings.receipts_mean_durable and self.model.is_durable:
                assert self.persisted_version >= version, f"{receipt.token} is not durable"
        if ready.read is not None:
            self.check_request(ready.read)
            if self.reads_at_once:
                self.answer_read("done")

    def answer_read(self, how: str) -> None:
        """How a read ends: ``done``, ``failed``, ``cancelled``."""
        request, now_ms = self.bare.request, self.now_ms
        assert request is not None
        positions = request.positions
        found = [self.model.entries[at] for at in positions if at in self.model.entries]
        if how == "cancelled":
            self.step(lambda bare: bare.sub.read_cancelled(bare.answer()))
        elif how == "failed" or self.broken.intersection(positions):
            self.retry_at_ms = now_ms + 1_000
            self.step(lambda bare: bare.sub.read_failed(bare.answer(), now_ms=now_ms))
        else:
            self.step(lambda bare: bare.sub.read_done(bare.answer(), found, now_ms=now_ms))

    def check_request(self, request: ReadRequest) -> None:
        """No normal read passes a shut gate, unless to close holes."""
        gate = self.settings.gate
        read = request.dispatched
        if read is None or read.kind.value == "replay" or not gate.enabled:
            return
        if self.model.is_single_active:
            return
        model, runs = self.model, self.model.ranges()
        parts = [at for at, mask in model.unacked.items() if mask != whole(model.entries[at])]
        if len(runs) > gate.ranges_max or len(parts) > gate.batch_indexes_max:
            wanted = [at for at in request.positions if at in model.unacked]
            last = max([*parts, *(at for run in runs for at in run)])
            assert not wanted or max(wanted) <= last, "read on though the gate is shut"

    def check_rest(self) -> None:
        """Nothing is left to do: nothing may have been forgotten."""
        model, sub = self.model, self.sub
        for who, permits in model.permits.items():
            seen = sub.dispatch_of(who)
            assert seen is not None
            if self.is_suspended or self.bare.request is not None:
                continue
            assert seen.permits == permits, f"{who} has {permits} permits, not {seen.permits}"
            if not model.is_single_active:
                unacked = sum(model.unacked[at].bit_count() for at in model.out[who])
                assert seen.unacked_messages == unacked, f"{who} owes {unacked}"
        if model.is_durable and self.bare.write is None and self.now_ms >= self.write_retry_at_ms:
            assert sub.cursor.version <= self.persisted_version, "a write was forgotten"
            assert model.nack_changes == self.durable_nack_changes, "nacks are never written"
        self.check_nothing_forgotten()

    def check_nothing_forgotten(self) -> None:
        model, sub = self.model, self.sub
        if (
            self.is_suspended
            or not self.is_patient
            or self.broken
            or self.bare.request is not None
            or self.now_ms < self.retry_at_ms
        ):
            return
        if model.is_single_active:
            active = sub.active_consumer
            seen = None if active is None else sub.dispatch_of(active)
            if seen is None or seen.permits <= 0 or not seen.is_writable:
                return
            dispatcher = sub._dispatcher
            if dispatcher is not None and dispatcher.next_deadline_ms is not None:
                return  # the new active consumer waits for acks of the one before
            found = model.forgotten(self.now_ms, replays_only=False)
        else:
            owed_max = self.settings.limits.unacked_messages_per_consumer_max
            seen_all = [sub.dispatch_of(who) for who in model.out]
            roomy = [
                seen is not None
                and seen.permits > 0
                and seen.is_writable
                and not seen.is_blocked_on_unacked_messages
                and (not owed_max or seen.unacked_messages < owed_max)
                for seen in seen_all
            ]
            chunked = any(model.entries[at].chunk is not None for at in model.unacked)
            by_key = model.kind is not None and hasattr(model.kind, "mode")
            if not roomy or not (all(roomy) if chunked or by_key else any(roomy)):
                return
            seen_dispatcher = sub.statistics().dispatcher
            assert seen_dispatcher is not None
            is_shut = not sub.gate.is_open or seen_dispatcher.is_blocked_on_unacked_messages
            found = model.forgotten(self.now_ms, replays_only=is_shut)
        assert not found, f"nobody gets {found}, and somebody has room"

    def advance(self, to_ms: int) -> None:
        """Time passes. The machine is asked when it wanted to be, and at no other time."""
        self.settle()
        for _ in range(TURNS_MAX):
            if self.wake_at_ms is None or self.wake_at_ms > to_ms:
                break
            self.now_ms = max(self.now_ms, self.wake_at_ms)
            self.settle()
            if self.bare.request is not None:
                break
        else:
            raise AssertionError("it wakes up for ever")
        self.now_ms = max(self.now_ms, to_ms)
        self.check_nothing_forgotten()

    # ------------------------------------------------------------------ facts

    def publish(self, entries: list[EntryRead]) -> None:
        by_ledger = deque(entries)
        for entry in by_ledger:
            self.model.entries[entry.position] = entry
            self.model.unacked[entry.position] = whole(entry)
        ledger_id, count = entries[0].position.ledger_id, len(entries)
        self.step(lambda bare: bare.ledgers.add_entries(ledger_id, count))

    def configure(self, settings: SubscriptionSettings) -> None:
        now_ms, backoff = self.now_ms, settings.backoff
        self.settings = settings
        self.step(lambda bare: bare.sub.configure(settings, now_ms=now_ms))
        self.model.backoff = (
            None if backoff is None else (backoff.min_delay_ms, backoff.max_delay_ms)
        )

    def receipt(self, who: str | None) -> str | None:
        """A new receipt's token, to be asked for with an ack."""
        self.tokens += 1
        return None if who is None else f"r{self.tokens}"

    def asked(self, who: str | None, token: str | None) -> None:
        if token is not None and who is not None:
            self.receipts[token] = who, self.sub.cursor.version, self.now_ms

    def persist(self, keep: int, keep_parts: int) -> None:
        model, now_ms = self.model, self.now_ms
        self.durable_nacked = dict(model.nacked)
        self.durable_nack_changes = model.nack_changes
        written = self.step(lambda bare: bare.persist(keep, keep_parts, now_ms))
        assert written.ranges_in_memory == len(model.ranges())
        self.persisted_version = max(self.persisted_version, written.version)
        self.write_retry_at_ms = 0

    def crash(self) -> None:
        """Everything but what is durable is gone. What a write left out comes again."""
        model, settings, now_ms = self.model, self.settings, self.now_ms
        self.step(lambda bare: bare.crash(settings, now_ms))
        snapshot, _ = self.bare.durable
        model.kind = self.first_kind
        model.out.clear()
        model.permits.clear()
        model.read_again()
        model.holds.clear()
        model.unacked = {
            at: snapshot.unacked_indexes.get(at, whole(entry))
            for at, entry in model.entries.items()
            if at > snapshot.mark_delete and at.entry_id not in snapshot.acked.get(at.ledger_id, ())
        }
        model.nacked = {
            at: times for at, times in self.durable_nacked.items() if at in model.unacked
        }
        self.durable_nack_changes = model.nack_changes
        model.wandered = set(model.nacked)
        self.receipts.clear()
        self.is_suspended = False
        self.persisted_version = self.sub.cursor.version
        self.write_retry_at_ms = self.retry_at_ms = 0

    # ------------------------------------------------------------------ the end

    def ack_and_ask(self, who: str, positions: list[Position]) -> None:
        """A consumer is done with these, and takes more."""
        now_ms, permits = self.now_ms, 1_000
        self.step(lambda bare: bare.sub.ack(who, positions, now_ms=now_ms))
        self.model.acked(positions)
        self.step(lambda bare: bare.sub.flow(who, permits, now_ms=now_ms))
        self.model.permits[who] += permits

    def check(self) -> None:
        model, cursor = self.model, self.sub.cursor
        self.sub.check()
        model.check()
        for at, entry in model.entries.items():
            assert cursor.is_acked(at) is (at not in model.unacked), at
            mask = cursor.unacked_mask(at)
            assert (whole(entry) if mask is None else mask) == model.unacked.get(at, whole(entry))
        if self.keeps_promise:
            limit = self.settings.gate.ranges_max
            assert cursor.range_count <= limit, f"{cursor.range_count} ranges, limit {limit}"

    def finish(self, attach: Callable[[], None]) -> None:
        """Everybody is there and acks: every entry must come, driven by `wake_at_ms` alone."""
        self.reads_at_once, self.read_max = True, None
        self.broken.clear()
        if self.is_suspended:
            self.is_suspended = False
            self.step(lambda bare: bare.sub.resume())
        if self.bare.request is not None:
            self.answer_read("done")
        attach()
        for _ in range(TURNS_MAX):
            self.settle()
            if self.bare.write is not None:
                self.persist(1 << 30, 1 << 30)
                continue
            model = self.model
            has = {who: sorted(at) for who, at in model.out.items() if at}
            if model.is_single_active:
                sent = sorted(at for at in model.sent if at in model.unacked)
                active = self.sub.active_consumer
                has = {active: sent} if sent and active is not None else {}
            for who, positions in has.items():
                self.ack_and_ask(who, positions)
            if has:
                continue
            if self.wake_at_ms is None:
                break
            self.now_ms = max(self.now_ms, self.wake_at_ms)
        else:
            raise AssertionError("it does not come to an end")
        assert not self.model.unacked, f"never delivered: {sorted(self.model.unacked)}"
        assert not self.receipts, f"never answered: {self.receipts}"
        statistics = self.sub.statistics()
        assert statistics.cursor.backlog_entries == 0
        assert statistics.cursor.range_count == 0
        assert self.sub.gate.is_open
        self.check()


def taken(act: Callable[[Bare], object], bare: Bare) -> tuple[Any, str]:
    """What came of a step, and as text."""
    try:
        outcome = act(bare)
    except AckGateError as error:
        return error, f"{type(error).__name__}: {error}"
    if isinstance(outcome, Ready):
        write = None if outcome.write is None else outcome.write.version
        return outcome, repr(
            (
                outcome.read,
                outcome.deliveries,
                write,
                outcome.receipts,
                outcome.active_changes,
                outcome.notes,
                outcome.wake_at_ms,
                outcome.awaited,
            )
        )
    return outcome, repr(outcome)


def fingerprint(sub: Subscription[str, EntryRead]) -> str:
    """All that can be seen of a subscription."""
    sub.statistics()  # what is asked for may tidy up first
    held = None if sub.tracker is None else sub.tracker.entry_count
    return repr((sub.statistics(), sub.cursor.snapshot(), sub.kind, held, sub.is_reading))
