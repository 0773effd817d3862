"""A subscription without I/O, clock or event loop: its host is the loop in `turn`.

Messages, network, store and clock are the host's own; here they are lists and a number.
"""

from ackgate.cursor import CursorSnapshot, ManagedCursor, MessageLedgers, Position
from ackgate.dispatcher import GateSettings, Shared
from ackgate.subscription import EntryRead, ReadRequest, Subscription, Write, WrittenCounts

MINUTE_MS = 60_000


class Host:
    """One topic with one subscription."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ledgers = MessageLedgers()  # which messages there are
        self.ledgers.open_ledger(7)
        self.log: dict[Position, EntryRead] = {}  # what must be known of each
        self.durable: CursorSnapshot | None = None
        self.sub = self.subscription()

    def subscription(self) -> Subscription[str, EntryRead]:
        """A new one, or what a crash left of it."""
        cursor = None
        if self.durable is not None:
            cursor, _ = ManagedCursor.from_snapshot(self.ledgers, self.durable)
        gate = GateSettings(enabled=True, is_strict=True, ranges_max=3)
        return Subscription(self.ledgers, kind=Shared(), gate=gate, cursor=cursor)

    def publish(self, count: int, *, deliver_at_ms: int = 0) -> None:
        """So many more messages. The machine finds them in the ledgers."""
        for _ in range(count):
            position = Position(7, len(self.log))
            self.log[position] = EntryRead(position, deliver_at_ms=deliver_at_ms)
        self.ledgers.add_entries(7, count)

    def read(self, request: ReadRequest) -> list[EntryRead]:
        """From the log."""
        return [self.log[position] for position in request.positions]

    def write(self, write: Write) -> WrittenCounts:
        """Into the store. A real one returns when it is on disk."""
        self.durable = write.snapshot()
        return WrittenCounts(self.durable.version)

    def turn(self) -> int | None:
        """Do everything there is to do now. Returns when there will be more, by itself."""
        while ready := self.sub.ready(now_ms=self.now_ms):
            if ready.read is not None:
                self.sub.read_done(ready.read, self.read(ready.read), now_ms=self.now_ms)
            for delivery in ready.deliveries:
                counts = delivery.redelivery_counts or [0] * len(delivery.entries)
                for entry, count in zip(delivery.entries, counts, strict=True):
                    again = f", try {count + 1}" if count else ""
                    print(f"{self.now_ms:6} ms  {delivery.consumer} gets {entry.position}{again}")
            if ready.write is not None:
                self.sub.persisted(self.write(ready.write), now_ms=self.now_ms)
            for receipt in ready.receipts:
                print(f"{self.now_ms:6} ms  durable: {receipt.token}")
        return ready.wake_at_ms

    def wait(self) -> None:
        """Let the time pass until there is something to do."""
        wake_at_ms = self.turn()
        assert wake_at_ms is not None
        self.now_ms = wake_at_ms
        self.turn()


def main() -> None:
    """Acks out of order, a nack, a delayed message, the gate, and a crash."""
    host = Host()
    host.publish(2)
    host.publish(1, deliver_at_ms=MINUTE_MS)
    host.publish(20)
    host.sub.attach("alice", permits=100, now_ms=host.now_ms)
    host.turn()
    print(f"gate open: {host.sub.gate.is_open}, reads pause before acks could make 4 ranges")

    host.sub.redeliver("alice", [Position(7, 0)], delay_ms=2_000, now_ms=host.now_ms)  # a nack
    host.sub.ack("alice", [Position(7, 1)], receipt="ack of 7:1", now_ms=host.now_ms)
    host.turn()
    host.wait()
    host.sub.ack("alice", [Position(7, 0)], receipt="ack of 7:0", now_ms=host.now_ms)
    host.turn()

    print("crash")
    host.sub = host.subscription()
    host.sub.attach("bob", permits=100, now_ms=host.now_ms)
    host.wait()
    counts = host.sub.statistics()
    print(f"mark-delete {counts.cursor.mark_delete}, {counts.cursor.backlog_entries} to do")


if __name__ == "__main__":
    main()
