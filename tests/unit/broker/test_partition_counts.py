"""Numbers of partitions in a metadata store whose answers are lost, written by two at once."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.broker.cluster.partition_counts import (
    change_partitioned_properties,
    create_partition_count,
    partitioned_topic_path,
    raise_partition_count,
    read_partition_count,
    read_partitioned_properties,
    restore_partition_count,
)
from ackgate.broker.wire.names import TopicName
from ackgate.errors import CallerError, CorruptRecordError, NodeExistsError, NoSuchNodeError
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


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_properties_stay_whatever_becomes_of_the_number(fault: Fault) -> None:
    metadata = store(Rule(fault, "metadata.put"))
    await create_partition_count(metadata, TOPIC, 4, {"a": "b"})
    await raise_partition_count(metadata, TOPIC, 6)
    await change_partitioned_properties(metadata, TOPIC, lambda present: {**present, "c": "d"})
    await restore_partition_count(metadata, TOPIC, 8)
    assert await read_partition_count(metadata, TOPIC) == 8
    assert await read_partitioned_properties(metadata, TOPIC) == {"a": "b", "c": "d"}


async def test_a_number_is_restored_where_there_is_no_node() -> None:
    metadata = store()
    assert await read_partitioned_properties(metadata, TOPIC) == {}
    with pytest.raises(NoSuchNodeError):
        await change_partitioned_properties(metadata, TOPIC, lambda _: {"a": "b"})
    await restore_partition_count(metadata, TOPIC, 3)
    assert await read_partition_count(metadata, TOPIC) == 3
    assert await read_partitioned_properties(metadata, TOPIC) == {}


@pytest.mark.parametrize("value", [b"", b"[]", b"7", b"{}", b'{"partitions": "x"}'])
async def test_a_node_that_makes_no_sense_is_named(value: bytes) -> None:
    metadata = store()
    await metadata.create(partitioned_topic_path(TOPIC), value)
    for read in (read_partition_count, read_partitioned_properties):
        with pytest.raises(CorruptRecordError, match="partitioned-topics"):
            await read(metadata, TOPIC)
