"""The schemas of topics: every version that was ever accepted, in the metadata store.

Edge: owns the nodes below ``/schemas``::

    /schemas/<tenant>/<namespace>/<topic>/<version>     one JSON object each, version 0, 1, 2, ...

A partition has the schemas of its partitioned topic. A version is written once and never changed;
two that are created at the same time meet at the store's `create`, and the later one looks again. A
schema that a topic has already keeps its version. Versions travel as 8 bytes, big-endian, as in
Pulsar; producers put them into the metadata of their messages.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ackgate.broker.schemas.compatibility import (
    check_compatible,
    check_definition,
    check_reader,
    is_same,
)
from ackgate.broker.wire import (
    IncompatibleSchemaError,
    Schema,
    SchemaType,
    StoredSchema,
)
from ackgate.errors import (
    CorruptRecordError,
    NoSuchNodeError,
)
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.nodes.paths import node_of_name

if TYPE_CHECKING:
    from ackgate.broker.wire import ProducerRequest, ServedTopic, SubscribeRequest, TopicName
    from ackgate.config.broker import BrokerSettings
    from ackgate.persistence.ports import MetadataStore

SCHEMAS: Final = "/schemas"

DEFINITION_BYTES_MAX: Final = 512 * 1024
"""Largest definition: it is stored in one node, in base64, and a node holds about 1 MB."""

_FORMAT: Final = 1


class SchemaRegistry:
    """The schemas of all topics: each topic's in numbered versions, kept in the metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    # ---- reading

    async def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema | None:
        """Read one version, or the latest. None if there is none."""
        number: int | None
        if version is None:
            numbers = await self._versions(topic)
            number = numbers[-1] if numbers else None
        else:
            number = int.from_bytes(version, "big") if len(version) == 8 else None
        if number is None:
            return None
        stored = await self._read(topic, number)
        if stored is None:
            return None
        # Pulsar names a schema after its topic, whatever name the client gave it.
        base = topic.partitioned
        name = f"{base.namespace_name}/{base.local_name}"
        return stored._replace(schema=replace(stored.schema, name=name))

    async def all(self, topic: TopicName) -> list[StoredSchema]:
        """All versions since the schema was last deleted, oldest first."""
        found: list[StoredSchema] = []
        for number in await self._versions(topic):
            stored = await self._read(topic, number)
            if stored is None:
                found.clear()
            else:
                found.append(stored)
        return found

    # ---- what producers and consumers bring

    async def for_producer(
        self, request: ProducerRequest, settings: BrokerSettings
    ) -> ProducerRequest:
        """The request with its schema's version filled in. Raises `IncompatibleSchemaError`."""
        version = await self.version_for_producer(request.topic, request.schema, settings)
        return replace(request, schema_version=version) if version else request

    async def version_for_producer(
        self, topic: TopicName, schema: Schema | None, settings: BrokerSettings
    ) -> bytes:
        """The version of a producer's schema, created if new. Empty for a producer without one."""
        if schema is not None:
            return await self.get_or_create(topic, schema, settings)
        if settings.is_schema_validation_enforced and await self.all(topic):
            raise IncompatibleSchemaError(
                f"{topic} has a schema, and producers without one are not allowed there"
            )
        return b""

    async def get_or_create(
        self,
        topic: TopicName,
        schema: Schema,
        settings: BrokerSettings,
        *,
        is_uploaded: bool = False,
    ) -> bytes:
        """The version of this schema, created if the topic does not have it yet.

        `is_uploaded`: by an administrator, and not by a client that connects. Raises
        `IncompatibleSchemaError` if the strategy of the settings does not allow it.
        """
        if len(schema.definition) > DEFINITION_BYTES_MAX:
            raise IncompatibleSchemaError(
                f"a schema of {len(schema.definition)} bytes is above the limit of"
                f" {DEFINITION_BYTES_MAX}"
            )
        check_definition(schema)

        async def attempt() -> bytes:  # finds what another, or we, just wrote
            numbers = await self._versions(topic)
            existing = await self.all(topic)
            for stored in existing:
                if is_same(stored.schema, schema):
                    return stored.version
            if not is_uploaded and not settings.is_allow_auto_update_schema_enabled:
                raise IncompatibleSchemaError(
                    "Schema not found and schema auto updating is disabled."
                )
            check_compatible(
                schema,
                [stored.schema for stored in existing],
                settings.schema_compatibility_strategy,
            )
            number = numbers[-1] + 1 if numbers else 0
            await self._metadata.create(_version_path(topic, number), _encode(schema))
            return version_bytes(number)

        return await until_won(attempt, of=f"the schema of {topic}")

    async def check_next(self, topic: TopicName, schema: Schema, settings: BrokerSettings) -> None:
        """Raise `IncompatibleSchemaError` if this schema may not be the topic's next version."""
        existing = [stored.schema for stored in await self.all(topic)]
        if not any(is_same(each, schema) for each in existing):
            check_compatible(schema, existing, settings.schema_compatibility_strategy)

    async def check_consumer(
        self, request: SubscribeRequest, topic: ServedTopic, settings: BrokerSettings
    ) -> None:
        """Raise `IncompatibleSchemaError` if a consumer cannot read the topic with its schema.

        An unused topic takes the schema of its first consumer.
        """
        strategy = settings.schema_compatibility_strategy
        if request.schema is None:
            return
        existing = [stored.schema for stored in await self.all(request.topic)]
        if not existing and topic.is_idle:
            await self.get_or_create(request.topic, request.schema, settings)
            return
        if strategy == "ALWAYS_COMPATIBLE":
            return
        if not existing:
            raise IncompatibleSchemaError(
                "Failed to add schema to an active topic with empty(BYTES) schema:"
                f" new schema type {request.schema.type.name}"
            )
        check_definition(request.schema)
        check_reader(request.schema, existing, strategy)

    async def mark_deleted(self, topic: TopicName) -> int | None:
        """End the schema with a version that marks it deleted. Returns that;

        None: there is no schema.

        Messages stored with older versions keep those, and no later schema reuses their numbers.
        """
        tried: int | None = None

        async def attempt() -> int | None:
            nonlocal tried
            numbers = await self._versions(topic)
            if not numbers:
                return None
            latest = numbers[-1]
            if await self._read(topic, latest) is None:
                return latest if latest == tried else None  # ours, which was not answered
            number = tried = latest + 1
            await self._metadata.create(_version_path(topic, number), _encode(None))
            return number

        return await until_won(attempt, of=f"the schema of {topic}")

    async def delete(self, topic: TopicName) -> None:
        """Delete all versions because the topic is being deleted. It is fine if there are none."""
        paths = [_version_path(topic, number) for number in await self._versions(topic)]
        for path in [*paths, _topic_path(topic)]:
            try:
                await self._metadata.delete(path)
            except NoSuchNodeError:
                continue

    # ---- nodes

    async def _versions(self, topic: TopicName) -> list[int]:
        names = await self._metadata.children(_topic_path(topic))
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    async def _read(self, topic: TopicName, number: int) -> StoredSchema | None:
        path = _version_path(topic, number)
        node = await self._metadata.get(path)
        return None if node is None else _decode(node.value, path, version_bytes(number))


