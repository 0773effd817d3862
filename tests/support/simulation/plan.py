"""What one seed stands for: sizes, settings, and how often what goes wrong. Pure."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.config.delayed import BUCKET_FACTORY, IN_MEMORY_FACTORY
from ackgate.config.settings import Given, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run needs to know beside its seed."""

    brokers: int
    is_owned: bool
    """Brokers own bundles, as in production; otherwise every broker opens any topic at any time, and
    two owners at once are the rule."""
    bookies: int
    write_quorum: int
    ack_quorum: int
    topics: int
    messages: int
    """Per topic."""
    batch_max: int
    subscriptions: tuple[str, ...]
    """Types, one subscription of each on every topic."""
    consumers: int
    """Per subscription."""
    deduplication: bool
    gate: bool
    strict: bool
    ranges_max: int
    node_ranges_max: int
    batch_indexes_max: int
    batch_index_acks: bool
    resume_ranges: int
    compression: str
    deltas_max: int
    cursor_entries_max: int
    message_entries_max: int
    linger_ms: int
    receipt_share: float
    permits: int
    seeks: float
    """Chance per step of a consumer."""
    unsubscribes: float
    nacks: float
    backoff_ms: int
    """Least delay of the namespace's policy `redeliveryBackoff`; 0: none."""
    delays: float
    """Share of entries that are published with a time of delivery."""
    delay_ms_max: int
    """How far ahead that is at the most."""
    delay_tick_ms: int
    delay_strict: bool
    delay_buckets: int
    """Entries that make a bucket of the delayed ones be sealed; 0: they are kept in memory."""
    buckets_max: int
    holds: float
    """Share of messages that wait for their ack."""
    fault_seconds: float
    """Mean time between faults."""
    busy_seconds: float
    """How long faults go on."""
    faults: Mapping[str, float]
    """Weights by kind."""
    session_timeout_seconds: float
    operation_timeout_seconds: float
    receipt_timeout_seconds: int
    journal_bytes_max: int
    write_cache_bytes_max: int
    open_files_max: int
    block_bytes: int
    checkpoint_idle_seconds: float
    cache_bytes: int
    disk_ms: float
    network_ms: float
    metadata_ms: float
    crash_share: float
    """Chance that an operation of the disk is a broker's last one, while faults go on."""

    @property
    def is_alone(self) -> bool:
        """One broker at a time."""
        return self.brokers == 1

    @property
    def kept_ranges(self) -> int:
        """Ranges that every way of persisting keeps."""
        return min(self.ranges_max, self.node_ranges_max)

    def __str__(self) -> str:
        values = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return "\n".join(f"    {value}" for value in values)

    def policies(self) -> Mapping[str, object]:
        """Those of the namespace."""
        if not self.backoff_ms:
            return {}
        backoff = {"minDelayMs": self.backoff_ms, "maxDelayMs": 2_000, "multiplier": 2, "jitter": 0}
        return {"redeliveryBackoff": backoff}

    def settings(self) -> Settings:
        """The brokers' configuration."""
        texts = {
            "managedLedgerMaxUnackedRangesToPersist": self.ranges_max,
            "managedLedgerMaxUnackedRangesToPersistInMetadataStore": self.node_ranges_max,
            "managedLedgerMaxBatchDeletedIndexToPersist": self.batch_indexes_max,
            "acknowledgmentAtBatchIndexLevelEnabled": self.batch_index_acks,
            "managedCursorInfoCompressionType": self.compression,
            "managedCursorInfoCompressionThresholdInBytes": 0,
            "cursorDeltasPerSnapshotMax": self.deltas_max,
            "managedLedgerCursorMaxEntriesPerLedger": self.cursor_entries_max,
            "managedLedgerCursorRolloverTimeInSeconds": 20,
            "managedLedgerCursorPositionFlushSeconds": 5,
            "managedLedgerMaxEntriesPerLedger": self.message_entries_max,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            "ackPersistLingerMs": self.linger_ms,
            "ackReceiptTimeoutSeconds": self.receipt_timeout_seconds,
            "fallbackRateLimit": 5,
            "managedLedgerDefaultEnsembleSize": min(self.bookies, max(self.write_quorum, 2)),
            "managedLedgerDefaultWriteQuorum": self.write_quorum,
            "managedLedgerDefaultAckQuorum": self.ack_quorum,
            "dispatcherPauseOnAckStatePersistentEnabled": self.gate,
            "dispatcherPauseOnAckStateStrictEnabled": self.strict,
            "dispatcherPauseOnAckStateResumeRanges": self.resume_ranges,
            "ackStatePersistFailurePauseSeconds": 2,
            "dispatcherMaxReadBatchSize": 20,
            "dispatcherMaxRoundRobinBatchSize": 5,
            "activeConsumerFailoverDelayTimeMillis": 100,
            "brokerDeduplicationEnabled": self.deduplication,
            "brokerDeduplicationEntriesInterval": 10,
            "retentionCheckIntervalInSeconds": 3,
            "brokerDeleteInactiveTopicsEnabled": False,
        }
        if self.delays:
            texts |= self._delay_texts()
        given = {key: Given(_text(value), "plan") for key, value in texts.items()}
        return Settings().with_given(given)

    def _delay_texts(self) -> dict[str, object]:
        return {
            "delayedDeliveryTrackerFactoryClassName": (
                BUCKET_FACTORY if self.delay_buckets else IN_MEMORY_FACTORY
            ),
            "delayedDeliveryTickTimeMillis": self.delay_tick_ms,
            "isDelayedDeliveryDeliverAtTimeStrict": self.delay_strict,
            "delayedDeliveryMinIndexCountPerBucket": max(1, self.delay_buckets),
            "delayedDeliveryMaxIndexCountPerBucket": max(1, 2 * self.delay_buckets),
            "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 2,
            "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": 2,
            "delayedDeliveryMaxNumBuckets": self.buckets_max,
        }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


