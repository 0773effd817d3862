"""Which entries go to which consumer: the port that every subscription type implements.

Pure. Facts come in as method calls, decisions go out as values; the broker does what they say.
One task owns a dispatcher. Consumers are numbers chosen by the broker, never used twice in one
dispatcher's life.

::

            add_permits, acked, redeliver, set_writable, entries published, the gate's edges
                                        |
                                        v
     broker: read = next_read(...) ---> None: wait for the next fact
                  |
                  | move the read position, read the entries, leave out what is acked by now
                  v
             deliveries = assign(read, entries)  --->  MESSAGE frames, then next_read again
                  |
                  +-- what cannot be placed now waits in the replay queue, by position

**At most one read at a time.** Between a `Read` and its `assign` (or `read_failed`), `next_read`
answers None. A read is short (cache or ledger): the broker never parks one at the end of the
topic, it says ``has_unread=False`` and asks again when entries are published.

**The read position moves when a normal read is issued**, before its I/O. A `Rewind` (or `reset`)
that comes while it is under way then wins: the read is stale, its `assign` gives and queues
nothing, and the entries are read again from the rewound position.

===================  =======================  ====================  =======================
type                 who gets an entry        redelivery            pauses on the gate
===================  =======================  ====================  =======================
Shared               round robin, priorities  the entries, counted  normal reads do
Key_Shared           the owner of its key     the entries, counted  normal reads do
Exclusive, Failover  the active consumer      `Rewind`, uncounted   never
===================  =======================  ====================  =======================

Implementations: `shared.SharedDispatcher`, `key_shared.KeySharedDispatcher`,
`single_active.SingleActiveDispatcher`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from ackgate.config import defaults
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ackgate.cursor import Position


class ReadKind(enum.Enum):
    """Where the entries of a read come from."""

    REPLAY = "replay"
    """From the replay queue: given before, or held back. Never paused by the gate."""

    NORMAL = "normal"
    """From the cursor's read position on."""


class Read(NamedTuple):
    """What the driver has to read now, and then pass to `assign` or `read_failed`."""

    kind: ReadKind
    positions: tuple[Position, ...]
    """REPLAY: exactly these; give them to `assign` in this order. They stay queued until then.
    NORMAL: empty."""
    entries_max: int
    """At most so many entries."""
    messages_max: int
    """NORMAL: stop once the entries hold so many messages (the last entry may overshoot). Reading
    on is allowed; what does not fit waits for replay (Exclusive, Failover: is sent)."""
    up_to: Position | None
    """NORMAL with the gate shut: read no entry above this one (it closes holes). Else None."""
    number: int
    """Counts the reads of one dispatcher, so that a stale one is recognised."""


class MessageChunk(NamedTuple):
    """An entry that is a piece of a chunked message. All pieces go to one consumer, in order."""

    uuid: str
    is_last: bool


class EntriesRead(NamedTuple):
    """What a read brought, as columns in reading order. Entries acked meanwhile are left out."""

    positions: Sequence[Position]
    """Hashed as tuples: a ``(ledger_id, entry_id)`` made by any means will do."""
    message_counts: Sequence[int] | None = None
    """Messages still unacked in each entry, at least 1 (batch size less the indexes that the cursor
    holds as acked). None: one message each."""
    key_hashes: Sequence[int] | None = None
    """`Dispatcher.key_hash` of each entry's key, if the dispatcher has one. Else None."""
    chunks: Sequence[MessageChunk | None] | None = None
    """Which entries are pieces of chunked messages; None: none is. Only Shared looks at it."""


NOTHING_READ: Final = EntriesRead(())


class Assignment(NamedTuple):
    """Send these entries of the read to this consumer, in this order."""

    consumer: int
    indexes: Sequence[int]
    """Places in the `EntriesRead` given to `assign`, ascending (a `range` if in one run)."""
    redelivery_counts: Sequence[int] | None
    """How often each was redelivered before; None: all never."""
    message_count: int
    """Messages in all of them: so many permits were used up."""
    epoch: int | None
    """The consumer's epoch, for MESSAGE's ``consumer_epoch``; None if it never named one."""


class Rewind(NamedTuple):
    """Set the cursor's read position back to the first unacked entry, now."""


class ReadFrom(NamedTuple):
    """Set the cursor's read position to this one, now: what a failed read has passed over."""

    position: Position