def version_bytes(number: int) -> bytes:
    """A version as clients and brokers send it: 8 bytes, big-endian."""
    return number.to_bytes(8, "big")


def _topic_path(topic: TopicName) -> str:
    base = topic.partitioned
    names = (base.tenant, base.namespace, base.local_name)
    return "/".join((SCHEMAS, *map(node_of_name, names)))


def _version_path(topic: TopicName, number: int) -> str:
    return f"{_topic_path(topic)}/{number}"


def _encode(schema: Schema | None) -> bytes:
    """The value of a version's node. None marks the schema as deleted.

    Earlier releases, which cannot delete schemas, read that as one of type NONE.
    """
    is_deleted = schema is None
    schema = schema or Schema("", SchemaType.NONE, b"", {})
    fields = {
        "format": _FORMAT,
        "name": schema.name,
        "type": schema.type.name,
        "definition": base64.b64encode(schema.definition).decode(),
        "properties": dict(schema.properties),
        "created_ms": time.time_ns() // 1_000_000,
        **({"deleted": True} if is_deleted else {}),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode(value: bytes, path: str, version: bytes) -> StoredSchema | None:
    try:
        fields = json.loads(value)
        if fields["format"] != _FORMAT:
            raise CorruptRecordError(f"{path}: unknown format {fields['format']!r} of a schema")
        if fields.get("deleted") is True:
            return None
        schema = Schema(
            name=fields["name"],
            type=SchemaType[fields["type"]],
            definition=base64.b64decode(fields["definition"]),
            properties=fields["properties"],
        )
        return StoredSchema(schema, version, int(fields.get("created_ms", 0)))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"{path}: not a stored schema: {error!r}") from error