FAULTS = {
    "kill": 4.0,
    "crash": 3.0,
    "power": 1.0,
    "pause": 1.0,
    "stop": 1.0,
    "cut metadata": 2.0,
    "cut client": 1.0,
    "fail disk": 1.0,
    "fill disk": 0.5,
    "slow disk": 0.5,
    "corrupt": 0.5,
    "switch": 1.0,
    "unload": 0.7,
}


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"plan/{seed}")
    brokers = rng.choice((1, 1, 2, 2, 3))
    bookies = rng.choice((1, 1, 2, 3, 3))
    write_quorum = rng.randint(1, bookies)
    ack_quorum = rng.randint(1, write_quorum)
    gate = rng.random() < 0.6
    ranges_max = rng.choice((3, 5, 10, 50, 10_000, 10_000, 10_000))
    types = ["EXCLUSIVE", "SHARED", "FAILOVER", "KEY_SHARED"]
    subscriptions = tuple(rng.sample(types, rng.randint(1, 2)))
    faults = {kind: weight for kind, weight in FAULTS.items() if rng.random() < 0.7}
    if rng.random() < 0.5:
        faults.pop("corrupt", None)
    elif "corrupt" in faults:
        # What a recovery finds on one bookie only, and cannot write to another, has one copy: to
        # lose that one is beyond what is promised.
        faults.pop("fail disk", None)
        faults.pop("fill disk", None)
    if not faults:
        faults = {"kill": 1.0}
    batch_max = rng.choice((1, 1, 3, 8))
    delays = random.Random(f"delays/{seed}")
    return Plan(
        brokers=brokers,
        is_owned=random.Random(f"owned/{seed}").random() < 0.4,
        bookies=bookies,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        topics=1,
        messages=rng.choice((20, 60, 100)),
        batch_max=batch_max,
        subscriptions=subscriptions,
        consumers=rng.choice((1, 1, 2, 3)),
        deduplication=rng.random() < 0.4,
        gate=gate,
        strict=gate and rng.random() < 0.4,
        ranges_max=ranges_max,
        node_ranges_max=rng.choice((ranges_max, 2, 10_000)),
        batch_indexes_max=rng.choice((2, 10_000, 10_000)),
        batch_index_acks=rng.random() < 0.85,
        resume_ranges=rng.choice((0, 0, max(1, ranges_max // 2))),
        compression=rng.choice(("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")),
        deltas_max=rng.choice((0, 3, 20, 1000)),
        cursor_entries_max=rng.choice((3, 10, 40, 50_000)),
        message_entries_max=rng.choice((5, 20, 50_000)),
        linger_ms=rng.choice((0, 2, 20)),
        receipt_share=rng.choice((0.2, 0.6, 1.0)),
        permits=rng.choice((1, 5, 20, 100)),
        seeks=rng.choice((0.0, 0.0, 0.002)),
        unsubscribes=rng.choice((0.0, 0.0, 0.002)),
        nacks=rng.choice((0.0, 0.1, 0.3)),
        backoff_ms=random.Random(f"backoff/{seed}").choice((0, 0, 20, 300, 1_000)),
        delays=delays.choice((0.0, 0.0, 0.2, 0.7)),
        delay_ms_max=delays.choice((300, 3_000, 12_000)),
        delay_tick_ms=delays.choice((1, 100, 1_000)),
        delay_strict=delays.random() < 0.5,
        delay_buckets=delays.choice((0, 3, 8)),
        buckets_max=delays.choice((-1, 2, 4)),
        holds=rng.choice((0.0, 0.2, 0.6)),
        fault_seconds=rng.choice((0.05, 0.2, 0.5, 2.0)),
        busy_seconds=rng.choice((2.0, 5.0)),
        faults=faults,
        session_timeout_seconds=rng.choice((0.5, 2.0)),
        operation_timeout_seconds=rng.choice((1.0, 5.0)),
        receipt_timeout_seconds=rng.choice((1, 5)),
        journal_bytes_max=rng.choice((4096, 20_000, 1_000_000)),
        write_cache_bytes_max=rng.choice((4096, 20_000, 1_000_000)),
        open_files_max=rng.choice((8, 256)),
        block_bytes=rng.choice((1, 500, 32_768)),
        checkpoint_idle_seconds=rng.choice((0.1, 1.0)),
        cache_bytes=rng.choice((0, 2_000, 10_000_000)),
        disk_ms=rng.choice((0.5, 2.0, 10.0)),
        network_ms=rng.choice((0.2, 2.0, 10.0)),
        metadata_ms=rng.choice((0.5, 3.0, 20.0)),
        crash_share=rng.choice((0.0, 0.0005, 0.002)),
    )
