"""Who of an Exclusive or Failover subscription's consumers is served.

Pure. As Pulsar 4: among the consumers of the lowest priority number, in order of their names,

- a topic that is a partition takes the one at *partition index modulo their number*, so that the
  partitions of a topic spread evenly;
- any other topic (and every one with ``activeConsumerFailoverConsistentHashing``) takes the owner
  of the topic name's hash on a ring with 100 points per consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.murmur3 import make_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.dispatcher.dispatcher import ConsumerSpec

_RING_POINTS: Final = 100
"""Points of one consumer; Pulsar's ``CONSUMER_CONSISTENT_HASH_REPLICAS``."""


def choose_active(
    consumers: Mapping[int, ConsumerSpec],
    *,
    topic: str,
    partition_index: int | None,
    by_hash_ring: bool,
) -> int:
    """The consumer to serve. There must be one at least; in order of subscribing."""
    best = min(spec.priority for spec in consumers.values())
    # Sorting is stable: of equal names the earlier consumer comes first.
    candidates = sorted(
        (consumer for consumer, spec in consumers.items() if spec.priority == best),
        key=lambda consumer: consumers[consumer].name,
    )
    if partition_index is not None and not by_hash_ring:
        return candidates[partition_index % len(candidates)]
    ring = {
        make_hash(f"{consumers[consumer].name}{point}".encode()): consumer
        for consumer in candidates
        for point in range(_RING_POINTS)
    }
    topic_hash = make_hash(topic.encode())
    above = [point for point in ring if point >= topic_hash]
    return ring[min(above or ring)]
