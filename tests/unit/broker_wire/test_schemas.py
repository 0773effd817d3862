"""Schemas are versioned, kept, and compared by the strategy of the settings."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ackgate.broker.admin.schemas import schema_in
from ackgate.broker.schemas.compatibility import (
    check_compatible,
    check_reader,
    is_same,
)
from ackgate.broker.schemas.definitions import check_definition
from ackgate.broker.schemas.registry import DEFINITION_BYTES_MAX, SchemaRegistry
from ackgate.broker.schemas.versions import (
    READS_AT_ONCE_MAX,
    TOPIC_BYTES,
    VERSION_BYTES,
    SchemaVersions,
    version_bytes,
)
from ackgate.broker.wire.errors import IncompatibleSchemaError
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import (
    ProducerRequest,
    Schema,
    SchemaType,
    SubscribeRequest,
    SubscriptionType,
)
from ackgate.config.broker import BrokerSettings
from ackgate.errors import CorruptRecordError, MetadataStoreError, NodeExistsError
from ackgate.persistence import MemoryMetadataStore
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.memory_topics import MemoryTopic

if TYPE_CHECKING:
    from ackgate.persistence.ports import MetadataStore, NodeValue

DEFINITIONS = Path(__file__).with_name("pulsar-4.0.7-definitions.jsonl")
TOPIC = TopicName.parse("orders")
SETTINGS = BrokerSettings()
ALL = ["ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"]


def avro(*fields: dict[str, Any], schema_type: SchemaType = SchemaType.AVRO) -> Schema:
    definition = {"type": "record", "name": "Order", "fields": list(fields)}
    return Schema("Order", schema_type, json.dumps(definition).encode())


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OPTIONAL = {"name": "b", "type": "int", "default": 0}


def key_value(key: Schema, value: Schema) -> Schema:
    definition = b"".join(
        len(part.definition).to_bytes(4, "big") + part.definition for part in (key, value)
    )
    properties = {"key.schema.type": key.type.name, "value.schema.type": value.type.name}
    return Schema("kv", SchemaType.KEY_VALUE, definition, properties)


@pytest.mark.parametrize(
    ("new", "allowed_by"),
    [
        (avro(A, B_OPTIONAL), ALL),
        (avro(A, B), ["ALWAYS_COMPATIBLE", "FORWARD"]),
        (avro(), ["ALWAYS_COMPATIBLE", "BACKWARD"]),
        (avro({"name": "a", "type": "string"}), ["ALWAYS_COMPATIBLE"]),
        (Schema("s", SchemaType.STRING, b""), ["ALWAYS_COMPATIBLE"]),
        (avro(A, B_OPTIONAL, schema_type=SchemaType.JSON), ["ALWAYS_COMPATIBLE"]),
    ],
)
def test_strategies(new: Schema, allowed_by: list[str]) -> None:
    for strategy in [*ALL, "ALWAYS_INCOMPATIBLE"]:
        if strategy in allowed_by:
            check_compatible(new, [avro(A)], strategy)  # type: ignore[arg-type]
        else:
            with pytest.raises(IncompatibleSchemaError):
                check_compatible(new, [avro(A)], strategy)  # type: ignore[arg-type]


def test_transitive_strategies_look_at_every_version() -> None:
    versions = [avro(A, B), avro(A, B_OPTIONAL)]
    new = avro(A)
    check_compatible(new, versions, "FULL")
    with pytest.raises(IncompatibleSchemaError, match="b: has no default"):
        check_compatible(new, versions, "FULL_TRANSITIVE")


def test_the_first_schema_is_compatible_with_nothing_to_compare() -> None:
    check_compatible(avro(A), [], "ALWAYS_INCOMPATIBLE")


def test_key_value_schemas_are_compared_part_by_part() -> None:
    key = Schema("k", SchemaType.STRING, b"")
    old = key_value(key, avro(A))
    check_compatible(key_value(key, avro(A, B_OPTIONAL)), [old], "FULL")
    with pytest.raises(IncompatibleSchemaError):
        check_compatible(key_value(key, avro(A, B)), [old], "FULL")
    with pytest.raises(IncompatibleSchemaError, match="cannot be read as"):
        check_compatible(key_value(Schema("k", SchemaType.INT32, b""), avro(A)), [old], "BACKWARD")


@pytest.mark.parametrize("definition", [b"", b"\x00\x00\x00\x09abc", b"\x00\x00\x00\x00\x00"])
def test_a_torn_key_value_schema_is_refused(definition: bytes) -> None:
    torn = Schema("kv", SchemaType.KEY_VALUE, definition)
    with pytest.raises(IncompatibleSchemaError, match="does not hold two"):
        check_compatible(torn, [torn], "FULL")


def test_a_consumer_must_be_able_to_read_what_is_there() -> None:
    check_reader(avro(A, B_OPTIONAL), [avro(A)], "FULL")
    check_reader(avro(A), [avro(A), avro(A, B_OPTIONAL)], "BACKWARD_TRANSITIVE")
    check_reader(avro(A, B), [avro(A), avro(A, B)], "FULL")
    check_reader(avro(A, B), [avro(A)], "ALWAYS_COMPATIBLE")
    with pytest.raises(IncompatibleSchemaError):
        check_reader(avro(A, B), [avro(A), avro(A, B)], "BACKWARD_TRANSITIVE")
    with pytest.raises(IncompatibleSchemaError):
        check_reader(avro(A, B), [avro(A)], "FORWARD")
    with pytest.raises(IncompatibleSchemaError):
        check_reader(avro(A, B), [avro(A)], "BACKWARD")
    with pytest.raises(IncompatibleSchemaError):
        check_reader(Schema("s", SchemaType.STRING, b""), [avro(A)], "FORWARD")


def test_the_same_json_in_other_words_is_the_same_schema() -> None:
    one = Schema("x", SchemaType.JSON, b'{"type":"record","name":"R","fields":[]}')
    other = Schema("y", SchemaType.JSON, b'{ "name": "R", "fields": [], "type": "record" }')
    assert is_same(one, other)
    assert not is_same(one, Schema("x", SchemaType.AVRO, one.definition))
    assert not is_same(Schema("x", SchemaType.STRING, b"1"), Schema("x", SchemaType.STRING, b"1.0"))


def test_descriptions_and_long_forms_make_no_other_schema() -> None:
    """As Pulsar 4.0.7: each of these keeps the version of the first."""
    first = avro(A)
    assert is_same(first, avro({**A, "doc": "what it is"}))
    assert is_same(first, avro({**A, "type": {"type": "int"}}))
    assert not is_same(first, avro({**A, "type": {"type": "int", "logicalType": "date"}}))
    one, other = ({**A, "type": "R", "default": {"doc": each}} for each in ("x", "y"))
    assert not is_same(avro(one), avro(other))


@pytest.mark.parametrize("is_accepted", [True, False])
def test_definitions_are_valid_where_pulsar_says_so(is_accepted: bool) -> None:
    """Each was uploaded to Pulsar 4.0.7."""
    rows = [json.loads(line) for line in DEFINITIONS.read_text().splitlines()]
    rows = [row for row in rows if row["accepted"] is is_accepted]
    assert len(rows) > 60
    differences = []
    for row in rows:
        schema = schema_in(row, "x")
        try:
            check_definition(schema)
        except IncompatibleSchemaError:
            if is_accepted:
                differences.append(row)
        else:
            if not is_accepted:
                differences.append(row)
    assert not differences


async def test_a_definition_that_was_stored_before_it_was_checked_is_still_used() -> None:
    """Earlier releases took a field twice."""
    metadata = MemoryMetadataStore()
    twice = avro(A, A)
    other = await _encoded(avro(A))
    value = other.replace(*(base64.b64encode(each.definition) for each in (avro(A), twice)))
    await metadata.create("/schemas/public/default/orders/0", value)
    registry = SchemaRegistry(metadata)
    assert await registry.get_or_create(TOPIC, twice, SETTINGS) == version_bytes(0)
    request = SubscribeRequest(TOPIC, "s", 1, SubscriptionType.SHARED, "", schema=twice)
    await registry.check_consumer(request, MemoryTopic(TOPIC, keeps_acks=False), SETTINGS)
    assert await registry.get_or_create(TOPIC, avro(A), SETTINGS) == version_bytes(1)
    with pytest.raises(IncompatibleSchemaError, match="field a is there twice"):
        await registry.get_or_create(TOPIC, avro(A, A, B_OPTIONAL), SETTINGS)


async def test_the_same_schema_has_the_same_version() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    assert await registry.get(TOPIC) is None
    first = await registry.get_or_create(TOPIC, avro(A), SETTINGS)
    second = await registry.get_or_create(TOPIC, avro(A, B_OPTIONAL), SETTINGS)
    assert (first, second) == (version_bytes(0), version_bytes(1))
    assert await registry.get_or_create(TOPIC, avro(A), SETTINGS) == first
    found = await registry.get(TOPIC)
    assert found is not None
    assert found.version == second
    assert found.schema.definition == avro(A, B_OPTIONAL).definition
    assert found.schema.name == "public/default/orders"
    assert await registry.get(TOPIC, first) is not None
    assert await registry.get(TOPIC, version_bytes(2)) is None
    assert await registry.get(TOPIC, b"short") is None


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_a_schema_whose_storing_is_not_answered_is_stored_once(fault: Fault) -> None:
    plan = FaultPlan([Rule(fault, "metadata.create")])
    registry = SchemaRegistry(FaultyMetadataStore(MemoryMetadataStore(), plan))
    assert await registry.get_or_create(TOPIC, avro(A), SETTINGS) == version_bytes(0)
    assert len(await registry.all(TOPIC)) == 1


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_a_schema_whose_end_is_not_answered_ends_once(fault: Fault) -> None:
    store = MemoryMetadataStore()
    plan = FaultPlan([Rule(fault, "metadata.create", "*/1")])
    registry = SchemaRegistry(FaultyMetadataStore(store, plan))
    assert await registry.mark_deleted(TOPIC) == 0
    await registry.get_or_create(TOPIC, avro(A), SETTINGS)
    assert await registry.mark_deleted(TOPIC) == 1
    assert await registry.mark_deleted(TOPIC) == 1
    assert len(await store.children("/schemas/public/default/orders")) == 2


async def test_schemas_outlive_the_registry_and_partitions_share_them() -> None:
    metadata = MemoryMetadataStore()
    await SchemaRegistry(metadata).get_or_create(TOPIC.partition(3), avro(A), SETTINGS)
    again = SchemaRegistry(metadata)
    assert (await again.get(TOPIC.partition(1))) == (await again.get(TOPIC))
    assert await again.get(TopicName.parse("other")) is None


async def test_a_boolean_that_an_earlier_build_stored_is_still_the_same_schema() -> None:
    metadata = MemoryMetadataStore()
    boolean = Schema("b", SchemaType.BOOLEAN, b"")
    await SchemaRegistry(metadata).get_or_create(TOPIC, boolean, SETTINGS)
    path = "/schemas/public/default/orders/0"
    node = await metadata.get(path)
    assert node is not None
    assert b'"type":"BOOLEAN"' in node.value
    earlier = node.value.replace(b"BOOLEAN", b"BOOL")
    await metadata.put(path, earlier, expected_version=node.version)

    registry = SchemaRegistry(metadata)
    assert await registry.get_or_create(TOPIC, boolean, SETTINGS) == version_bytes(0)
    (stored,) = await registry.all(TOPIC)
    assert stored.schema.type is SchemaType.BOOLEAN


def test_a_pair_with_a_boolean_key_is_not_one_with_a_text_as_key() -> None:
    kinds = (SchemaType.BOOLEAN, SchemaType.STRING)
    boolean, text = (key_value(Schema("k", kind, b""), avro(A)) for kind in kinds)
    check_compatible(boolean, [boolean], "FULL")
    with pytest.raises(IncompatibleSchemaError, match="STRING cannot be read as BOOLEAN"):
        check_compatible(boolean, [text], "BACKWARD")


async def test_an_incompatible_schema_is_refused_and_changes_nothing() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    await registry.get_or_create(TOPIC, avro(A), SETTINGS)
    with pytest.raises(IncompatibleSchemaError):
        await registry.get_or_create(TOPIC, avro(A, B), SETTINGS)
    with pytest.raises(IncompatibleSchemaError, match="not a schema"):
        await registry.get_or_create(TOPIC, Schema("x", SchemaType.AVRO, b"{"), SETTINGS)
    with pytest.raises(IncompatibleSchemaError, match="above the limit"):
        large = Schema("x", SchemaType.STRING, bytes(DEFINITION_BYTES_MAX + 1))
        await registry.get_or_create(TOPIC, large, SETTINGS)
    assert len(await registry.all(TOPIC)) == 1


async def test_properties_that_do_not_fit_beside_the_definition_are_refused() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    large = Schema("x", SchemaType.STRING, b"", {"note": "x" * 2_000_000})
    with pytest.raises(IncompatibleSchemaError, match="properties"):
        await registry.get_or_create(TOPIC, large, SETTINGS)
    assert await registry.all(TOPIC) == []


async def test_a_consumer_may_bring_no_larger_definition_than_a_producer() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    await registry.get_or_create(TOPIC, avro(A), SETTINGS)
    large = avro({**A, "doc": "x" * DEFINITION_BYTES_MAX})
    request = SubscribeRequest(TOPIC, "s", 1, SubscriptionType.SHARED, "", schema=large)
    with pytest.raises(IncompatibleSchemaError, match="above the limit"):
        await registry.check_consumer(request, MemoryTopic(TOPIC, keeps_acks=False), SETTINGS)


async def test_updates_can_be_switched_off() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    fixed = BrokerSettings(is_allow_auto_update_schema_enabled=False)
    with pytest.raises(IncompatibleSchemaError, match="auto updating is disabled"):
        await registry.get_or_create(TOPIC, avro(A), fixed)
    version = await registry.get_or_create(TOPIC, avro(A), SETTINGS)
    assert await registry.get_or_create(TOPIC, avro(A), fixed) == version


async def test_producers_without_a_schema_are_refused_only_when_that_is_enforced() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    enforced = BrokerSettings(is_schema_validation_enforced=True)
    bare = ProducerRequest(TOPIC, 1, None)
    assert (await registry.for_producer(bare, enforced)).schema_version == b""
    described = ProducerRequest(TOPIC, 1, None, schema=avro(A))
    assert (await registry.for_producer(described, enforced)).schema_version == version_bytes(0)
    assert (await registry.for_producer(bare, SETTINGS)).schema_version == b""
    with pytest.raises(IncompatibleSchemaError, match="without one"):
        await registry.for_producer(bare, enforced)


async def test_a_version_that_somebody_else_took_is_not_overwritten() -> None:
    class Racing(MemoryMetadataStore):
        """Somebody else creates version 0 between our look and our create."""

        async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
            if path.endswith("/0") and not await self.children(path.rpartition("/")[0]):
                other = await _encoded(avro(A, B_OPTIONAL))
                await super().create(path, other)
                raise NodeExistsError(path)
            await super().create(path, value, ephemeral=ephemeral)

    registry = SchemaRegistry(Racing())
    assert await registry.get_or_create(TOPIC, avro(A), SETTINGS) == version_bytes(1)


async def _encoded(schema: Schema) -> bytes:
    metadata = MemoryMetadataStore()
    await SchemaRegistry(metadata).get_or_create(TOPIC, schema, SETTINGS)
    node = await metadata.get("/schemas/public/default/orders/0")
    assert node is not None
    return node.value


async def test_a_deleted_topic_forgets_its_schemas() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    await registry.delete(TOPIC)
    await registry.get_or_create(TOPIC, avro(A), SETTINGS)
    await registry.delete(TOPIC)
    assert await registry.get(TOPIC) is None
    assert await registry.get_or_create(TOPIC, avro(B), SETTINGS) == version_bytes(0)


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_a_deletion_that_is_not_answered_goes_on(fault: Fault) -> None:
    plan = FaultPlan([Rule(fault, "metadata.delete", f"*/{name}") for name in ("0", "1", "orders")])
    stored = MemoryMetadataStore()
    await store_versions(stored, 3)
    await SchemaRegistry(FaultyMetadataStore(stored, plan)).delete(TOPIC)
    assert await stored.children("/schemas/public/default") == []


async def test_a_version_that_comes_while_the_others_are_deleted_goes_too() -> None:
    class Racing(MemoryMetadataStore):
        async def delete(self, path: str, *, expected_version: int | None = None) -> None:
            if path.endswith("/2"):
                await SchemaRegistry(self).get_or_create(TOPIC, version(9), SETTINGS)
            await super().delete(path, expected_version=expected_version)

    stored = Racing()
    await store_versions(stored, 3)
    await SchemaRegistry(stored).delete(TOPIC)
    assert await stored.children("/schemas/public/default") == []


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b'{"format": 2}', b'{"format": 1}', b"[]"])
async def test_a_node_that_is_no_schema_is_corrupt(value: bytes) -> None:
    metadata = MemoryMetadataStore()
    await metadata.create("/schemas/public/default/orders/0", value)
    with pytest.raises(CorruptRecordError, match="/schemas/public/default/orders/0"):
        await SchemaRegistry(metadata).get(TOPIC)


def version(number: int) -> Schema:
    """A schema that is compatible with every other one of these."""
    return avro({**B_OPTIONAL, "default": number})


async def store_versions(metadata: MetadataStore, count: int, topic: TopicName = TOPIC) -> None:
    registry = SchemaRegistry(metadata)
    for number in range(count):
        await registry.get_or_create(topic, version(number), SETTINGS)


async def test_a_thousand_producers_of_a_schema_with_a_hundred_versions_read_little() -> None:
    stored, plan = MemoryMetadataStore(), FaultPlan()
    await store_versions(stored, 100)
    registry = SchemaRegistry(FaultyMetadataStore(stored, plan))
    request = ProducerRequest(TOPIC, 1, None, schema=version(50))
    asked = (registry.for_producer(request, SETTINGS) for _ in range(1000))
    for found in await asyncio.gather(*asked):
        assert found.schema_version == version_bytes(50)
    assert plan.calls == 101
    plan.calls = 0
    for _ in range(10):  # one after another, each makes sure of what is cached
        await registry.for_producer(request, SETTINGS)
    assert plan.calls == 20


async def test_a_thousand_consumers_with_a_schema_of_a_hundred_versions_read_little() -> None:
    stored, plan = MemoryMetadataStore(), FaultPlan()
    await store_versions(stored, 100)
    registry = SchemaRegistry(FaultyMetadataStore(stored, plan))
    request = SubscribeRequest(TOPIC, "s", 1, SubscriptionType.SHARED, "", schema=version(50))
    topic = MemoryTopic(TOPIC, keeps_acks=False)
    asked = (registry.check_consumer(request, topic, SETTINGS) for _ in range(1000))
    await asyncio.gather(*asked)
    assert plan.calls == 101


async def test_a_consumer_that_could_read_a_topic_cannot_read_a_version_that_came_later() -> None:
    registry = SchemaRegistry(MemoryMetadataStore())
    always = BrokerSettings(schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    topic = MemoryTopic(TOPIC, keeps_acks=False)
    request = SubscribeRequest(TOPIC, "s", 1, SubscriptionType.SHARED, "", schema=avro(A))
    await registry.get_or_create(TOPIC, avro(A, B_OPTIONAL), SETTINGS)
    await registry.check_consumer(request, topic, SETTINGS)
    await registry.check_consumer(request, topic, SETTINGS)
    await registry.get_or_create(TOPIC, avro(B), always)
    with pytest.raises(IncompatibleSchemaError, match="a: has no default"):
        await registry.check_consumer(request, topic, SETTINGS)


async def test_only_new_versions_are_read() -> None:
    stored, plan = MemoryMetadataStore(), FaultPlan()
    await store_versions(stored, 20)
    registry = SchemaRegistry(FaultyMetadataStore(stored, plan))
    assert len(await registry.all(TOPIC)) == 20
    await SchemaRegistry(stored).get_or_create(TOPIC, version(20), SETTINGS)
    plan.calls = 0
    assert len(await registry.all(TOPIC)) == 21
    assert plan.calls == 3


async def test_what_another_broker_writes_is_seen_at_once() -> None:
    stored = MemoryMetadataStore()
    one, other = SchemaRegistry(stored), SchemaRegistry(stored)
    await store_versions(stored, 3)
    assert len(await one.all(TOPIC)) == 3
    assert await other.mark_deleted(TOPIC) == 3
    assert await one.all(TOPIC) == []
    assert await one.get_or_create(TOPIC, avro(B), SETTINGS) == version_bytes(4)

    await other.delete(TOPIC)
    await store_versions(stored, 5)
    assert await one.all(TOPIC) == await other.all(TOPIC)
    assert await one.get_or_create(TOPIC, version(3), SETTINGS) == version_bytes(3)

    await other.delete(TOPIC)  # and then the same numbers with other schemas
    for number in range(4, -1, -1):
        await other.get_or_create(TOPIC, version(number), SETTINGS)
    assert await one.all(TOPIC) == await other.all(TOPIC)
    assert await one.get_or_create(TOPIC, version(3), SETTINGS) == version_bytes(1)

    await other.delete(TOPIC)
    assert await one.all(TOPIC) == []


async def test_versions_are_read_side_by_side_but_not_all_at_once() -> None:
    class Counting(MemoryMetadataStore):
        reading = reading_max = 0

        async def get(self, path: str) -> NodeValue | None:
            self.reading += 1
            self.reading_max = max(self.reading, self.reading_max)
            await asyncio.sleep(0)
            self.reading -= 1
            return await super().get(path)

    stored = Counting()
    await store_versions(stored, 40)
    stored.reading_max = 0
    assert len(await SchemaRegistry(stored).all(TOPIC)) == 40
    assert stored.reading_max == READS_AT_ONCE_MAX


async def test_those_who_ask_at_the_same_time_share_a_failure() -> None:
    stored, plan = MemoryMetadataStore(), FaultPlan([Rule(Fault.FAIL, times=None)])
    registry = SchemaRegistry(FaultyMetadataStore(stored, plan))
    asked = (registry.all(TOPIC) for _ in range(100))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, MetadataStoreError) for answer in answers)
    assert plan.calls == 1
    plan.is_quiet = True
    assert await registry.all(TOPIC) == []


async def test_a_client_that_goes_while_its_schema_is_read_disturbs_nobody() -> None:
    stored, plan = MemoryMetadataStore(), FaultPlan([Rule(Fault.DELAY, seconds=0.01)])
    await store_versions(stored, 2)
    registry = SchemaRegistry(FaultyMetadataStore(stored, plan))
    gone, stays = (asyncio.create_task(registry.all(TOPIC)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert len(await stays) == 2
    assert gone.cancelled()


async def test_topics_asked_for_last_stay_cached() -> None:
    stored, plan = MemoryMetadataStore(), FaultPlan()
    topics = [TopicName.parse(f"t{number}") for number in range(3)]
    for topic in topics:
        await store_versions(stored, 3, topic)
    size_bytes = TOPIC_BYTES + (await SchemaVersions(stored).look(topics[0])).size_bytes
    faulty = FaultyMetadataStore(stored, plan)
    versions = SchemaVersions(faulty, cached_bytes_max=2 * size_bytes)

    async def is_cached(number: int) -> bool:
        plan.calls = 0
        assert len((await versions.look(topics[number])).current) == 3
        return plan.calls == 2

    assert [await is_cached(each) for each in (0, 1, 0, 2, 0, 1)] == [
        False, False, True, False, True, False,
    ]  # fmt: skip


async def test_versions_of_a_topic_may_not_become_more_than_can_be_kept() -> None:
    registry = SchemaRegistry(MemoryMetadataStore(), topic_bytes_max=10 * VERSION_BYTES)
    with pytest.raises(IncompatibleSchemaError, match=r"has 8 versions .* force=true"):
        for number in range(20):
            await registry.get_or_create(TOPIC, version(number), SETTINGS)
    assert await registry.get_or_create(TOPIC, version(7), SETTINGS) == version_bytes(7)
    await registry.delete(TOPIC)
    assert await registry.get_or_create(TOPIC, version(8), SETTINGS) == version_bytes(0)


def test_a_number_in_other_words_is_another_default() -> None:
    """As Pulsar 4.0.7."""
    one, other = (avro({"name": "d", "type": "double", "default": each}) for each in (1, 1.0))
    assert not is_same(one, other)
