"""A broker in miniature that keeps every promise, for stories with kills at every point of its journal.

Pure. One topic, one subscription ``s``, everything by a seed. `StoryBroker` lives several lives; each ends
by a kill, and the next one recovers what was durable. Its story tells all that happened. What a killed
broker's journal lacks is cut off afterwards, so that one story can be cut at every point::

    broker = StoryBroker(seed)
    broker.rows                     everything: the audit finds the promises kept, and nothing unknown
    cut(broker.rows, {1: 7, 2: 0})  the first life is told up to its event 7, the second not at all

Whatever is cut off, the audit must not call the run broken. With a `Defect` the broker breaks a promise
once, if it gets to it (`is_broken`); it resets nothing then, and ends with an empty backlog.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import Any

from tests.pipeline.events import Story

STEP_US = 1_000_000
SECOND_LIFE_LEDGER = 100
"""Message ledgers of later lives have this and higher ids; cursor ledgers 1000 and higher ones."""

KINDS = ("Shared", "Key_Shared", "Exclusive", "Failover")


class Defect(enum.Enum):
    """What a broker does wrong, once."""

    SKIPS = "an entry is read over"
    ACKS_BY_ITSELF = "a recovered state has an entry as acked that nobody was sent"
    FORGETS = "a recovered state lacks a durable ack"
    REPEATS = "an entry in flight is sent again"
    REPEATS_ACKED = "an acked entry is sent again"
    OVERTAKES = "an entry is sent before the one in front of it"
    RECEIPT_TOO_SOON = "a receipt is given before the ack is durable"


@dataclass
class Entry:
    """One entry. Batches hold two messages."""

    position: tuple[int, int]
    key: str | None
    deliver_at_ms: int | None
    is_batch: bool


@dataclass
class State:
    """What a cursor holds, and a record of it."""

    version: int = 0
    acked: set[tuple[int, int]] = field(default_factory=set)
    partly: dict[tuple[int, int], int] = field(default_factory=dict)
    """Of batches: the messages that stay unacked, as bits."""
    held: set[tuple[int, int]] = field(default_factory=set)
    """Given back, and to be sent later."""
    ledger_id: int | None = None
    is_whole: bool = True

    def copy(self) -> State:
        return State(
            self.version,
            set(self.acked),
            dict(self.partly),
            set(self.held),
            self.ledger_id,
            self.is_whole,
        )


class StoryBroker:
    """See the module."""

    def __init__(
        self,
        seed: int,
        *,
        lives: int = 3,
        events: int = 24,
        defect: Defect | None = None,
        topic: str | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self.kind = self._random.choice(KINDS)
        self.is_shared = self.kind in {"Shared", "Key_Shared"}
        self._has_resets = defect is None and self._random.random() < 0.5
        self._has_delays = self.is_shared and self._random.random() < 0.5
        self._holds_nacks = self.is_shared and self._random.random() < 0.5
        self.story = Story(topic or f"story {seed}", step_us=STEP_US)
        self.entries: dict[tuple[int, int], Entry] = {}
        self.state = State()
        self.durable: State | None = None
        """None: there is no subscription."""
        self.sent: dict[tuple[int, int], int] = {}
        """How often, over all lives."""
        self.is_broken = False
        self._defect = defect
        self._ledger_id = 1
        self._cursor_ledger_id = 1000
        self._consumers: list[str] = []
        self._consumer_number = 0
        self._in_flight: dict[tuple[int, int], str] = {}
        self._replay: set[tuple[int, int]] = set()
        self._delayed: set[tuple[int, int]] = set()
        self._next_read: int = 0
        self._stalled: str | None = None
        """A consumer without permits."""
        self._receipts: dict[str, int] = {}
        self._acked_by_ack: set[tuple[int, int]] = set()
        self._lost: set[tuple[int, int]] = set()
        for life in range(1, lives + 1):
            self._begin(life)
            for _ in range(events):
                self._act()
        if defect is not None:
            self._drain()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Everything that happened."""
        return self.story.rows

    def has_sent_all(self) -> bool:
        """Whether what was wrong has been made good: by an ack that was not durable, say."""
        return all(self.sent.get(position) for position in self.entries)

    # ---------------------------------------------------------------- a life

    def _begin(self, life: int) -> None:
        story = self.story
        if life > 1:
            story.restart()
            self._ledger_id = SECOND_LIFE_LEDGER + life
        ledgers: dict[int, int] = {}
        for ledger_id, entry_id in self.entries:
            ledgers[ledger_id] = max(ledgers.get(ledger_id, 0), entry_id + 1)
        story.opened(ledgers | {self._ledger_id: 0})
        self._consumers, self._in_flight, self._delayed = [], {}, set()
        self._replay, self._stalled, self._receipts = set(), None, {}
        if self.durable is None:
            if life == 1 or self._random.random() < 0.7:
                self._subscribe()
        else:
            self.state = self.durable.copy()
            self._spoil_state()
            self.state.is_whole = True
            self.durable = self.state.copy()
            story.recovered(
                "s",
                version=self.state.version,
                mark_delete=self._mark_delete(self.state),
                acked=self._acked_above(self.state),
                nacks=len(self.state.held),
                cursor_ledger_id=self.state.ledger_id,
            )
            self._next_read = 0
        if self.durable is not None:
            self._add_consumer()

    def _drain(self) -> None:
        """Publish two entries more, and deliver and ack everything that there is."""
        if self.durable is None:
            return
        self._stalled = None
        if not self._consumers:
            self._add_consumer()
        self._publish()
        self._publish()
        self.story.time_us += 120 * STEP_US  # all is due
        self.state.held, replay = set(), self.state.held
        self._replay |= replay
        while True:
            before = len(self.rows)
            self._read()
            while self._ack():
                pass
            if len(self.rows) == before:
                return

    def _spoil_state(self) -> None:
        acked = self.state.acked & self._acked_by_ack if self.state.is_whole else set()
        unseen = [at for at in self.entries if at not in self.state.acked and not self.sent.get(at)]
        if acked and self._spoils(Defect.FORGETS):
            self.state.acked.discard(self._random.choice(sorted(acked)))
        elif unseen and self._spoils(Defect.ACKS_BY_ITSELF):
            self.state.acked.add(self._random.choice(sorted(unseen)))

    def _spoils(self, defect: Defect) -> bool:
        """Whether this is the moment to break that promise."""
        if self._defect is not defect or self.is_broken:
            return False
        self.is_broken = True
        return True

    def _act(self) -> None:
        actions = (
            ["publish"] * 3 + ["read"] * 4 + ["replay_one"] * 2 + ["ack"] * 4 + ["persist"] * 2
        )
        actions += ["nack", "receipt", "join", "leave", "stall", "gate", "partial"]
        if self._has_resets:
            actions += ["seek", "skip", "unsubscribe"]
        getattr(self, f"_{self._random.choice(actions)}")()
        self._misbehave()

    def _misbehave(self) -> None:
        given = sorted(at for at in self._in_flight if at not in self.state.acked)
        acked = sorted(self.state.acked & self._acked_by_ack)
        early = {
            name: version
            for name, version in self._receipts.items()
            if self.durable is not None and version > self.durable.version
        }
        if given and self._spoils(Defect.REPEATS):
            self._dispatch(given[0], self._in_flight[given[0]], "redelivery")
        elif acked and self._consumers and self._spoils(Defect.REPEATS_ACKED):
            self._dispatch(acked[0], self._consumers[0], "redelivery")
            self._forget(acked[0])
        elif early and self._spoils(Defect.RECEIPT_TOO_SOON):
            name, version = min(early.items())
            self.story.add("receipt", "s", consumer=name, version=version)
            del self._receipts[name]

    # ---------------------------------------------------------------- the topic

    def _publish(self) -> None:
        position = (self._ledger_id, sum(at[0] == self._ledger_id for at in self.entries))
        key = self._random.choice(("a", "b", None))
        entry = Entry(position, key, None, self._random.random() < 0.3)
        if self._has_delays and self._random.random() < 0.3:
            entry.deliver_at_ms = self._now_ms + self._random.randrange(1_000, 60_000, 1_000)
        self.entries[position] = entry
        self.story.publish(
            *position,
            key=entry.key,
            deliver_at_ms=entry.deliver_at_ms,
            batch_size=2 if entry.is_batch else 1,
        )

    @property
    def _now_ms(self) -> int:
        return self.story.time_us // 1000

    def _mark_delete(self, state: State) -> tuple[int, int]:
        last = (1, -1)
        for position in sorted(self.entries):
            if position not in state.acked:
                break
            last = position
        return last

    def _acked_above(self, state: State) -> dict[int, list[int]]:
        ranges: dict[int, list[int]] = {}
        for ledger_id, entry_id in sorted(state.acked):
            if (ledger_id, entry_id) > self._mark_delete(state):
                ranges.setdefault(ledger_id, []).append(entry_id)
        return ranges

    # ---------------------------------------------------------------- the subscription

    def _subscribe(self) -> None:
        self.state = State()
        position = (1, -1)
        if self.entries and self._random.random() < 0.5:
            position = max(self.entries)  # from the latest on
            self.state.acked = set(self.entries)
        self.story.versions["s"] = 0
        self.story.subscribe("s", *position, kind="")
        self.sent = {}
        self.durable = self.state.copy()
        self._next_read = 0

    def _unsubscribe(self) -> None:
        if self.durable is None or self._random.random() < 0.5:
            return
        while self._consumers:
            self._leave()
        self.story.add("unsubscribed", "s")
        self._replay, self._delayed, self.durable = set(), set(), None
        if self._random.random() < 0.8:
            self._subscribe()
            self._add_consumer()

    def _add_consumer(self) -> None:
        if not self._consumers:
            self._replay, self._next_read = set(), 0
            self._delayed = set()
        self._consumer_number += 1
        name = f"c#{self._consumer_number}"
        self._consumers.append(name)
        self.story.add("consumer_added", "s", consumer=name, reason=self.kind)

    def _join(self) -> None:
        if self.durable is not None and len(self._consumers) < (2 if self.is_shared else 1):
            self._add_consumer()

    def _leave(self) -> None:
        if not self._consumers:
            return
        name = self._consumers.pop(self._random.randrange(len(self._consumers)))
        for position in sorted(at for at, of in self._in_flight.items() if of == name):
            del self._in_flight[position]
            if position not in self.state.acked:
                self.story.nack("s", *position, consumer=name, reason="consumer_closed")
                self._replay.add(position)
        self.story.consumer_removed("s", name)
        if not self._consumers:
            self._replay, self._delayed = set(), set()
        if self._stalled == name:
            self._stalled = None

    def _stall(self) -> None:
        is_stalled = self.kind == "Key_Shared" and self._stalled is None and self._consumers
        self._stalled = self._consumers[-1] if is_stalled else None

    def _gate(self) -> None:
        if self.durable is not None:
            self.story.gate("s", is_shut=self._random.random() < 0.2)

    # ---------------------------------------------------------------- deliveries

    def _owner(self, entry: Entry) -> str | None:
        """Who is to get it; None: nobody can now."""
        if not self._consumers:
            return None
        if self.kind != "Key_Shared":
            return self._consumers[-1 if self.is_shared and entry.position[1] % 2 else 0]
        number = entry.position[1] if entry.key is None else ord(entry.key)
        owner = self._consumers[number % len(self._consumers)]
        if owner == self._stalled:
            return None
        if entry.key is None:
            return owner  # it is a key of its own
        of_key = {at for at, each in self.entries.items() if each.key == entry.key}
        if any(self._in_flight[at] != owner for at in of_key & self._in_flight.keys()):
            return None  # another one has entries of this key still
        return None if any(at < entry.position for at in of_key & self._replay) else owner

    def _dispatch(self, position: tuple[int, int], owner: str, reason: str) -> None:
        mask = self.state.partly.get(position)
        columns = {} if mask is None else {"unacked_indexes": bytes([mask])}
        count = self.sent.get(position, 0)
        self.story.dispatch(
            "s", *position, consumer=owner, reason=reason, redelivery_count=count, **columns
        )
        self.sent[position] = count + 1
        self._in_flight[position] = owner

    def _read(self) -> None:
        if self.durable is None or not self._consumers or self._sends_again():
            return
        order = sorted(self.entries)
        for _ in range(self._random.randint(1, 3)):
            while self._next_read < len(order) and self._is_elsewhere(order[self._next_read]):
                self._next_read += 1
            if self._next_read >= len(order):
                return
            position = order[self._next_read]
            entry = self.entries[position]
            self._next_read += 1
            if self._is_waiting(entry):
                self._delayed.add(position)
                continue
            if self._reads_wrongly(entry, order):
                continue
            owner = self._owner(entry)
            if owner is None:
                self._replay.add(position)
            else:
                self._dispatch(position, owner, "normal")

    def _reads_wrongly(self, entry: Entry, order: list[tuple[int, int]]) -> bool:
        position = entry.position
        if self.sent.get(position) or entry.deliver_at_ms is not None or self.kind == "Key_Shared":
            return False
        if self._spoils(Defect.SKIPS):
            self._lost.add(position)
            return True
        behind = [
            at
            for at in order[self._next_read :]
            if self.entries[at].key == entry.key and not self.sent.get(at)
        ]
        if not self.is_shared and behind and self._spoils(Defect.OVERTAKES):
            self._dispatch(behind[0], self._consumers[0], "normal")
        return False

    def _is_waiting(self, entry: Entry) -> bool:
        return (
            self.is_shared
            and entry.deliver_at_ms is not None
            and entry.deliver_at_ms > self._now_ms
        )

    def _is_elsewhere(self, position: tuple[int, int]) -> bool:
        return (
            position in self.state.acked
            or position in self._lost
            or position in self._in_flight
            or position in self._replay
            or position in self._delayed
            or position in self.state.held
        )

    def _sends_again(self) -> bool:
        """Send what was given back or has fallen due, before anything else; and whether it did."""
        due = sorted(at for at in self._delayed if not self._is_waiting(self.entries[at]))
        for position in due:
            self._delayed.discard(position)
            self._replay.add(position)
        if self.state.held and self._random.random() < 0.2:
            position = self._random.choice(sorted(self.state.held))
            self.state.held.discard(position)
            self._replay.add(position)
        for position in sorted(self._replay):
            owner = self._owner(self.entries[position])
            if owner is not None and position not in self.state.acked:
                self._replay.discard(position)
                is_delayed = self.entries[position].deliver_at_ms is not None
                is_first = not self.sent.get(position)
                self._dispatch(
                    position, owner, "delayed" if is_delayed and is_first else "redelivery"
                )
                return True
        return False

    def _replay_one(self) -> None:
        if self.durable is not None:
            self._sends_again()

    def _nack(self) -> None:
        given = sorted(at for at in self._in_flight if at not in self.state.acked)
        if not given:
            return
        chosen = [self._random.choice(given)] if self.is_shared else given
        for position in chosen:
            name = self._in_flight.pop(position)
            self.story.nack("s", *position, consumer=name)
            if self._holds_nacks:
                self.state.held.add(position)
            else:
                self._replay.add(position)

    # ---------------------------------------------------------------- acks

    def _ack(self) -> bool:
        """Ack an entry in flight, or one that a client has had since an earlier life."""
        given = sorted(at for at in self._in_flight if at not in self.state.acked)
        had = sorted(at for at in self.sent if at not in self.state.acked)
        if self._consumers and had and self._defect is None and self._random.random() < 0.1:
            given = had
        if not given:
            return False
        position = self._random.choice(given)
        owner = self._in_flight.get(position, self._consumers[0])
        is_cumulative = not self.is_shared and self._random.random() < 0.5
        if is_cumulative:
            below = {at for at in self.entries if at <= position} - self._lost
            self.state.acked |= below
            for at in below:
                self._forget(at)
        else:
            self.state.acked.add(position)
            self._forget(position)
        self.story.ack("s", *position, consumer=owner, is_cumulative=is_cumulative)
        self.state.version = self.story.versions["s"]
        self._acked_by_ack.add(position)
        self._receipts[owner] = self.state.version
        return True

    def _forget(self, position: tuple[int, int]) -> None:
        self._in_flight.pop(position, None)
        self._replay.discard(position)
        self._delayed.discard(position)
        self.state.held.discard(position)
        self.state.partly.pop(position, None)

    def _partial(self) -> None:
        batches = sorted(at for at in self._in_flight if self.entries[at].is_batch)
        batches = [at for at in batches if at not in self.state.partly]
        if batches:
            position = self._random.choice(batches)
            mask = self._random.choice((1, 2))
            self.state.partly[position] = mask
            self.story.ack(
                "s", *position, consumer=self._in_flight[position], unacked_indexes=bytes([mask])
            )
            self.state.version = self.story.versions["s"]

    def _persist(self) -> None:
        if self.durable is None:
            return
        record = self.state.copy()
        above = [at for at in record.acked if at > self._mark_delete(record)]
        # A limit does not leave out what it has let in before.
        may_cut = not self.durable.is_whole or record.version > self.durable.version
        dropped = above and may_cut and self._random.random() < 0.15
        if dropped:
            record.acked.discard(max(above))
            record.is_whole = False
        parts = len(record.partly)
        if parts and may_cut and self._random.random() < 0.15:
            record.partly = {}
            record.is_whole = False
        is_begun = self.state.ledger_id is None or self._random.random() < 0.15
        if is_begun:
            self._cursor_ledger_id += 1
            self.state.ledger_id = record.ledger_id = self._cursor_ledger_id
        self.durable = record
        self.story.persisted(
            "s",
            {
                "entries_dropped": 1 if dropped else 0,
                "batch_indexes_in_memory": parts,
                "batch_indexes_persisted": len(record.partly),
                "mark_delete": self._mark_delete(record),
                "cursor_ledger_id": record.ledger_id,
                "is_ledger_begun": is_begun,
            },
        )

    def _receipt(self) -> None:
        for consumer, version in sorted(self._receipts.items()):
            if self.durable is not None and version <= self.durable.version:
                self.story.add("receipt", "s", consumer=consumer, version=version)
                del self._receipts[consumer]

    # ---------------------------------------------------------------- moves

    def _seek(self) -> None:
        if self.durable is None or not self.entries:
            return
        while self._consumers:
            self._leave()
        self._acked_by_ack = set()
        target = self._random.choice([(1, -1), *sorted(self.entries)])
        self.state.acked = {at for at in self.entries if at <= target}
        self.state.partly, self.state.held = {}, set()
        self._replay, self._delayed = set(), set()
        self._moved(target, "seek")
        self._add_consumer()

    def _skip(self) -> None:
        unacked = sorted(at for at in self.entries if at not in self.state.acked)
        if self.durable is None or not unacked:
            return
        target = self._random.choice(unacked)
        for position in [at for at in self.entries if at <= target]:
            self.state.acked.add(position)
            self._forget(position)
        self._moved(self._mark_delete(self.state), self._random.choice(("skip", "clear", "expire")))

    def _moved(self, mark_delete: tuple[int, int], reason: str) -> None:
        self.story.reset("s", *mark_delete, reason)
        self.state.version = self.story.versions["s"]
        self._next_read = 0


def cut(rows: list[dict[str, Any]], lives: dict[int, int]) -> list[dict[str, Any]]:
    """Without what killed brokers did not get to write: life -> how many of its events were written."""
    return [row for row in rows if row["sequence"] < lives.get(row["owner_epoch"], len(rows))]
