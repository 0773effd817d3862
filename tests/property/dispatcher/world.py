"""A dumb broker round a dispatcher: lists and sets, every answer checked against them.

Entry number i lies at ``position_of(i)``; its key hash and batch size are given when it is
published. The world believes nothing: what a delivery may hold follows from its own books.

Some entries are ``held`` by somebody else, as a tracker of delayed messages or nacks does: a normal
read leaves them out, and `due` hands them to the dispatcher, read position or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ackgate.cursor import Position
from ackgate.dispatcher import (
    ConsumerSpec,
    Dispatcher,
    EntriesRead,
    Read,
    ReadFrom,
    ReadKind,
    Rewind,
)

ENTRIES_PER_LEDGER = 7


def position_of(number: int) -> Position:
    return Position(number // ENTRIES_PER_LEDGER, number % ENTRIES_PER_LEDGER)


def number_of(position: Position) -> int:
    return position.ledger_id * ENTRIES_PER_LEDGER + position.entry_id


@dataclass
class Client:
    """What one consumer has and may have."""

    permits: int = 0
    is_writable: bool = True
    has: dict[int, int] = field(default_factory=dict)
    """Entry number -> unacked messages, as it was told or acked since."""

    @property
    def unacked(self) -> int:
        return sum(self.has.values())


class World:
    def __init__(self, dispatcher: Dispatcher, *, ordered: bool, unacked_max: int) -> None:
        self.dispatcher = dispatcher
        self.ordered = ordered
        self.unacked_max = unacked_max
        self.remaining: list[int] = []
        """Unacked messages of each entry; 0 = acked."""
        self.hashes: list[int] = []
        self.unread = 0
        self.clients: dict[int, Client] = {}
        self.redeliveries: dict[int, int] = {}
        self.consumers_ever = 0
        self.read: Read | None = None
        self.read_numbers: list[int] = []
        self.is_stale = False
        self.late: list[Read] = []
        """Stale reads whose answer is still to come, after another read has begun."""
        self.gate_open = True
        self.delayed: set[int] = set()
        """To be held when they are read."""
        self.held: set[int] = set()
        self.ahead: set[int] = set()
        """The dispatcher's, though the read position has not come to them."""
        self.keys_unknown: set[int] = set()
        """Held, or due and not read since: their keys wait for nobody."""

    # -- what happens ---------------------------------------------------------------------------

    def publish(self, messages: int, key_hash: int, *, is_delayed: bool = False) -> None:
        if is_delayed:
            self.delayed.add(len(self.remaining))
        self.remaining.append(messages)
        self.hashes.append(key_hash)

    def join(self, name: str, priority: int = 0) -> int:
        consumer = self.consumers_ever = self.consumers_ever + 1
        effects = self.dispatcher.add_consumer(consumer, ConsumerSpec(name, priority), 0)
        assert effects == ((Rewind(),) if not self.clients else ())
        if effects:
            self.unread = 0
        self.clients[consumer] = Client()
        return consumer

    def leave(self, consumer: int) -> None:
        assert self.dispatcher.remove_consumer(consumer, 0) == ()
        del self.clients[consumer]
        if not self.clients:
            self.forget()

    def forget(self) -> None:
        self.redeliveries.clear()
        self.ahead.clear()
        self.keys_unknown = set(self.held)
        self.is_stale = True

    def flow(self, consumer: int, messages: int) -> None:
        self.clients[consumer].permits += messages
        self.dispatcher.add_permits(consumer, messages)

    def writable(self, consumer: int, is_writable: bool) -> None:
        self.clients[consumer].is_writable = is_writable
        self.dispatcher.set_writable(consumer, is_writable=is_writable)

    def ack(self, by: int | None, numbers: list[int], *, one_by_one: bool) -> None:
        positions = [position_of(number) for number in numbers]
        if one_by_one:
            for position in positions:
                self.dispatcher.acked(by, position)
        else:
            self.dispatcher.acked_many(by, positions)
        for number in numbers:
            self._acked(number)

    def ack_partly(self, by: int | None, number: int, remaining: int) -> None:
        self.dispatcher.acked_partly(by, position_of(number), remaining)
        self.remaining[number] = remaining
        for client in self.clients.values():
            if number in client.has:
                client.has[number] = min(client.has[number], remaining)

    def ack_through(self, number: int) -> None:
        self.dispatcher.acked_through(position_of(number))
        for each in range(number + 1):
            self._acked(each)

    def _acked(self, number: int) -> None:
        self.remaining[number] = 0
        self.redeliveries.pop(number, None)
        self._is_nobodys(number)
        for client in self.clients.values():
            client.has.pop(number, None)

    def redeliver(self, consumer: int, numbers: list[int] | None) -> None:
        client = self.clients[consumer]
        positions = None if numbers is None else [position_of(number) for number in numbers]
        assert self.dispatcher.redeliver(consumer, positions) == ()
        for number in list(client.has) if numbers is None else numbers:
            if client.has.pop(number, None):
                self.redeliveries[number] = self.redeliveries.get(number, 0) + 1

    def _is_nobodys(self, number: int) -> None:
        self.delayed.discard(number)
        self.held.discard(number)
        self.ahead.discard(number)
        self.keys_unknown.discard(number)

    def hold(self, consumer: int, numbers: list[int]) -> None:
        client = self.clients[consumer]
        own = [number for number in numbers if number in client.has]
        positions = [position_of(number) for number in numbers]
        assert self.dispatcher.hold(consumer, positions) == [position_of(n) for n in own]
        for number in own:
            del client.has[number]
            self.redeliveries[number] = self.redeliveries.get(number, 0) + 1
            self._held(number)

    def _held(self, number: int) -> None:
        self.delayed.discard(number)
        self.held.add(number)
        self.keys_unknown.add(number)

    def due(self, numbers: list[int]) -> None:
        """The time of these has come. What the dispatcher has already is nothing new to it."""
        known = [n for client in self.clients.values() for n in client.has]
        self.dispatcher.queue_due([position_of(number) for number in numbers + known])
        for number in numbers:
            self.held.remove(number)
            if not self.clients:  # read again by the next one
                self.keys_unknown.discard(number)
            elif number >= self.unread:
                self.ahead.add(number)

    def reset(self, number: int) -> None:
        """Seek back: everything from there on is unacked again."""
        self.dispatcher.reset()
        for client in self.clients.values():
            client.has.clear()
        self.forget()
        self.unread = number
        for each in range(number):
            self.remaining[each] = 0
            self._is_nobodys(each)
        for each in range(number, len(self.remaining)):
            self.remaining[each] = self.remaining[each] or 1

    # -- reading --------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Ask for a read, and move the read position. One may be under way already."""
        elsewhere = self.held | self.ahead
        unread = [
            number
            for number in range(self.unread, len(self.remaining))
            if self.remaining[number] and number not in elsewhere
        ]
        acked = [n for n in range(len(self.remaining)) if not self.remaining[n]]
        has_holes = unread and acked and unread[0] < acked[-1]
        holes_up_to = position_of(acked[-1]) if has_holes else None
        read = self.dispatcher.next_read(
            has_unread=bool(unread),
            gate_open=self.gate_open,
            holes_up_to=holes_up_to,
            is_acked=lambda position: (
                position.entry_id < 0
                or number_of(position) >= len(self.remaining)
                or not self.remaining[number_of(position)]
            ),
        )
        if read is None:
            return False
        if self.read is not None:
            assert self.is_stale, "a second read"
            self.late.append(self.read)
        self.read, self.is_stale = read, False
        if read.kind is ReadKind.REPLAY:
            assert read.positions
            assert len(set(read.positions)) == len(read.positions)
            self.read_numbers = [number_of(position) for position in read.positions]
            return True
        assert read.entries_max > 0
        assert self.gate_open or read.up_to == holes_up_to is not None
        if read.up_to is not None:
            unread = [number for number in unread if position_of(number) <= read.up_to]
        self.read_numbers = unread[: read.entries_max]
        self.unread = self.read_numbers[-1] + 1 if self.read_numbers else self.unread
        return True

    def complete(self) -> int:
        """The read is done. Returns how many entries were given."""
        assert self.read is not None
        numbers = [number for number in self.read_numbers if self.remaining[number]]
        if not self.is_stale:
            if self.read.kind is ReadKind.REPLAY:
                self.keys_unknown.difference_update(numbers)
            else:
                for number in self.delayed.intersection(numbers):
                    self._held(number)
                numbers = [number for number in numbers if number not in self.held]
        entries = EntriesRead(
            [position_of(number) for number in numbers],
            [self.remaining[number] for number in numbers],
            [self.hashes[number] for number in numbers],
        )
        deliveries = self.dispatcher.assign(self.read, entries)
        self.read = None
        assert not (deliveries and self.is_stale), "a stale read gave something"
        for delivery in deliveries:
            assert delivery.indexes
            given = [numbers[index] for index in delivery.indexes]
            assert delivery.message_count == sum(self.remaining[number] for number in given)
            counts = delivery.redelivery_counts or [0] * len(given)
            assert list(counts) == [self.redeliveries.get(number, 0) for number in given]
            for number in given:
                self._receive(delivery.consumer, number)
        return sum(len(delivery.indexes) for delivery in deliveries)

    def complete_late(self) -> None:
        """A stale read answers while another one is under way, or none."""
        read = self.late.pop()
        positions = list(read.positions) or [position_of(0)]
        entries = EntriesRead(positions, None, [1] * len(positions))
        assert self.dispatcher.assign(read, entries) == []
        assert self.dispatcher.read_failed(read, positions) == ()

    def fail(self) -> None:
        assert self.read is not None
        positions = [position_of(number) for number in self.read_numbers]
        effects = self.dispatcher.read_failed(self.read, positions)
        if self.is_stale or self.read.kind is ReadKind.REPLAY or not positions:
            assert effects == ()
        else:
            assert effects == (ReadFrom(positions[0]),)
            self.unread = self.read_numbers[0]
        self.read = None

    def _receive(self, consumer: int, number: int) -> None:
        client = self.clients[consumer]
        assert self.remaining[number], f"{number} is acked"
        assert not any(number in other.has for other in self.clients.values()), "given twice"
        assert client.is_writable, "not writable"
        assert client.permits > 0, "no permit left"
        assert not self.unacked_max or client.unacked < self.unacked_max, "owes too much"
        if self.ordered:
            self._check_order(consumer, number)
        client.permits -= self.remaining[number]
        client.has[number] = self.remaining[number]

    def _check_order(self, consumer: int, number: int) -> None:
        key_hash = self.hashes[number]
        for other, client in self.clients.items():
            if other != consumer:
                assert not any(self.hashes[has] == key_hash for has in client.has), "two have a key"
        has = self.clients[consumer].has
        for lower in range(number):
            if lower in self.keys_unknown or lower in self.delayed:
                continue
            if self.hashes[lower] == key_hash and self.remaining[lower]:
                assert lower in has, f"{number} overtakes {lower}"

    # -- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        self.dispatcher.check()
        statistics = self.dispatcher.statistics()
        assert self.dispatcher.consumer_count == len(self.clients)
        for told in statistics.consumers:
            client = self.clients[told.consumer]
            assert told.permits == client.permits
            assert told.unacked_messages == client.unacked
            assert told.in_flight_entries == len(client.has)
        assert statistics.unacked_messages == sum(c.unacked for c in self.clients.values())
        assert statistics.redelivered_entries == len(self.redeliveries)
        assert statistics.replay_entries == self.dispatcher.waiting_entries
        if self.clients:
            self._check_none_lost(statistics.replay_entries)

    def _check_none_lost(self, replay_entries: int) -> None:
        somewhere = {number for client in self.clients.values() for number in client.has}
        if self.read is not None and not self.is_stale and self.read.kind is ReadKind.NORMAL:
            somewhere.update(self.read_numbers)
        somewhere |= self.held
        waiting = [n for n in range(self.unread) if self.remaining[n] and n not in somewhere]
        waiting += [n for n in self.ahead if n >= self.unread and n not in somewhere]
        assert replay_entries == len(waiting), f"{replay_entries} wait, should be {waiting}"

    def drain(self) -> None:
        """Give everybody all they need: everything must come, and nothing may be left."""
        if self.read is not None:
            self.complete()
        if not self.clients:
            self.join("last")
        self.gate_open = True
        for consumer in self.clients:
            self.writable(consumer, True)
            self.flow(consumer, 1_000_000)
        for _ in range(10 * len(self.remaining) + 10):
            given = 0
            self.due(sorted(self.held))
            while self.begin():
                given += self.complete()
            has = [(c, number) for c, client in self.clients.items() for number in client.has]
            for consumer, number in has:
                self.ack(consumer, [number], one_by_one=True)
            if not has and not given and not self.held:
                break
        assert not any(self.remaining), "something was never given"
        self.check()
