"""GET_SCHEMA and GET_OR_CREATE_SCHEMA.

Edge: asks the schema registry. Failures have their own replies, with Pulsar's codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.broker import replies, requests
from ackgate.broker.errors import IncompatibleSchemaError, TopicNotFoundError

if TYPE_CHECKING:
    from ackgate.broker.proto import pulsar_pb2 as pb
    from ackgate.broker.session import Session


def get_schema(session: Session, command: pb.CommandGetSchema) -> None:
    """GET_SCHEMA: the latest version or the one asked for."""
    topic = requests.topic_name(command.topic)
    if command.HasField("schema_version") and not command.schema_version:
        raise IncompatibleSchemaError("Empty schema version")

    async def answer() -> bytes:
        found = await session.context.schemas.get(topic, command.schema_version or None)
        if found is None:
            raise TopicNotFoundError(f"Topic not found or no-schema {topic}")
        return replies.schema_found(command.request_id, found.schema, found.version)

    session.run(command.request_id, answer(), replies.schema_not_found)


def get_or_create_schema(session: Session, command: pb.CommandGetOrCreateSchema) -> None:
    """GET_OR_CREATE_SCHEMA: the version of this schema, a new one if it was not known."""
    topic = requests.topic_name(command.topic)
    schema = requests.schema(command.schema)

    async def answer() -> bytes:
        await session.context.registry.topic(topic, create=False)
        version = await session.context.schemas.version_for_producer(
            topic, schema, session.settings
        )
        return replies.schema_created(command.request_id, version)

    session.run(command.request_id, answer(), replies.schema_refused)
