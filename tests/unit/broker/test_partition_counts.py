"""Numbers of partitions in a metadata store whose answers are lost, written by two at once."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.broker.cluster.partition_counts import (
    create_partition_count,
    raise_partition_count,
    read_partition_count,
)
from ackgate.broker.wire.names import TopicName
from ackgate.errors import CallerError, NodeExistsError
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore

TOPIC = TopicName.parse("persistent://a/b/odd %2F name ä")


def store(*rules: Rule) -> FaultyMetadataStore:
    return FaultyMetadataStore(MemoryMetadataStore(MemoryTree()), FaultPlan(rules))


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_a_number_whose_making_is_not_answered_is_made_once(fault: Fault) -> None:
    metadata = store(Rule(fault, "metadata.create"))
    await create_partition_count(metadata, TOPIC, 4)
    assert await read_partition_count(metadata, TOPIC) == 4
    with pytest.raises(NodeExistsError):
        await create_partition_count(metadata, TOPIC, 4)


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE, Fault.REPEAT])
async def test_a_rise_that_is_not_answered_is_one_rise(fault: Fault) -> None:
    metadata = store(Rule(fault, "metadata.put"))
    await create_partition_count(metadata, TOPIC, 4)
    assert await raise_partition_count(metadata, TOPIC, 6) == 4
    assert await read_partition_count(metadata, TOPIC) == 6


async def test_of_two_rises_at_once_none_takes_the_other_back() -> None:
    metadata = store(Rule(Fault.DELAY, "metadata.put", seconds=0.01))
    await create_partition_count(metadata, TOPIC, 4)
    low, high = await asyncio.gather(
        raise_partition_count(metadata, TOPIC, 6),  # read before the other's, and written after it
        raise_partition_count(metadata, TOPIC, 8),
        return_exceptions=True,
    )
    assert isinstance(low, CallerError)
    assert high == 4
    assert await read_partition_count(metadata, TOPIC) == 8


async def test_what_is_not_partitioned_is_not_raised() -> None:
    assert await raise_partition_count(store(), TOPIC, 6) == 0
