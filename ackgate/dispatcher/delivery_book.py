"""Who was given what: the bookkeeping that Shared and Key_Shared have in common.

Pure. Consumers with their permits and entries in flight, the unacked messages of them all, and the
two kinds of blocking. Where entries go and wait is the dispatchers' own.

Blocking, as Pulsar: a consumer at its limit of unacked messages gets nothing (`permits`); a
subscription at its own gets no *normal* reads until it owes less than half; replays go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.permits import ReadyConsumers, Recipient

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ackgate.cursor.position import Position
    from ackgate.dispatcher.dispatcher import ConsumerSpec
    from ackgate.dispatcher.limits import DispatchLimits

READ_MESSAGES_MAX: Final = 10_000
"""Room beyond this is not looked for when a read is measured: with a thousand consumers that would
cost more than the read. Above what a read of 100 entries holds in batches of usual size."""


class DeliveryBook:
    """Consumers, what they may be given and what they owe."""

    __slots__ = ("_unblocked", "is_blocked", "limits", "ready", "recipients", "unacked_messages")

    def __init__(self, limits: DispatchLimits) -> None:
        self.limits = limits
        self.recipients: dict[int, Recipient] = {}
        self.ready = ReadyConsumers()
        self.unacked_messages = 0
        self.is_blocked = False
        """The subscription owes too many acks: no normal reads."""
        self._unblocked = False

    # -- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: int, spec: ConsumerSpec) -> None:
        """A consumer without permits."""
        assert consumer not in self.recipients, f"consumer {consumer} is known already"
        self.recipients[consumer] = Recipient(
            consumer, spec, self.limits.unacked_messages_per_consumer_max
        )

    def remove_consumer(self, consumer: int) -> list[Position]:
        """A consumer is gone. Returns what it had in flight."""
        recipient = self.recipients.pop(consumer)
        self.ready.remove(recipient)
        self._owe_less(recipient.in_flight.messages)
        return recipient.in_flight.take_all()

    def add_permits(self, consumer: int, messages: int) -> None:
        """It takes so many more."""
        recipient = self.recipients.get(consumer)
        if recipient is None:
            return
        recipient.permits += messages
        if recipient.unacked_max and recipient.in_flight.messages >= recipient.unacked_max:
            recipient.is_blocked = True
        self.ready.refresh(recipient)

    def set_writable(self, consumer: int, *, is_writable: bool) -> None:
        """Its connection does or does not take bytes."""
        recipient = self.recipients.get(consumer)
        if recipient is not None:
            recipient.is_writable = is_writable
            self.ready.refresh(recipient)

    def room(self) -> int:
        """Messages that all consumers together may be given now; enough of them for one read."""
        room = 0
        for recipient in self.ready:
            room += recipient.room()
            if room >= READ_MESSAGES_MAX:
                break
        return room

    def configure(self, limits: DispatchLimits) -> None:
        """Judge by other limits."""
        self.limits = limits
        for recipient in self.recipients.values():
            recipient.limit(limits.unacked_messages_per_consumer_max)
            self.ready.refresh(recipient)
        unacked_max = limits.unacked_messages_per_subscription_max
        if unacked_max and self.unacked_messages >= unacked_max:
            self.is_blocked = True
        else:
            self._owe_less(0)

    # -- what is in flight ----------------------------------------------------------------------

    def give(
        self,
        recipient: Recipient,
        positions: Sequence[Position],
        message_counts: Sequence[int] | None,
    ) -> int:
        """The entries go to it. Returns their messages."""
        messages = recipient.give(positions, message_counts)
        self.unacked_messages += messages
        unacked_max = self.limits.unacked_messages_per_subscription_max
        if unacked_max and self.unacked_messages >= unacked_max:
            self.is_blocked = True
        self.ready.refresh(recipient)
        return messages

    def take(self, consumer: int | None, position: Position) -> bool:
        """An entry is acked. Was it in flight, with this consumer or another?"""
        recipient = None if consumer is None else self.recipients.get(consumer)
        if recipient is None or not (messages := recipient.in_flight.take(position)):
            for recipient in self.recipients.values():
                if messages := recipient.in_flight.take(position):
                    break
            else:
                return False
        self._owe_less(messages)
        if recipient.is_blocked or (recipient.permits > 0 and not recipient.is_ready):
            self._settle(recipient)
        return True

    def take_many(self, consumer: int | None, positions: Sequence[Position]) -> Sequence[Position]:
        """`take` for each. Returns those that were not in flight."""
        recipient = None if consumer is None else self.recipients.get(consumer)
        if recipient is None:
            return [position for position in positions if not self.take(None, position)]
        counts = recipient.in_flight.take_many(positions)
        self._owe_less(sum(counts))
        self._settle(recipient)
        if all(counts):
            return ()
        return [
            position
            for position, count in zip(positions, counts, strict=True)
            if not count and not self.take(None, position)
        ]

    def holder(self, position: Position) -> int | None:
        """The consumer that has it in flight."""
        for consumer, recipient in self.recipients.items():
            if position in recipient.in_flight:
                return consumer
        return None

    def in_flight(self, consumer: int) -> Collection[Position]:
        """What the consumer has, in order of delivery. Live: to be read at once."""
        recipient = self.recipients.get(consumer)
        return () if recipient is None else recipient.in_flight.positions

    def lower(self, consumer: int | None, position: Position, remaining: int) -> None:
        """No more than so many messages of the entry are unacked, whoever has it."""
        recipient = None if consumer is None else self.recipients.get(consumer)
        if recipient is None or position not in recipient.in_flight:
            for recipient in self.recipients.values():
                if position in recipient.in_flight:
                    break
            else:
                return
        self._owe_less(recipient.in_flight.lower(position, remaining))
        self._settle(recipient)

    def take_through(self, position: Position) -> list[Position]:
        """All entries up to the position are acked. Returns those that were in flight."""
        taken: list[Position] = []
        for recipient in self.recipients.values():
            before = recipient.in_flight.messages
            taken += recipient.in_flight.take_through(position)
            self._owe_less(before - recipient.in_flight.messages)
            self._settle(recipient)
        return taken

    def take_back(self, consumer: int, positions: Sequence[Position] | None) -> list[Position]:
        """The consumer gives entries back (None: all). Returns those it had. Unblocks it."""
        recipient = self.recipients.get(consumer)
        if recipient is None:
            return []
        before = recipient.in_flight.messages
        if positions is None:
            returned = recipient.in_flight.take_all()
        else:
            returned = [position for position in positions if recipient.in_flight.take(position)]
        messages = before - recipient.in_flight.messages
        recipient.messages_redelivered += messages
        self._owe_less(messages)
        recipient.is_blocked = False
        self.ready.refresh(recipient)
        return returned

    def clear(self) -> None:
        """Nothing is in flight any more."""
        for recipient in self.recipients.values():
            self._owe_less(recipient.in_flight.messages)
            recipient.in_flight.take_all()
            self._settle(recipient)

    def pop_unblocked(self) -> bool:
        """Was a consumer or the subscription unblocked since the last call?"""
        unblocked = self._unblocked
        self._unblocked = False
        return unblocked

    def check(self) -> None:
        """Assert every invariant."""
        self.ready.check()
        seen: set[Position] = set()
        for consumer, recipient in self.recipients.items():
            assert recipient.consumer == consumer
            recipient.check()
            assert recipient.is_ready == (recipient.room() > 0), consumer
            assert seen.isdisjoint(recipient.in_flight), f"{consumer}: given twice"
            seen.update(recipient.in_flight)
        unacked = sum(recipient.in_flight.messages for recipient in self.recipients.values())
        assert self.unacked_messages == unacked, (self.unacked_messages, unacked)
        unacked_max = self.limits.unacked_messages_per_subscription_max
        assert self.is_blocked or not unacked_max or unacked < unacked_max
        assert not self.is_blocked or (unacked_max and unacked and unacked >= unacked_max // 2)

    def _owe_less(self, messages: int) -> None:
        self.unacked_messages -= messages
        if self.is_blocked:
            unacked_max = self.limits.unacked_messages_per_subscription_max
            # At 0 in any case: with a limit of 1 Pulsar stays blocked for good.
            if self.unacked_messages < unacked_max // 2 or not (
                unacked_max and self.unacked_messages
            ):
                self.is_blocked = False
                self._unblocked = True

    def _settle(self, recipient: Recipient) -> None:
        """The recipient owes less than before."""
        recipient.ease()
        if self.ready.refresh(recipient):
            self._unblocked = True
