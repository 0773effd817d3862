"""What all topics of one broker share, in one object, so that nothing is global."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ackgate.broker.cluster import BrokerAudit, Lease, Namespaces
from ackgate.broker.journal import JournalPace
from ackgate.broker.topic.disk_space import DiskSpace
from ackgate.broker.topic.latencies import Latencies
from ackgate.broker.topic.waits import Waits
from ackgate.broker.wire import ConsumerRates, PublishBuffer, publish_buffer_bytes
from ackgate.embedded.bucket_storage import StorageLanes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.broker.cluster import PolicyStore
    from ackgate.broker.topic.tracing import Tracing
    from ackgate.broker.wire import Entry, TopicName
    from ackgate.config.settings import Settings
    from ackgate.errors import OwnershipError
    from ackgate.persistence.messages.cache import EntryCache
    from ackgate.persistence.ports import LedgerClient, LedgerOptions, MetadataStore


class OwnedTopic(Protocol):
    """What dropping a topic needs of it."""

    @property
    def name(self) -> TopicName: ...

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more."""


@dataclass(slots=True)
class SharedServices:
    """The broker's services as its topics see them.

    `settings` is replaced when a dynamic key changes.
    """

    settings: Settings
    clock_ms: Callable[[], int]
    ledger_client: LedgerClient
    metadata: MetadataStore
    ledger_options: LedgerOptions
    cache: EntryCache[Entry]
    policies: PolicyStore
    producer_name_prefix: str
    """Prefix of made-up names; unique for this run of the broker."""
    forget_topic: Callable[[OwnedTopic], None]
    """Drops a topic that has another owner now."""
    consumer_rates: Callable[[Any], ConsumerRates] = lambda _: ConsumerRates()
    """Rates of a `Consumer`; all 0 while nobody samples it."""
    disk_space: DiskSpace = field(default_factory=DiskSpace.unwatched)
    """Knows whether there is room for messages."""
    namespaces: Namespaces = field(init=False)
    lease: Lease = field(init=False)
    audit: BrokerAudit = field(init=False)
    publish_buffer: PublishBuffer = field(init=False)
    delayed_lanes: StorageLanes = field(default_factory=StorageLanes, init=False)
    waits: Waits = field(default_factory=Waits, init=False)
    latencies: Latencies = field(default_factory=Latencies, init=False)
    tracing: Tracing | None = field(default=None, init=False)
    """None: tracing is off."""
    clock_us: Callable[[], int] = field(init=False)
    """Clock of the delivery journal; by default as exact as `clock_ms`."""
    journal_pace: JournalPace = field(default_factory=JournalPace, init=False)
    _producer_names: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.namespaces = Namespaces(self.metadata)
        self.publish_buffer = PublishBuffer(publish_buffer_bytes(self.settings.broker))
        self.audit = BrokerAudit(self)
        self.lease = Lease(self.metadata)
        self.clock_us = lambda: self.clock_ms() * 1_000

    def next_producer_name(self) -> str:
        """Make up a name for a producer that has none."""
        self._producer_names += 1
        return f"{self.producer_name_prefix}-{self._producer_names}"
