"""What all topics of one broker share, in one place, so that nothing is global."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.broker.audit import BrokerAudit
from ackgate.broker.delayed.storage_lanes import StorageLanes
from ackgate.broker.journal.pace import JournalPace
from ackgate.broker.lease import Lease
from ackgate.broker.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.broker.entry_cache import EntryCache
    from ackgate.broker.policies import PolicyStore
    from ackgate.broker.topic import Topic
    from ackgate.config.settings import Settings
    from ackgate.persistence.ports import LedgerClient, LedgerOptions, MetadataStore


@dataclass(slots=True)
class BrokerParts:
    """The broker's parts as its topics see them.

    `settings` is replaced when a dynamic key changes.
    """

    settings: Settings
    clock_ms: Callable[[], int]
    ledger_client: LedgerClient
    metadata: MetadataStore
    ledger_options: LedgerOptions
    cache: EntryCache
    policies: PolicyStore
    producer_name_prefix: str
    """Unique for this run of the broker."""
    forget_topic: Callable[[Topic], None]
    """Let go of a topic that somebody else owns now."""
    lease: Lease = field(init=False)
    audit: BrokerAudit = field(init=False)
    delayed_lanes: StorageLanes = field(default_factory=StorageLanes, init=False)
    waits: Waits = field(default_factory=Waits, init=False)
    clock_us: Callable[[], int] = field(init=False)
    """For the delivery journal; as exact as `clock_ms` unless whoever makes the parts knows better."""
    journal_pace: JournalPace = field(default_factory=JournalPace, init=False)
    _producer_names: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.audit = BrokerAudit(self)
        self.lease = Lease(self.metadata)
        self.clock_us = lambda: self.clock_ms() * 1_000

    def next_producer_name(self) -> str:
        """A name for a producer that brought none."""
        self._producer_names += 1
        return f"{self.producer_name_prefix}-{self._producer_names}"
