"""One subscription under anything that hosts, consumers and administrators may do, against a dumb model.

Never delivered: what is acked, what another has, what is not due. Never lost: at the end everybody is
there, time passes from one `wake_at_ms` to the next, and every entry comes. Beside it: redelivery counts,
permits, order (Exclusive, Failover; by key), the gate, the strict gate's promise, receipts, what a crash
leaves, illegal calls that change nothing; and the same calls give the same answers.

A longer run: ``HYPOTHESIS_PROFILE=explore pytest --hypothesis-seed=7 tests/property/subscription``.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from ackgate.cursor import EARLIEST, LATEST, Position
from ackgate.dispatcher import (
    DispatchLimits,
    Exclusive,
    Failover,
    GateSettings,
    KeyShared,
    KeySharedMode,
    MessageChunk,
    Shared,
)
from ackgate.dispatcher.delayed import DelaySettings
from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
from ackgate.errors import CallerError
from ackgate.subscription import EntryRead, SubscriptionSettings
from tests.property.subscription.host import Host
from tests.property.subscription.model import whole

NAMES = ["alice", "bob", "carol"]
HALVES = {"alice": ((0, 40_000),), "bob": ((40_001, 65_535),), "carol": ((30_000, 50_000),)}
HOLDING = [Shared(), KeyShared(), KeyShared(allow_out_of_order=True)]
SINGLE = [Exclusive(), Failover("t")]
STICKY = KeyShared(KeySharedMode.STICKY)
LATER = st.integers(1, 3_000)
KEYS = st.sampled_from([b"k1", b"k2", b"k3", b""])


class Machine(RuleBasedStateMachine):
    """Rules are what may happen; each is followed by turns, unless it is hasty."""

    kinds = st.sampled_from([*HOLDING, *SINGLE, STICKY])
    is_strict = False
    loses_ledgers = True
    host: Host

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        draw = data.draw
        kind = draw(self.kinds)
        least = draw(st.sampled_from([None, None, 16, 200]))
        limits = DispatchLimits(
            read_entries_max=draw(st.sampled_from([1, 3, 100])),
            round_robin_entries_max=draw(st.sampled_from([1, 2, 20])),
            unacked_messages_per_consumer_max=draw(st.sampled_from([0, 2, 5, 50_000])),
            unacked_messages_per_subscription_max=draw(st.sampled_from([0, 1, 6, 200_000])),
            failover_delay_ms=draw(st.sampled_from([0, 1_000])),
            key_shared_look_ahead_per_consumer_max=draw(st.sampled_from([0, 2, 2_000])),
        )
        settings = SubscriptionSettings(
            gate=GateSettings(
                enabled=self.is_strict or draw(st.booleans()),
                ranges_max=(ranges_max := draw(st.integers(0, 4))),
                resume_ranges=draw(st.sampled_from([None, None, 0, ranges_max])),
                batch_indexes_max=draw(st.sampled_from([0, 1, 100])),
                is_strict=self.is_strict,
                persist_failure_pause_ms=draw(st.sampled_from([0, 2_500])),
            ),
            limits=limits,
            delays=DelaySettings(
                tick_ms=draw(st.sampled_from([1, 100])),
                is_strict=draw(st.booleans()),
                fixed_delay_lookahead=draw(st.sampled_from([0, 2, 50_000])),
            ),
            backoff=None if least is None else MultiplierRedeliveryBackoff(least, 1_000, 2.0),
            receipts_mean_durable=draw(st.booleans()),
            receipt_timeout_ms=4_000,
        )
        is_patient = (
            settings.delays.fixed_delay_lookahead != 2
            and limits.key_shared_look_ahead_per_consumer_max != 2
            and kind != STICKY
        )
        self.host = Host(
            settings,
            kind,
            is_durable=self.is_strict or draw(st.sampled_from([True, True, True, False])),
            keeps_promise=self.is_strict,
            is_patient=is_patient,
        )
        if draw(st.booleans()):
            keys = [b"k1", b"k2", b"k1", b"k3", b"k2", b"k1"]
            self.publish_now(6, draw(st.sampled_from([1, 3])), 0, keys, None)
            for who in NAMES[: draw(st.integers(0, 2))]:
                self.attach_one(who, draw(st.sampled_from([1, 1_000])), 0, None, is_hasty=False)

    # ------------------------------------------------------------------ helpers

    def settle(self, *, is_hasty: bool) -> None:
        if not is_hasty:
            self.host.settle()

    def some(self, data: st.DataObject, positions: object, most: int = 6) -> list[Position]:
        """Some of these, in any order."""
        choice = sorted(positions)  # type: ignore[call-overload]
        if not choice:
            return []
        return data.draw(st.lists(st.sampled_from(choice), max_size=most, unique=True))

    def mine(self, who: str | None) -> set[Position]:
        """What a consumer may ack."""
        model = self.host.model
        if who is None or model.is_single_active:
            return model.sent & model.unacked.keys()
        return model.out[who]

    def consumer(self, data: st.DataObject) -> str | None:
        present = sorted(self.host.model.out)
        return data.draw(st.sampled_from(present)) if present else None

    # ------------------------------------------------------------------ the topic

    @rule(
        count=st.integers(1, 6),
        batch=st.sampled_from([1, 1, 1, 3]),
        delay=st.sampled_from([0, 0, 0, 50, 2_000]),
        keys=st.lists(KEYS, min_size=6, max_size=6),
        rolls=st.sampled_from([False, False, False, True]),
        chunk=st.sampled_from([None, None, None, "u1", "u2"]),
        is_hasty=st.booleans(),
    )
    def publish(
        self,
        count: int,
        batch: int,
        delay: int,
        keys: list[bytes],
        rolls: bool,
        chunk: str | None,
        is_hasty: bool,
    ) -> None:
        host = self.host
        if rolls:
            ledger_id = host.bare.ledgers.ledger_ids[-1] + 1
            host.step(lambda bare: bare.ledgers.open_ledger(ledger_id))
        self.publish_now(count, batch, delay, keys, chunk)
        self.settle(is_hasty=is_hasty)

    def publish_now(
        self, count: int, batch: int, delay: int, keys: list[bytes], chunk: str | None
    ) -> None:
        host = self.host
        ledgers = host.bare.ledgers
        ledger_id = ledgers.ledger_ids[-1]
        first = ledgers.entry_count(ledger_id) or 0
        deliver_at_ms = host.now_ms + delay if delay else 0
        entries = [
            EntryRead(
                Position(ledger_id, first + place),
                batch if chunk is None else 1,
                deliver_at_ms,
                keys[place],
                None if chunk is None else MessageChunk(chunk, place == count - 1),
            )
            for place in range(count)
        ]
        host.publish(entries)

    def trim(self, data: st.DataObject) -> None:
        """A ledger of which everything is acked; or one that was lost."""
        host, model = self.host, self.host.model
        ledger_ids = list(host.bare.ledgers.ledger_ids[:-1])
        if not self.loses_ledgers:
            ledger_ids = ledger_ids[:1]
            if any(at.ledger_id in ledger_ids for at in model.unacked):
                return
        if not ledger_ids:
            return
        ledger_id, now_ms = data.draw(st.sampled_from(ledger_ids)), host.now_ms
        host.step(lambda bare: bare.ledgers.trim_ledger(ledger_id))
        host.step(lambda bare: bare.sub.ledger_trimmed(ledger_id, now_ms=now_ms))
        gone = [at for at in model.entries if at.ledger_id == ledger_id]
        model.acked(gone)
        for at in gone:
            del model.entries[at]
        host.settle()

    # ------------------------------------------------------------------ consumers

    @rule(
        who=st.sampled_from(NAMES),
        permits=st.sampled_from([0, 1, 3, 1_000]),
        priority=st.sampled_from([0, 0, 1]),
        other=st.sampled_from([*HOLDING, *SINGLE, STICKY, None, None]),
        is_hasty=st.booleans(),
    )
    def attach(self, who: str, permits: int, priority: int, other: object, is_hasty: bool) -> None:
        self.attach_one(who, permits, priority, other, is_hasty=is_hasty)

    def attach_one(
        self, who: str, permits: int, priority: int, other: object, *, is_hasty: bool
    ) -> None:
        host, model = self.host, self.host.model
        kind = None
        if not model.out and not self.is_strict:
            kind = other
        if kind == STICKY:
            kind = None
        given = kind or host.sub.kind
        assert given is not None
        ranges = HALVES[who] if given == STICKY else ()
        now_ms = host.now_ms
        act = lambda bare: bare.sub.attach(  # noqa: E731
            who,
            permits=permits,
            priority=priority,
            kind=kind,
            hash_ranges=ranges,
            epoch=0,
            now_ms=now_ms,
        )
        is_taken = isinstance(given, Exclusive) and model.out
        overlaps = given == STICKY and (
            (who == "carol" and model.out) or (who != "carol" and "carol" in model.out)
        )
        if who in model.out or is_taken or overlaps:
            host.refused(act)
            return
        host.step(act)
        model.attached(who, permits, given)
        self.settle(is_hasty=is_hasty)

    @precondition(lambda self: self.host.model.out)
    @rule(data=st.data(), is_hasty=st.booleans())
    def detach(self, data: st.DataObject, is_hasty: bool) -> None:
        who = self.consumer(data)
        if who is None:
            return
        now_ms = self.host.now_ms
        self.host.step(lambda bare: bare.sub.detach(who, now_ms=now_ms))
        self.host.model.detached(who)
        self.settle(is_hasty=is_hasty)

    @precondition(lambda self: self.host.model.out)
    @rule(data=st.data(), permits=st.sampled_from([1, 2, 1_000]), is_hasty=st.booleans())
    def flow(self, data: st.DataObject, permits: int, is_hasty: bool) -> None:
        who = self.consumer(data)
        if who is None:
            return
        now_ms = self.host.now_ms
        self.host.step(lambda bare: bare.sub.flow(who, permits, now_ms=now_ms))
        self.host.model.permits[who] += permits
        self.settle(is_hasty=is_hasty)

    @precondition(lambda self: self.host.model.out)
    @rule(data=st.data(), is_writable=st.booleans())
    def writable(self, data: st.DataObject, is_writable: bool) -> None:
        who = self.consumer(data)
        if who is None:
            return
        self.host.step(lambda bare: bare.sub.writable(who, is_writable=is_writable))
        self.host.settle()

    # ------------------------------------------------------------------ acks

    @precondition(lambda self: self.host.model.out)
    @rule(data=st.data(), is_hasty=st.booleans(), wants=st.booleans())
    def ack(self, data: st.DataObject, is_hasty: bool, wants: bool) -> None:
        host, model = self.host, self.host.model
        who = self.consumer(data)
        whole_entries = self.some(data, self.mine(who))
        batches = [
            at
            for at in self.mine(who)
            if model.entries[at].message_count > 1 and at not in whole_entries
        ]
        parts = [(at, data.draw(st.integers(0, 7))) for at in self.some(data, batches, 2)]
        token, now_ms = host.receipt(who) if wants else None, host.now_ms
        host.step(
            lambda bare: bare.sub.ack(who, whole_entries, parts=parts, receipt=token, now_ms=now_ms)
        )
        host.asked(who, token)
        model.acked(whole_entries)
        for at, mask in parts:
            model.acked_partly(at, mask)
        self.settle(is_hasty=is_hasty)

    @precondition(lambda self: not self.is_strict)
    @rule(data=st.data(), is_known=st.booleans(), wants=st.booleans(), is_hasty=st.booleans())
    def ack_anything(
        self, data: st.DataObject, is_known: bool, wants: bool, is_hasty: bool
    ) -> None:
        """Acked already, with another consumer, held, or never sent: a cancel is one of these."""
        host, model = self.host, self.host.model
        who = self.consumer(data) if is_known else None
        positions = self.some(data, model.entries)
        batches = [at for at, entry in model.entries.items() if entry.message_count > 1]
        parts = [(at, data.draw(st.integers(0, 7))) for at in self.some(data, batches, 2)]
        if data.draw(st.booleans()):  # one entry twice in one call
            positions += positions[:1]
            parts += [(at, data.draw(st.integers(0, 7))) for at, _ in parts[:1]]
        token, now_ms = host.receipt(who) if wants else None, host.now_ms
        host.step(
            lambda bare: bare.sub.ack(who, positions, parts=parts, receipt=token, now_ms=now_ms)
        )
        host.asked(who, token)
        model.acked(positions)
        for at, mask in parts:
            model.acked_partly(at, mask)
        self.settle(is_hasty=is_hasty)

    def ack_many(self, data: st.DataObject) -> None:
        host, model = self.host, self.host.model
        ledger_id = data.draw(st.sampled_from(list(host.bare.ledgers.ledger_ids)))
        chosen = self.some(data, [at for at in model.entries if at.ledger_id == ledger_id])
        ids, now_ms = [at.entry_id for at in chosen], host.now_ms
        who = self.consumer(data)
        acked = host.step(lambda bare: bare.sub.ack_many(who, ledger_id, ids, now_ms=now_ms))
        assert acked == sum(at in model.unacked for at in chosen)
        model.acked(chosen)
        host.settle()

    @rule(data=st.data(), wants=st.booleans(), is_hasty=st.booleans())
    def ack_cumulative(self, data: st.DataObject, wants: bool, is_hasty: bool) -> None:
        host, model = self.host, self.host.model
        who = self.consumer(data)
        choice = sorted(self.mine(who) if self.is_strict else model.entries)
        if not choice:
            return
        position = data.draw(st.sampled_from(choice))
        mask = None
        if model.entries[position].message_count > 1:
            mask = data.draw(st.sampled_from([None, 4, 6]))
        token, now_ms = host.receipt(who) if wants else None, host.now_ms
        host.step(
            lambda bare: bare.sub.ack_cumulative(
                who, position, unacked_mask=mask, receipt=token, now_ms=now_ms
            )
        )
        host.asked(who, token)
        if mask:
            model.acked([at for at in model.unacked if at < position])
            model.acked_partly(position, mask)
        else:
            model.acked_through(position)
        self.settle(is_hasty=is_hasty)

    # ------------------------------------------------------------------ again, and later

    @precondition(lambda self: self.host.model.out)
    @rule(
        data=st.data(),
        which=st.sampled_from(["all", "some", "any"]),
        delay=st.sampled_from([None, None, 0, 300, 2_000]),
        is_hasty=st.booleans(),
    )
    def redeliver(self, data: st.DataObject, which: str, delay: int | None, is_hasty: bool) -> None:
        host, model = self.host, self.host.model
        who = self.consumer(data)
        if who is None:
            return
        positions = None
        if which != "all":
            positions = self.some(data, self.mine(who) if which == "some" else model.entries)
            positions += positions[: data.draw(st.integers(0, 1))]
        now_ms, is_active = host.now_ms, host.sub.active_consumer == who
        epoch = model.epochs[who] = model.epochs[who] + data.draw(st.integers(0, 1))
        host.step(
            lambda bare: bare.sub.redeliver(
                who, positions, delay_ms=delay, epoch=epoch, now_ms=now_ms
            )
        )
        model.given(who, positions, delay, now_ms, is_active=is_active)
        self.settle(is_hasty=is_hasty)

    @rule(data=st.data(), delay=LATER, is_hasty=st.booleans())
    def hold(self, data: st.DataObject, delay: int, is_hasty: bool) -> None:
        """Of entries that carry no time of their own, and were not read yet."""
        host, model = self.host, self.host.model
        ahead = [
            at
            for at in model.unacked
            if at >= host.sub.cursor.read_position
            and model.holder(at) is None
            and not model.entries[at].deliver_at_ms
        ]
        positions = self.some(data, ahead)
        if not model.keeps_times or not positions or any(at in model.nacked for at in positions):
            return
        until_ms, now_ms = host.now_ms + delay, host.now_ms
        was_held = [host.sub.is_held(at) for at in positions]
        try:
            host.step(lambda bare: bare.sub.hold(positions, until_ms=until_ms, now_ms=now_ms))
        except CallerError:
            return
        for at, was in zip(positions, was_held, strict=True):
            if not was and host.sub.is_held(at):
                model.holds[at] = until_ms
        self.settle(is_hasty=is_hasty)

    def lose_delayed(self, data: st.DataObject) -> None:
        """The tracker's storage has lost some times."""
        host = self.host
        tracker = host.sub.tracker
        if tracker is None:
            return
        lost = self.some(data, [at for at in host.model.unacked if at in tracker])
        by_ledger: dict[int, BitMap] = {}
        for ledger_id, entry_id in lost:
            by_ledger.setdefault(ledger_id, BitMap()).add(entry_id)

        def lose(bare):
            tracker = bare.sub.tracker
            for at in lost:
                tracker.discard(at)
            bare.sub.lost({known: ids.copy() for known, ids in by_ledger.items()})

        host.step(lose)
        for at in lost:
            host.model.holds.pop(at, None)
        host.settle()

    def drop_delayed(self, is_hasty: bool) -> None:
        now_ms = self.host.now_ms
        self.host.step(lambda bare: bare.sub.drop_delayed(now_ms=now_ms))
        self.host.model.holds.clear()
        self.host.model.read_again()
        self.settle(is_hasty=is_hasty)

    # ------------------------------------------------------------------ moves

    @rule(data=st.data(), is_hasty=st.booleans())
    def administrate(self, data: st.DataObject, is_hasty: bool) -> None:
        """What seldom happens."""
        what = ["seek", "skip", "clear", "expire", "trim", "lose", "drop", "crash", "ack many"]
        what += ["settings"]
        match data.draw(st.sampled_from(what)):
            case "seek":
                self.seek(data, is_hasty)
            case "skip":
                self.skip(data)
            case "clear":
                self.clear(is_hasty)
            case "expire":
                self.expire(data)
            case "trim":
                self.trim(data)
            case "lose":
                self.lose_delayed(data)
            case "drop":
                self.drop_delayed(is_hasty)
            case "crash" if self.host.model.is_durable:
                self.crash()
            case "ack many" if not self.is_strict:
                self.ack_many(data)
            case "settings":
                self.configure(data, is_hasty)

    def configure(self, data: st.DataObject, is_hasty: bool) -> None:
        """Other settings at run time; the strict gate keeps its limit, or could not keep it."""
        draw, host = data.draw, self.host
        gate = host.settings.gate
        if not self.is_strict:
            ranges_max = draw(st.integers(0, 4))
            gate = replace(
                gate,
                enabled=draw(st.booleans()),
                ranges_max=ranges_max,
                resume_ranges=draw(st.sampled_from([None, 0, ranges_max])),
                batch_indexes_max=draw(st.sampled_from([0, 1, 100])),
            )
        limits = replace(
            host.settings.limits,
            read_entries_max=draw(st.sampled_from([1, 3, 100])),
            unacked_messages_per_consumer_max=draw(st.sampled_from([0, 2, 5, 50_000])),
            unacked_messages_per_subscription_max=draw(st.sampled_from([0, 1, 6, 200_000])),
        )
        least = draw(st.sampled_from([None, 16, 200]))
        host.configure(
            replace(
                host.settings,
                gate=gate,
                limits=limits,
                backoff=None if least is None else MultiplierRedeliveryBackoff(least, 1_000, 2.0),
            )
        )
        self.settle(is_hasty=is_hasty)

    def seek(self, data: st.DataObject, is_hasty: bool) -> None:
        masked = data.draw(st.booleans())
        host, model = self.host, self.host.model
        target = data.draw(st.sampled_from([EARLIEST, LATEST, *sorted(model.entries)]))
        mask = None
        if masked and target in model.entries and model.entries[target].message_count > 1:
            mask = data.draw(st.sampled_from([4, 6]))
        now_ms = host.now_ms
        host.step(lambda bare: bare.sub.seek(target, unacked_mask=mask, now_ms=now_ms))
        model.acked([at for at in model.unacked if at < target])
        for at, entry in model.entries.items():
            if at >= target:
                model.unacked[at] = whole(entry)
        if mask is not None:
            model.unacked[target] = mask
        model.read_again()
        self.settle(is_hasty=is_hasty)

    def skip(self, data: st.DataObject) -> None:
        entries = data.draw(st.integers(0, 5))
        host, model = self.host, self.host.model
        now_ms = host.now_ms
        skipped = host.step(lambda bare: bare.sub.skip(entries, now_ms=now_ms))
        assert skipped == min(entries, len(model.unacked))
        model.acked(sorted(model.unacked)[:entries])
        host.settle()

    def clear(self, is_hasty: bool) -> None:
        host, model = self.host, self.host.model
        now_ms = host.now_ms
        cleared = host.step(lambda bare: bare.sub.clear_backlog(now_ms=now_ms))
        assert cleared == len(model.unacked)
        model.acked(model.unacked)
        self.settle(is_hasty=is_hasty)

    def expire(self, data: st.DataObject) -> None:
        host, model = self.host, self.host.model
        if not model.entries:
            return
        position = data.draw(st.sampled_from(sorted(model.entries)))
        now_ms = host.now_ms
        expired = host.step(lambda bare: bare.sub.expire(position, now_ms=now_ms))
        assert expired == sum(at <= position for at in model.unacked)
        model.acked_through(position)
        host.settle()

    # ------------------------------------------------------------------ storage

    @precondition(lambda self: self.host.bare.write is not None)
    @rule(
        keep=st.sampled_from([0, 1, 100]),
        keep_parts=st.sampled_from([0, 100]),
        is_hasty=st.booleans(),
    )
    def persist(self, keep: int, keep_parts: int, is_hasty: bool) -> None:
        self.host.persist(keep, keep_parts)
        self.settle(is_hasty=is_hasty)

    @precondition(lambda self: self.host.bare.write is not None)
    @rule()
    def fail_write(self) -> None:
        host = self.host
        now_ms = host.now_ms

        def fail(bare):
            bare.write = None
            bare.sub.persist_failed(now_ms, now_ms=now_ms)

        host.step(fail)
        host.write_retry_at_ms = now_ms + 1_000
        host.settle()

    def crash(self) -> None:
        self.host.crash()
        self.host.settle()

    @rule(at_once=st.booleans(), most=st.sampled_from([None, None, 1, 2]))
    def read_otherwise(self, at_once: bool, most: int | None) -> None:
        self.host.reads_at_once, self.host.read_max = at_once, most
        if at_once and self.host.bare.request is not None:
            self.host.answer_read("done")
            self.host.settle()

    @precondition(lambda self: self.host.bare.request is not None)
    @rule(how=st.sampled_from(["done", "done", "failed", "cancelled"]), is_hasty=st.booleans())
    def answer_read(self, how: str, is_hasty: bool) -> None:
        self.host.answer_read(how)
        self.settle(is_hasty=is_hasty)

    @rule(data=st.data())
    def break_reads(self, data: st.DataObject) -> None:
        if self.host.broken:
            self.host.broken.clear()
        else:
            self.host.broken.update(self.some(data, self.host.model.entries, 2))

    @rule(is_suspended=st.booleans())
    def suspend(self, is_suspended: bool) -> None:
        host = self.host
        host.is_suspended = is_suspended
        if is_suspended:
            host.step(lambda bare: bare.sub.suspend())
        else:
            host.step(lambda bare: bare.sub.resume())
        host.settle()

    # ------------------------------------------------------------------ time

    @rule(ms=LATER)
    def wait(self, ms: int) -> None:
        self.host.advance(self.host.now_ms + ms)

    @rule()
    def settle_now(self) -> None:
        self.host.settle()

    # ------------------------------------------------------------------ illegal calls

    @rule(data=st.data())
    def illegal(self, data: st.DataObject) -> None:
        host, model = self.host, self.host.model
        now_ms = host.now_ms
        last = host.bare.ledgers.last_confirmed
        beyond = Position(last.ledger_id, last.entry_id + 1)
        known = sorted(model.entries)[-1:]
        present = sorted(model.out)[:1]
        calls = [
            lambda bare: bare.sub.ack(None, [*known, beyond], now_ms=now_ms),
            lambda bare: bare.sub.ack(None, known, parts=[(beyond, 1)], now_ms=now_ms),
            lambda bare: bare.sub.ack(
                None, known, parts=[(at, -1) for at in [beyond, *known]], now_ms=now_ms
            ),
            lambda bare: bare.sub.ack_many(
                None, beyond.ledger_id, [beyond.entry_id], now_ms=now_ms
            ),
            lambda bare: bare.sub.ack_cumulative(None, beyond, now_ms=now_ms),
            lambda bare: bare.sub.ack_cumulative(None, beyond, unacked_mask=-1, now_ms=now_ms),
            lambda bare: bare.sub.seek(
                Position(beyond.ledger_id, beyond.entry_id + 5), now_ms=now_ms
            ),
            lambda bare: bare.sub.hold([beyond], until_ms=now_ms + 5, now_ms=now_ms),
            lambda bare: bare.sub.skip(-1, now_ms=now_ms),
            lambda bare: bare.sub.flow("nobody", 1, now_ms=now_ms),
            lambda bare: bare.sub.redeliver("nobody", now_ms=now_ms),
            lambda bare: bare.sub.writable("nobody", is_writable=True),
            lambda bare: bare.sub.counts_of("nobody"),
        ]
        if known and known[0] in model.unacked:
            calls += [lambda bare: bare.sub.seek(known[0], unacked_mask=-1, now_ms=now_ms)]
            calls += [lambda bare: bare.sub.seek(beyond, unacked_mask=-2, now_ms=now_ms)]
        if present:
            calls += [
                lambda bare: bare.sub.attach(present[0], now_ms=now_ms),
                lambda bare: bare.sub.redeliver(present[0], delay_ms=-1, now_ms=now_ms),
                lambda bare: bare.sub.flow(present[0], -1, now_ms=now_ms),
            ]
            other = Exclusive() if not isinstance(model.kind, Exclusive) else Shared()
            calls += [lambda bare: bare.sub.attach("dave", kind=other, now_ms=now_ms)]
        else:
            calls += [
                lambda bare: bare.sub.attach(
                    "dave", kind=STICKY, hash_ranges=((9, 3),), now_ms=now_ms
                )
            ]
        host.refused(data.draw(st.sampled_from(calls)))

    # ------------------------------------------------------------------ always, and at the end

    @invariant()
    def holds_true(self) -> None:
        self.host.check()

    def attach_all(self) -> None:
        """Every consumer that may come is there, with permits."""
        host, model = self.host, self.host.model
        sub, now_ms = host.sub, host.now_ms
        kind = model.kind
        if kind == STICKY and "carol" in model.out:
            host.step(lambda bare: bare.sub.detach("carol", now_ms=now_ms))
            model.detached("carol")
        wanted = ["alice"] if isinstance(kind, Exclusive) else ["alice", "bob"]
        if isinstance(kind, Exclusive) and model.out:
            wanted = []
        for who in wanted:
            if who not in model.out:
                ranges = HALVES[who] if kind == STICKY else ()
                host.step(
                    lambda bare, who=who, ranges=ranges: bare.sub.attach(
                        who, hash_ranges=ranges, epoch=0, now_ms=now_ms
                    )
                )
                assert sub.kind is not None
                model.attached(who, 0, sub.kind)
        for who in list(model.out):
            host.step(lambda bare, who=who: bare.sub.writable(who, is_writable=True))
            host.step(lambda bare, who=who: bare.sub.flow(who, 1_000, now_ms=now_ms))
            model.permits[who] += 1_000

    def teardown(self) -> None:
        if hasattr(self, "host") and sys.exc_info()[0] is None:
            self.host.finish(self.attach_all)
            self.host.check_repeats()


class StrictMachine(Machine):
    """A strict gate; consumers ack what they were sent, in whatever order."""

    kinds = st.sampled_from(HOLDING)
    is_strict = True


TestSubscription = Machine.TestCase
TestStrictGate = StrictMachine.TestCase