class ActiveConsumerChanged(NamedTuple):
    """Failover: notify this consumer whether it is the active one."""

    consumer: int
    is_active: bool


Effect: TypeAlias = Rewind | ActiveConsumerChanged
"""What the broker must do at once, in the order given."""


class KeySharedMode(enum.Enum):
    """How a Key_Shared subscription divides its keys. Numbers as on the wire."""

    AUTO_SPLIT = 0
    """By the broker: consistent hashing over the consumers' names."""

    STICKY = 1
    """By the consumers: each names its own hash ranges."""


class KeySharedPolicy(NamedTuple):
    """What the first consumer of a Key_Shared subscription decides for all.

    As in Pulsar: a consumer with another policy needs a new dispatcher if this one has no consumers;
    otherwise the present policy stays in force.
    """

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    allow_out_of_order: bool = False


class ConsumerSpec(NamedTuple):
    """What a consumer says of itself when it subscribes."""

    name: str
    priority: int = 0
    """0 is served first."""
    hash_ranges: tuple[tuple[int, int], ...] = ()
    """(first, last) hash, both included, within 0..65535. Needed by STICKY; on an Exclusive
    subscription (a reader) entries with other keys are not delivered."""
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """What every kind of dispatcher is bounded by; Pulsar's key in brackets.

    A setting has its default in `ackgate.config.dispatcher`; for the other keys this broker has
    Pulsar's default only.
    """

    read_entries_max: int = defaults.READ_ENTRIES_MAX
    """Entries of one read (``dispatcherMaxReadBatchSize``)."""

    round_robin_entries_max: int = defaults.ROUND_ROBIN_ENTRIES_MAX
    """Entries given to one consumer before it is the next one's turn, if there are several
    (``dispatcherMaxRoundRobinBatchSize``)."""

    unacked_messages_per_consumer_max: int = defaults.UNACKED_MESSAGES_PER_CONSUMER_MAX
    """A consumer that owes this many acks gets nothing new until it owes half; 0 = no limit
    (``maxUnackedMessagesPerConsumer``)."""

    unacked_messages_per_subscription_max: int = defaults.UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX
    """All consumers together owe this many: normal reads stop until they owe less than half;
    0 = no limit (``maxUnackedMessagesPerSubscription``)."""

    hole_closing_redelivery_first: bool = True
    """While the gate is shut, replays that merge ack ranges go before older ones
    (``dispatcherHoleClosingRedeliveryFirst``, own)."""

    hole_scan_entries_max: int = 1_000
    """How many of the oldest replays are looked at for that; keeps one read below a millisecond."""

    failover_delay_ms: int = defaults.FAILOVER_DELAY_MS
    """How long the new active consumer of a Failover subscription waits, so that what the old one
    was sent may still be acked (``activeConsumerFailoverDelayTimeMillis``)."""

    failover_consistent_hashing: bool = False
    """Failover on a partition chooses by hash ring instead of partition index
    (``activeConsumerFailoverConsistentHashing``). Without partitions the ring is always used."""

    key_shared_ring_points: int = 100
    """Points of one consumer on the hash ring
    (``subscriptionKeySharedConsistentHashingReplicaPoints``)."""

    key_shared_look_ahead_per_consumer_max: int = 2_000
    """Key_Shared reads on past entries whose key is blocked until this many wait for replay, times
    the consumers; 0 = only the next limit
    (``keySharedLookAheadMsgInReplayThresholdPerConsumer``)."""

    key_shared_look_ahead_per_subscription_max: int = 20_000
    """The same for the whole subscription; 0 = no limit
    (``keySharedLookAheadMsgInReplayThresholdPerSubscription``)."""

    def __post_init__(self) -> None:
        for name in ("read_entries_max", "round_robin_entries_max", "key_shared_ring_points"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "unacked_messages_per_consumer_max",
            "unacked_messages_per_subscription_max",
            "hole_scan_entries_max",
            "failover_delay_ms",
            "key_shared_look_ahead_per_consumer_max",
            "key_shared_look_ahead_per_subscription_max",
        ):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """One consumer as the dispatcher sees it."""

    consumer: int
    name: str
    priority: int
    permits: int
    """Messages it may still be sent; below 0 after a batch larger than what was left."""
    unacked_messages: int
    """Shared and Key_Shared; else 0 (Pulsar does not count them)."""
    in_flight_entries: int
    is_blocked_on_unacked_messages: bool
    is_active: bool
    """Exclusive and Failover: the one that is served. Else True."""
    is_writable: bool
    messages_delivered: int
    """Since it was added, redeliveries included."""
    messages_redelivered: int
    """Messages that it gave back by `redeliver`."""
    messages_per_entry_average: float
    """0 before the first delivery."""
    hash_ranges: tuple[tuple[int, int], ...]
    """Key_Shared: the hashes it owns, (first, last) both included."""


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """A frozen description of a dispatcher."""

    consumers: tuple[ConsumerStatistics, ...]
    unacked_messages: int
    in_flight_entries: int
    is_blocked_on_unacked_messages: bool
    replay_entries: int
    redelivered_entries: int
    """Unacked entries with a redelivery count above 0."""
    active_consumer: int | None
    """Exclusive and Failover."""


