"""The schemas of topics: which one a client may bring, and its version.

Edge: the versions lie in the metadata store (`versions.py`). A partition has the schemas of its
partitioned topic. Two versions that are created at the same time meet at the store's `create`, and the
later one looks again. A schema that a topic has already keeps its version. Versions travel as 8 bytes,
big-endian, as in Pulsar; producers put them into the metadata of their messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ackgate.broker.schemas.compatibility import (
    check_compatible,
    check_reader,
    fingerprint,
)
from ackgate.broker.schemas.definitions import check_definition
from ackgate.broker.schemas.versions import (
    TOPIC_BYTES_MAX,
    VERSION_BYTES,
    SchemaVersions,
    version_bytes,
)
from ackgate.broker.wire import IncompatibleSchemaError, Schema, StoredSchema
from ackgate.errors import NodeTooLargeError
from ackgate.persistence.nodes.changes import until_won

if TYPE_CHECKING:
    from ackgate.broker.wire import ProducerRequest, ServedTopic, SubscribeRequest, TopicName
    from ackgate.config.broker import BrokerSettings
    from ackgate.persistence.ports import MetadataStore

DEFINITION_BYTES_MAX: Final = 512 * 1024
"""Largest definition: it is stored in one node, in base64, and a node holds about 1 MB."""


class SchemaRegistry:
    """The schemas of all topics: each topic's in numbered versions, kept in the metadata store."""

    def __init__(self, metadata: MetadataStore, *, topic_bytes_max: int = TOPIC_BYTES_MAX) -> None:
        self._versions = SchemaVersions(metadata)
        self._topic_bytes_max = topic_bytes_max

    # ---- reading

    async def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema | None:
        """Read one version, or the latest. None if there is none."""
        number: int | None
        if version is None:
            numbers = await self._versions.numbers(topic)
            number = numbers[-1] if numbers else None
        else:
            number = int.from_bytes(version, "big") if len(version) == 8 else None
        if number is None:
            return None
        stored = await self._versions.read(topic, number)
        if stored is None:
            return None
        # Pulsar names a schema after its topic, whatever name the client gave it.
        base = topic.partitioned
        name = f"{base.namespace_name}/{base.local_name}"
        return stored._replace(schema=replace(stored.schema, name=name))

    async def all(self, topic: TopicName) -> list[StoredSchema]:
        """All versions since the schema was last deleted, oldest first."""
        return list((await self._versions.look(topic)).current)

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
        wanted = _fingerprint(schema)

        async def attempt() -> bytes:  # finds what another, or we, just wrote
            versions = await self._versions.look(topic)
            if (known := versions.by_fingerprint.get(wanted)) is not None:
                return known.version
            check_definition(schema)
            if not is_uploaded and not settings.is_allow_auto_update_schema_enabled:
                raise IncompatibleSchemaError(
                    "Schema not found and schema auto updating is disabled."
                )
            check_compatible(
                schema,
                [stored.schema for stored in versions.current],
                settings.schema_compatibility_strategy,
            )
            size_bytes = versions.size_bytes + VERSION_BYTES + len(schema.definition)
            if size_bytes > self._topic_bytes_max:
                raise IncompatibleSchemaError(
                    f"{topic} has {len(versions.numbers)} versions of its schema, and one more would take"
                    f" them above {self._topic_bytes_max} bytes: delete its schema with force=true"
                )
            try:
                await self._versions.create(topic, versions.next_number, schema)
            except NodeTooLargeError as error:
                raise IncompatibleSchemaError(
                    f"a schema is too large with its properties: {error}"
                ) from error
            return version_bytes(versions.next_number)

        return await until_won(attempt, of=f"the schema of {topic}")

    async def check_next(self, topic: TopicName, schema: Schema, settings: BrokerSettings) -> None:
        """Raise `IncompatibleSchemaError` if this schema may not be the topic's next version."""
        versions = await self._versions.look(topic)
        if _fingerprint(schema) not in versions.by_fingerprint:
            existing = [stored.schema for stored in versions.current]
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
        reader = (_fingerprint(request.schema), strategy)
        versions = await self._versions.look(request.topic)
        if not versions.current and topic.is_idle:
            await self.get_or_create(request.topic, request.schema, settings)
            return
        if strategy == "ALWAYS_COMPATIBLE":
            return
        if not versions.current:
            raise IncompatibleSchemaError(
                "Failed to add schema to an active topic with empty(BYTES) schema:"
                f" new schema type {request.schema.type.name}"
            )
        if reader not in versions.readers:
            if reader[0] not in versions.by_fingerprint:
                check_definition(request.schema)
            check_reader(request.schema, [each.schema for each in versions.current], strategy)
            versions.remember_reader(reader)

    async def mark_deleted(self, topic: TopicName) -> int:
        """End the schema with a version that marks it deleted. Returns that version.

        If there is no schema, it is the version that ended the last one, or 0, and nothing is written.
        Messages stored with older versions keep those, and no later schema reuses their numbers.
        """

        async def attempt() -> int:
            numbers = await self._versions.numbers(topic)
            if not numbers:
                return 0
            latest = numbers[-1]
            if await self._versions.read(topic, latest) is None:
                return latest
            await self._versions.create(topic, latest + 1, None)
            return latest + 1

        return await until_won(attempt, of=f"the schema of {topic}")

    async def delete(self, topic: TopicName) -> None:
        """Delete all versions because the topic is being deleted. It is fine if there are none."""
        await self._versions.delete(topic)


def _fingerprint(schema: Schema) -> bytes:
    """Raises `IncompatibleSchemaError` for a definition too large to be looked at."""
    if len(schema.definition) > DEFINITION_BYTES_MAX:
        raise IncompatibleSchemaError(
            f"a schema of {len(schema.definition)} bytes is above the limit of {DEFINITION_BYTES_MAX}"
        )
    return fingerprint(schema)
