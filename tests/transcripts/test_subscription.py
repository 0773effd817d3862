"""Stories of one subscription as readable transcripts: what happened, and what it wants done then.

A line is a command: ``NAME words key=value``, time by ``at=MS`` (it stays until it is set again). Entries are
written as in ``3``, ``3-7`` (both included), ``2:0`` (ledger 2; else the newest ledger when the transcript
began, 1). Every command is followed by turns until there is nothing left to do; the stage reads what is asked
for and prints the rest. Writes wait for ``persist``.

=====================================  =====================================================================
new kind=shared gate=LIMIT ...         begin; see `Stage.do_new` for all its words
publish 5 delay=2000 key=a batch=3     so many entries; ``roll`` opens another ledger first
attach alice permits=10 ...            also detach, flow alice 5, blocked alice, writable alice
ack alice 1 3-5 receipt=r1             ``ack alice 2[0,2]``: these messages of a batch; ack-through alice 9
nack alice 3 delay=1000                ``redeliver alice``: all that alice has
seek 4, skip 2, clear, expire 7        moves by an administrator
persist keep=2                         the write is durable, with so many ranges; ``fail``: it failed;
                                       ``take``: it holds what is acked by now, and nothing later
crash                                  and recover what was durable
hold 4 until=9000, lost 3-5            delayed entries
break 5 / mend 5                       reads of this entry fail / work again
slow, answer [still] [fails|cancelled] a read stays under way until it is answered
wait                                   to the next deadline; ``wait at=MS``
show                                   the state in numbers; ``suspend``, ``resume``, ``configure gate=5``
quickly ack alice 3                    any command, and another one follows before the next turn
=====================================  =====================================================================
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from ackgate.cursor import (
    EARLIEST,
    LATEST,
    NO_NACKS,
    CursorSnapshot,
    ManagedCursor,
    MessageLedgers,
    PendingNacks,
    Position,
    unacked_nacks,
)
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
from ackgate.errors import AckGateError
from ackgate.subscription import (
    EntryRead,
    ReadRequest,
    Ready,
    Subscription,
    SubscriptionSettings,
    Write,
)
from tests.transcripts.runner import replay
from tests.written_counts import written_of

HERE = Path(__file__).parent / "subscription"

TURNS_MAX = 200
"""A story that never comes to rest is a bug."""

KINDS: dict[str, Any] = {
    "shared": Shared(),
    "key-shared": KeyShared(),
    "key-shared-unordered": KeyShared(allow_out_of_order=True),
    "sticky": KeyShared(KeySharedMode.STICKY),
    "exclusive": Exclusive(),
    "failover": Failover("t"),
}


class Stage:
    """One subscription, its topic and the time; runs a transcript's commands."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.told: list[str] = []
        self.broken: set[Position] = set()
        self.do_new([], {})

    def run(self, command: str) -> str:
        name, *rest = command.split()
        is_hasty = name == "quickly"
        if is_hasty:
            name, *rest = rest
        given = dict(word.split("=") for word in rest if "=" in word)
        words = [word for word in rest if "=" not in word]
        if name != "wait":
            self.now_ms = int(given.pop("at", self.now_ms))
        self.told = []
        try:
            getattr(self, "do_" + name.replace("-", "_"))(words, given)
        except AckGateError as error:
            self.told.append(f"refused: {error}")
        else:
            if not is_hasty:
                self.turns()
        self.sub.check()
        return "\n".join(self.told) or "(nothing)"

    # ------------------------------------------------------------------ the turns

    def turns(self) -> None:
        for _ in range(TURNS_MAX):
            ready = self.sub.ready(now_ms=self.now_ms)
            if not ready:
                break
            self.carry_out(ready)
        else:
            raise AssertionError("it does not come to rest")
        is_open = self.sub.gate.is_open
        if is_open != self.was_open:
            reasons = ", ".join(reason.value for reason in self.sub.gate.reasons)
            self.told.append("gate opens" if is_open else f"gate shuts: {reasons}")
            self.was_open = is_open
        if ready.wake_at_ms != self.wake_at_ms:
            self.wake_at_ms = ready.wake_at_ms
            wakes = "no more" if ready.wake_at_ms is None else f"at {ready.wake_at_ms}"
            self.told.append(f"wakes {wakes}")

    def carry_out(self, ready: Ready[str, EntryRead]) -> None:
        for change in ready.active_changes:
            self.told.append(f"{change.consumer} is {'' if change.is_active else 'not '}active")
        for delivery in ready.deliveries:
            shown = []
            for place, entry in enumerate(delivery.entries):
                counts, masks = delivery.redelivery_counts, delivery.unacked_masks
                text = self.name(entry.position)
                if masks is not None and (mask := masks[place]) is not None:
                    text += f"[{','.join(str(i) for i in range(64) if mask >> i & 1)}]"
                if counts is not None and counts[place]:
                    text += f"({counts[place]})"
                shown.append(text)
            self.told.append(f"{delivery.consumer} <- {' '.join(shortened(shown))}")
        for receipt in ready.receipts:
            error = "" if receipt.error is None else f": {receipt.error}"
            self.told.append(f"receipt {receipt.token} for {receipt.consumer}{error}")
        if ready.write is not None:
            self.write = ready.write
            self.told.append(f"write version {ready.write.version}")
        if ready.read is not None:
            self.read(ready.read)

    def read(self, request: ReadRequest) -> None:
        positions = request.positions
        if self.is_slow:
            self.request = request
            self.told.append(f"reads {self.names(positions)}")
            return
        if self.broken.intersection(positions):
            self.told.append(f"read of {self.names(positions)} fails")
            self.sub.read_failed(request, now_ms=self.now_ms)
            return
        found = [self.entries[position] for position in positions if position in self.entries]
        self.sub.read_done(request, found, now_ms=self.now_ms)

    # ------------------------------------------------------------------ the commands

    def do_new(self, words: list[str], given: dict[str, str]) -> None:
        """``kind``, ``gate`` (limit of ranges), ``resume``, ``strict``, ``pause`` (ms of failing writes),
        ``entries``, ``tick``, ``exact``, ``backoff=MIN-MAX``, ``applied``, ``unacked`` (per consumer),
        ``unacked-all``, ``read`` (entries at once), ``turn`` (round robin), ``receipt-timeout``,
        ``failover-delay``, ``reader``.
        """
        self.ledgers = MessageLedgers()
        self.newest_ledger = 1
        self.ledgers.open_ledger(1)
        self.entries: dict[Position, EntryRead] = {}
        self.write: Write | None = None
        self.taken: CursorSnapshot | None = None
        self.request: ReadRequest | None = None
        self.is_slow = False
        self.was_open = True
        self.wake_at_ms: int | None = None
        self.settings = SubscriptionSettings(
            gate=GateSettings(
                enabled="gate" in given,
                ranges_max=int(given.get("gate", 10_000)),
                batch_indexes_max=int(given.get("batches", 10_000)),
                resume_ranges=int(given["resume"]) if "resume" in given else None,
                is_strict="strict" in words,
                persist_failure_pause_ms=int(given.get("pause", 30_000)),
            ),
            limits=DispatchLimits(
                read_entries_max=int(given.get("read", 100)),
                round_robin_entries_max=int(given.get("turn", 20)),
                unacked_messages_per_consumer_max=int(given.get("unacked", 50_000)),
                unacked_messages_per_subscription_max=int(given.get("unacked-all", 200_000)),
                failover_delay_ms=int(given.get("failover-delay", 1_000)),
            ),
            delays=DelaySettings(
                tick_ms=int(given.get("tick", 1)),
                is_strict="exact" in words,
                fixed_delay_lookahead=int(given.get("lookahead", 50_000)),
            ),
            delays_enabled="no-delays" not in words,
            backoff=backoff_of(given["backoff"]) if "backoff" in given else None,
            receipts_mean_durable="applied" not in words,
            receipt_timeout_ms=int(given.get("receipt-timeout", 30_000)),
        )
        self.kind = KINDS[given.get("kind", "shared")]
        self.is_durable = "reader" not in words
        self.sub = self.subscription()
        self.durable: tuple[CursorSnapshot, PendingNacks] = self.sub.cursor.snapshot(), NO_NACKS
        if "entries" in given:
            self.do_publish([given["entries"]], {})

    def subscription(self, **recovered: Any) -> Subscription[str, EntryRead]:
        return Subscription(
            self.ledgers,
            kind=self.kind,
            settings=self.settings,
            is_durable=self.is_durable,
            now_ms=self.now_ms,
            **recovered,
        )

    def do_crash(self, words: list[str], given: dict[str, str]) -> None:
        snapshot, nacks = self.durable
        cursor, report = ManagedCursor.from_snapshot(self.ledgers, snapshot)
        nacks = unacked_nacks(nacks, snapshot.mark_delete, snapshot.acked)
        self.write = self.taken = self.request = self.wake_at_ms = None
        self.sub = self.subscription(cursor=cursor, nacks=nacks)
        self.told.append(f"recovered version {snapshot.version}")
        if not report.is_clean:
            self.told.append(f"not taken: {report}")

    def do_configure(self, words: list[str], given: dict[str, str]) -> None:
        """``gate``, ``strict``, ``lenient``, ``backoff``, ``unacked``."""
        gate, limits = self.settings.gate, self.settings.limits
        if "gate" in given:
            is_on = given["gate"] != "off"
            ranges_max = int(given["gate"]) if is_on else gate.ranges_max
            gate = replace(gate, enabled=is_on, ranges_max=ranges_max)
        if "strict" in words or "lenient" in words:
            gate = replace(gate, is_strict="strict" in words)
        if "unacked" in given:
            limits = replace(limits, unacked_messages_per_consumer_max=int(given["unacked"]))
        self.settings = replace(self.settings, gate=gate, limits=limits)
        if "backoff" in given:
            self.settings = replace(self.settings, backoff=backoff_of(given["backoff"]))
        self.sub.configure(self.settings, now_ms=self.now_ms)

    def do_publish(self, words: list[str], given: dict[str, str]) -> None:
        """``roll``, ``open`` (a chunked message goes on), ``delay``, ``batch``, ``key=a,b``, ``chunk``."""
        if "roll" in words:
            words.remove("roll")
            self.newest_ledger += 1
            self.ledgers.open_ledger(self.newest_ledger)
        ledger_id = self.ledgers.ledger_ids[-1]
        count = int(words[0])
        first = self.ledgers.entry_count(ledger_id) or 0
        self.ledgers.add_entries(ledger_id, count)
        delay_ms = int(given.get("delay", 0))
        keys = given.get("key", "").split(",")
        for place, entry_id in enumerate(range(first, first + count)):
            position = Position(ledger_id, entry_id)
            chunk = None
            if "chunk" in given:
                chunk = MessageChunk(given["chunk"], place == count - 1 and "open" not in words)
            self.entries[position] = EntryRead(
                position,
                int(given.get("batch", 1)),
                self.now_ms + delay_ms if delay_ms else 0,
                keys[place % len(keys)].encode(),
                chunk,
            )

    def do_attach(self, words: list[str], given: dict[str, str]) -> None:
        ranges = tuple(
            (int(low), int(high))
            for low, high in (
                pair.split("-") for pair in given.get("hashes", "").split(",") if pair
            )
        )
        self.sub.attach(
            words[0],
            permits=int(given.get("permits", 1_000)),
            kind=KINDS[given["kind"]] if "kind" in given else None,
            priority=int(given.get("priority", 0)),
            epoch=int(given["epoch"]) if "epoch" in given else None,
            hash_ranges=ranges,
            now_ms=self.now_ms,
        )

    def do_detach(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.detach(words[0], now_ms=self.now_ms)

    def do_flow(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.flow(words[0], int(words[1]), now_ms=self.now_ms)

    def do_blocked(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.writable(words[0], is_writable=False)

    def do_writable(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.writable(words[0], is_writable=True)

    def do_ack(self, words: list[str], given: dict[str, str]) -> None:
        whole: list[Position] = []
        parts: list[tuple[Position, int]] = []
        for word in words[1:]:
            text, _, indexes = word.rstrip("]").partition("[")
            if not indexes:
                whole += self.positions([text])
                continue
            position = self.positions([text])[0]
            mask = (1 << self.entries[position].message_count) - 1
            for index in map(int, indexes.split(",")):
                mask &= ~(1 << index)
            parts.append((position, mask))
        self.sub.ack(
            self.who(words), whole, parts=parts, receipt=given.get("receipt"), now_ms=self.now_ms
        )

    def do_ack_through(self, words: list[str], given: dict[str, str]) -> None:
        text, _, indexes = words[1].rstrip("]").partition("[")
        position = self.positions([text])[0]
        mask = None
        if indexes:
            size = self.entries[position].message_count
            mask = (1 << size) - (1 << int(indexes) + 1)
        self.sub.ack_cumulative(
            self.who(words),
            position,
            unacked_mask=mask,
            receipt=given.get("receipt"),
            now_ms=self.now_ms,
        )

    def do_nack(self, words: list[str], given: dict[str, str]) -> None:
        delay_ms = int(given["delay"]) if "delay" in given else None
        self.sub.redeliver(
            words[0], self.positions(words[1:]), delay_ms=delay_ms, now_ms=self.now_ms
        )

    def do_redeliver(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.redeliver(words[0], now_ms=self.now_ms)

    def do_seek(self, words: list[str], given: dict[str, str]) -> None:
        named = {"earliest": EARLIEST, "latest": LATEST}
        target = named.get(words[0]) or self.positions(words)[0]
        mask = None
        if "from" in given:
            size = self.entries[target].message_count
            mask = (1 << size) - (1 << int(given["from"]))
        if "mask" in given:
            mask = int(given["mask"])
        self.sub.seek(target, unacked_mask=mask, now_ms=self.now_ms)

    def do_skip(self, words: list[str], given: dict[str, str]) -> None:
        self.told.append(f"{self.sub.skip(int(words[0]), now_ms=self.now_ms)} skipped")

    def do_clear(self, words: list[str], given: dict[str, str]) -> None:
        self.told.append(f"{self.sub.clear_backlog(now_ms=self.now_ms)} cleared")

    def do_expire(self, words: list[str], given: dict[str, str]) -> None:
        expired = self.sub.expire(self.positions(words)[0], now_ms=self.now_ms)
        self.told.append(f"{expired} expired")

    def do_trim(self, words: list[str], given: dict[str, str]) -> None:
        self.ledgers.trim_ledger(int(words[0]))
        self.sub.ledger_trimmed(int(words[0]), now_ms=self.now_ms)

    def do_persist(self, words: list[str], given: dict[str, str]) -> None:
        assert self.write is not None, "nothing was to be written"
        stored, written = written_of(
            self.taken or self.write.snapshot(),
            ranges_max=int(given.get("keep", 1_000_000)),
            batch_indexes_max=int(given.get("keep-batches", 1_000_000)),
            size_guard_hit="guard" in words,
        )
        image = self.write.held_nacks(1_000_000)
        self.write = self.taken = None
        self.durable = stored, NO_NACKS if image is None else image.nacks
        self.sub.persisted(written, now_ms=self.now_ms)

    def do_take(self, words: list[str], given: dict[str, str]) -> None:
        assert self.write is not None, "nothing was to be written"
        self.taken = self.write.snapshot()

    def do_fail(self, words: list[str], given: dict[str, str]) -> None:
        self.write = self.taken = None
        self.sub.persist_failed(int(given.get("since", self.now_ms)), now_ms=self.now_ms)

    def do_hold(self, words: list[str], given: dict[str, str]) -> None:
        held = self.sub.hold(
            self.positions(words), until_ms=int(given["until"]), now_ms=self.now_ms
        )
        self.told.append(f"{held} held")

    def do_lost(self, words: list[str], given: dict[str, str]) -> None:
        lost: dict[int, BitMap] = {}
        for ledger_id, entry_id in self.positions(words):
            lost.setdefault(ledger_id, BitMap()).add(entry_id)
        tracker = self.sub.start_tracker()
        for position in self.positions(words):
            tracker.discard(position)
        self.sub.lost(lost)

    def do_drop_delayed(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.drop_delayed(now_ms=self.now_ms)

    def do_slow(self, words: list[str], given: dict[str, str]) -> None:
        self.is_slow = True

    def do_answer(self, words: list[str], given: dict[str, str]) -> None:
        assert self.request is not None, "nothing is being read"
        request, self.request, self.is_slow = self.request, None, "still" in words
        if "cancelled" in words:
            self.sub.read_cancelled(request)
        elif "fails" in words:
            self.sub.read_failed(request, now_ms=self.now_ms)
        else:
            found = [self.entries[at] for at in request.positions if at in self.entries]
            self.sub.read_done(request, found, now_ms=self.now_ms)

    def do_break(self, words: list[str], given: dict[str, str]) -> None:
        self.broken.update(self.positions(words))

    def do_mend(self, words: list[str], given: dict[str, str]) -> None:
        self.broken.difference_update(self.positions(words))

    def do_suspend(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.suspend()

    def do_resume(self, words: list[str], given: dict[str, str]) -> None:
        self.sub.resume()

    def do_wait(self, words: list[str], given: dict[str, str]) -> None:
        if "at" in given:
            self.now_ms = int(given["at"])
        else:
            assert self.wake_at_ms is not None, "nothing is waited for"
            self.now_ms = self.wake_at_ms

    def do_show(self, words: list[str], given: dict[str, str]) -> None:
        known = self.sub.statistics()
        cursor, held = known.cursor, known.held
        self.told.append(
            f"mark-delete {self.name(cursor.mark_delete)}, ranges {self.sub.cursor.ranges_text(20)}, "
            f"backlog {cursor.backlog_entries}, next read {self.name(cursor.read_position)}"
        )
        for consumer, counts in known.consumers.items():
            seen = self.sub.dispatch_of(consumer)
            assert seen is not None
            self.told.append(
                f"{consumer}: permits {seen.permits}, unacked {seen.unacked_messages}, "
                f"out {counts.messages_out}, acked {counts.messages_acked}"
            )
        if held.delayed_entries or held.held_nacks:
            self.told.append(f"held: {held.delayed_entries} delayed, {held.held_nacks} nacked")

    # ------------------------------------------------------------------ names

    def who(self, words: list[str]) -> str | None:
        return None if words[0] == "nobody" else words[0]

    def positions(self, words: list[str]) -> list[Position]:
        found = []
        for word in words:
            match = re.fullmatch(r"(?:(\d+):)?(-?\d+)(?:-(\d+))?", word)
            assert match, f"not an entry: {word}"
            ledger_id, first, last = match.groups()
            stop = int(last or first) + 1
            found += [Position(int(ledger_id or 1), entry) for entry in range(int(first), stop)]
        return found

    def name(self, position: Position) -> str:
        return str(position.entry_id) if position.ledger_id == 1 else str(position)

    def names(self, positions: list[Position]) -> str:
        return " ".join(shortened([self.name(position) for position in positions]))


def backoff_of(text: str) -> MultiplierRedeliveryBackoff:
    """``100-800``: from so many ms, doubled each time, to so many."""
    least, most = map(int, text.split("-"))
    return MultiplierRedeliveryBackoff(least, most, 2.0)


def shortened(names: list[str]) -> list[str]:
    """Runs of plain entries, as in ``3-7``."""
    shown: list[str] = []
    run: list[int] = []

    def end_run() -> None:
        if run:
            shown.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run.clear()

    for name in names:
        if not name.isdigit():
            end_run()
            shown.append(name)
            continue
        if run and int(name) != run[-1] + 1:
            end_run()
        run.append(int(name))
    end_run()
    return shown


@pytest.mark.parametrize("path", sorted(HERE.rglob("*.txt")), ids=lambda path: path.stem)
def test_subscription(path: Path, rewrite: bool) -> None:
    replay(path, Stage().run, rewrite=rewrite)