class Dispatcher(Protocol):
    """One subscription's dispatcher. See the module for how the calls follow each other."""

    # -- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: int, spec: ConsumerSpec, now_ms: int) -> tuple[Effect, ...]:
        """A consumer subscribed. It has no permits yet. Then ask `next_read`.

        The first consumer of an empty dispatcher brings a `Rewind`: what the ones before it were
        sent and did not ack is read again. Raises `ConsumerBusyError` (Exclusive, taken) or
        `ConsumerAssignError` (STICKY: no, bad or overlapping ranges) and changes nothing then.
        """
        ...

    def remove_consumer(self, consumer: int, now_ms: int) -> tuple[Effect, ...]:
        """A consumer is gone (closed or lost). Then ask `next_read`. Unknown: nothing happens.

        What it had in flight goes to the replay queue (uncounted, as Pulsar). With the last
        consumer the queue and all redelivery counts are dropped instead, a read under way is
        stale, and the next `add_consumer` rewinds.
        """
        ...

    def add_permits(self, consumer: int, messages: int) -> None:
        """Add the permits of a FLOW. Then ask `next_read`. Unknown consumer: nothing happens."""
        ...

    def set_writable(self, consumer: int, *, is_writable: bool) -> None:
        """The connection's write buffer passed its high (False) or low (True) mark.

        While False the consumer gets nothing. After True call `next_read`.
        """
        ...

    # -- reading --------------------------------------------------------------------------------

    @property
    def key_hash(self) -> Callable[[bytes], int] | None:
        """How to hash an entry's key (`keys.resolve_key`) for `EntriesRead.key_hashes`.

        None: not needed now. May change with `add_consumer`.
        """
        ...

    def next_read(
        self,
        *,
        has_unread: bool,
        gate_open: bool,
        entry_budget: int | None = None,
        holes_up_to: Position | None = None,
        is_acked: Callable[[Position], bool] | None = None,
    ) -> Read | None:
        """What to read now, or None. Ask after every fact that may matter; a None costs < 1 us.

        Replays first; then normal reads, if there is anything (``has_unread``: an unacked entry at
        or above the read position), the subscription does not owe too many acks, and the gate
        allows it:

        - ``entry_budget`` (strict gate; None = no budget): a normal read is no longer than this.
        - ``gate_open`` False: no normal read, except of entries below acked ones, which close
          holes just as replays do. ``holes_up_to`` is the last individually or partly acked position
          if the first unread, unacked entry lies at or below it (a recovered or rewound cursor), else
          None; the `Read` then names it as ``up_to``. Without this a cursor that recovers above its limit
          would never be served again.
        - ``is_acked`` (the cursor's) is used only while the gate is shut, to let replays that
          close a whole hole go first; None: by position. Key_Shared always goes by position.

        Exclusive and Failover ignore gate, budget and holes, as Pulsar.
        """
        ...

    def assign(self, read: Read, entries: EntriesRead) -> list[Assignment]:
        """The read is done: who gets what. Send every delivery, then ask `next_read` again.

        Messages are counted as in flight from here on: if a send fails, the connection is closed
        and `remove_consumer` brings them back. Replay positions missing in ``entries`` are taken
        as acked or trimmed and leave the queue. A stale read gives nothing.
        """
        ...

    def read_failed(self, read: Read, positions: Sequence[Position] = ()) -> tuple[ReadFrom, ...]:
        """The read failed, and `assign` got none of it.

        ``positions``: what a NORMAL read would have brought. The read position goes back to them
        (`ReadFrom`), unless the read is stale. A REPLAY read's positions are still queued. The driver
        backs off before its next read.
        """
        ...

    # -- answers --------------------------------------------------------------------------------

    def acked(self, consumer: int | None, position: Position) -> bool:
        """One whole entry is acked, wherever it was.

        In flight with this or another consumer, waiting for replay, or never given. True: something
        was unblocked (a consumer, a key, the subscription): ask `next_read`.
        """
        ...

    def acked_many(self, consumer: int | None, positions: Sequence[Position]) -> bool:
        """As `acked`, for all the whole entries of one or more ACK frames of one consumer."""
        ...

    def acked_partly(self, consumer: int | None, position: Position, remaining: int) -> bool:
        """Some messages of a batch are acked; ``remaining`` (> 0) are not. Answers as `acked`.

        Idempotent: lowers what is counted as unacked to ``remaining``, never raises it.
        """
        ...

    def acked_through(self, position: Position) -> bool:
        """All positions up to this one are acked or skipped. Answers as `acked`.

        For cumulative acks, skip, clear, expire and trim. O(in flight + waiting for replay).
        """
        ...

    def redeliver(
        self, consumer: int, positions: Sequence[Position] | None, *, epoch: int | None = None
    ) -> tuple[Effect, ...]:
        """Deliver unacked messages of the consumer again; None: all of them. Then call `next_read`.

        Positions that are not in flight with this consumer are ignored. A batch comes back
        as a whole, less the indexes acked by then. Exclusive and Failover: `Rewind` if it is the
        active one, whatever the positions; a newer ``epoch`` becomes the consumer's.
        """
        ...

    def hold(self, consumer: int, positions: Sequence[Position] | None) -> list[Position]:
        """As `redeliver`, but what the consumer gives back is held elsewhere from now on.

        It is counted as redelivered and waits nowhere here; `queue_due` brings it back. Returns the
        positions that were in flight with this consumer. Exclusive and Failover: none.
        """
        ...

    def queue_due(self, positions: Sequence[Position]) -> None:
        """The time of these (held, or delayed and never given) has come: they wait for replay.

        Not counted as redelivered by this. In flight or waiting already: nothing happens, nor while
        there is no consumer (the next one rewinds). Never part of a normal read that is under way.
        Ask `next_read` then. Exclusive and Failover: nothing happens.

        Key_Shared learns their keys when they are read; from then on they keep to the order of
        position among the entries of their key that wait.
        """
        ...

    @property
    def waiting_entries(self) -> int:
        """Entries that wait for replay. O(1)."""
        ...

    # -- the rest -------------------------------------------------------------------------------

    def reset(self) -> None:
        """The cursor was reset, sought or cleared.

        Nothing is in flight, nothing waits for replay, no redelivery was ever counted, a read under
        way is stale. Consumers and their permits stay.
        """
        ...

    def configure(self, limits: DispatchLimits) -> None:
        """Use new limits, from now on. Then ask `next_read`."""
        ...

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `advance` next; None: never (only Failover waits for time)."""
        ...

    def advance(self, now_ms: int) -> tuple[Effect, ...]:
        """Do what the time asks for. Then ask `next_read`."""
        ...

    @property
    def consumer_count(self) -> int:
        """How many consumers there are."""
        ...

    @property
    def active_consumer(self) -> int | None:
        """Exclusive and Failover: the one that is served; None if there is none. Else None."""
        ...

    def holder(self, position: Position) -> int | None:
        """The consumer that the entry is in flight with. O(consumers).

        None: none. Exclusive and Failover: always (they do not follow what they sent).
        """
        ...

    def in_flight(self, consumer: int) -> Collection[Position]:
        """Entries in flight with the consumer, in order of delivery. Live: to be read at once.

        Exclusive and Failover: none (they do not follow what they sent).
        """
        ...

    def redelivery_count(self, position: Position) -> int:
        """How often the entry was redelivered so far."""
        ...

    def messages_redelivered(self, consumer: int) -> int:
        """Messages that the consumer gave back by `redeliver`; 0 if unknown. O(1)."""
        ...

    def consumer_statistics(self, consumer: int) -> ConsumerStatistics | None:
        """One consumer; None if unknown. With its hash ranges: O(consumers). Of all: `statistics`."""
        ...

    def statistics(self) -> DispatcherStatistics:
        """Current counts and states, frozen. O(consumers)."""
        ...

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        ...
