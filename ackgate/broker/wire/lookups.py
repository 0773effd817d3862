"""Finding topics and their schemas: PARTITIONED_METADATA, LOOKUP, lists of topics, GET_SCHEMA.

Edge: asks the registry of topics, that of schemas, and who owns a topic. The answer to LOOKUP is the
owner's address; for a free topic it is a redirect to the broker that has to take it, which then gets an
authoritative LOOKUP. Topics owned here are answered from memory.

Topic lists are answered with Pulsar's hash, so that a client that has the same list already gets an
empty answer. A client's regular expression is evaluated here only if it is harmless: Python's
engine backtracks, and a hostile expression would stop the whole broker. Harmless is a short one
without groups and with few repetitions, which is what people write
(``tenant/namespace/orders-.*``). For any other the whole list is sent, marked as unfiltered, and
the client filters, as the protocol allows. Topic watchers are not offered (`CONNECTED` says so);
clients poll instead.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import google_crc32c

from ackgate.broker.wire import replies, requests
from ackgate.broker.wire.errors import (
    BrokerError,
    IncompatibleSchemaError,
    NotAllowedError,
    TopicNotFoundError,
)
from ackgate.broker.wire.names import NamespaceName, TopicName
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.requests import SchemaType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.wire.ports import Connection

PATTERN_CHARACTERS_MAX: Final = 50
"""Pulsar's `subscriptionPatternMaxLength`."""

PATTERN_REPETITIONS_MAX: Final = 2
"""Two repetitions cost at most the square of a name's length; of 24 optional letters the engine tries
16 million combinations."""

_TURN_SECONDS: Final = 0.01
"""How long names are matched before other connections get their turn."""

_REPETITIONS: Final = re.compile(r"[*+?{]")
_SCHEME: Final = re.compile(r"^\^?(?:non-)?persistent://")


def partitioned_metadata(session: Connection, command: pb.CommandPartitionedTopicMetadata) -> None:
    """PARTITIONED_METADATA: how many partitions has a topic?"""
    name = requests.topic_name(command.topic)

    async def answer() -> bytes:
        count = await session.context.registry.partition_count(
            name, create=command.metadata_auto_creation_enabled
        )
        return replies.partitions(command.request_id, count)

    session.run(command.request_id, answer(), replies.partitions_failed)


def lookup(session: Connection, command: pb.CommandLookupTopic) -> None:
    """LOOKUP: which broker serves a topic?"""
    name = requests.topic_name(command.topic)
    owners = session.context.owners
    listener = command.advertised_listener_name or session.listener
    known = owners.location_now(name)
    if known is not None and (known.is_here or not command.authoritative):
        service = owners.reached_by(known, listener)
        session.send(replies.lookup(command.request_id, service))
        return

    async def answer() -> bytes:
        found = await owners.locate(name, is_authoritative=command.authoritative)
        service = owners.reached_by(found, listener)
        if found.is_owner:
            return replies.lookup(command.request_id, service)
        return replies.lookup_redirect(command.request_id, service, is_authoritative=True)

    session.run(command.request_id, answer(), replies.lookup_failed)


def topics_of_namespace(session: Connection, command: pb.CommandGetTopicsOfNamespace) -> None:
    namespace = NamespaceName.parse(command.namespace)

    async def answer() -> bytes:
        names: Sequence[str] = ()
        if command.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
            names = await session.context.registry.topic_names(namespace)
        pattern = harmless_pattern(command.topics_pattern)
        if pattern is not None:
            names = await _matching(names, pattern)
        found_hash = topics_hash(names)
        return replies.topics(
            command.request_id,
            names,
            found_hash,
            is_changed=found_hash != command.topics_hash,
            is_filtered=pattern is not None,
        )

    session.run(command.request_id, answer())


def watch_topic_list(_: Connection, __: pb.CommandWatchTopicList) -> None:
    """Reject WATCH_TOPIC_LIST, which CONNECTED does not offer."""
    raise NotAllowedError("Topic list watchers are not offered by this broker.")


def close_topic_watcher(session: Connection, command: pb.CommandWatchTopicListClose) -> None:
    """WATCH_TOPIC_LIST_CLOSE: succeed, since there are no watchers."""
    session.send(replies.success(command.request_id))


def topics_hash(names: Sequence[str]) -> str:
    """Pulsar's hash of a topic list: CRC32C of the sorted names, its bytes in Guava's order."""
    # Java sorts by UTF-16 units.
    in_order = sorted(names, key=lambda name: name.encode("utf-16-be"))
    checksum: int = google_crc32c.value(",".join(in_order).encode())
    return checksum.to_bytes(4, "little").hex()


def harmless_pattern(text: str) -> re.Pattern[str] | None:
    """Compile the client's expression, without its scheme.

    None if it must not be evaluated here.
    """
    if not text or len(text) > PATTERN_CHARACTERS_MAX:
        return None
    text = _SCHEME.sub("", text)
    if "(" in text or "|" in text or len(_REPETITIONS.findall(text)) > PATTERN_REPETITIONS_MAX:
        return None
    try:
        return re.compile(text)
    except re.error:  # other syntax than Python's
        return None


async def _matching(names: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    """The names that match, without scheme and partition suffix."""
    found = []
    now_seconds = asyncio.get_running_loop().time
    turn_ends = now_seconds() + _TURN_SECONDS
    for text in names:
        if now_seconds() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = now_seconds() + _TURN_SECONDS
        try:
            name = TopicName.parse(text).partitioned
        except BrokerError:
            continue
        if pattern.fullmatch(f"{name.namespace_name}/{name.local_name}"):
            found.append(text)
    return found


# ---- GET_SCHEMA and GET_OR_CREATE_SCHEMA: failures have their own replies, with Pulsar's codes


def get_schema(session: Connection, command: pb.CommandGetSchema) -> None:
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


def get_or_create_schema(session: Connection, command: pb.CommandGetOrCreateSchema) -> None:
    """GET_OR_CREATE_SCHEMA: the version of this schema, a new one if it was not known."""
    topic = requests.topic_name(command.topic)
    schema = requests.schema(command.schema)
    if schema is not None and schema.type is SchemaType.NONE:
        schema = None  # only who opens a producer or consumer with it brings it

    async def answer() -> bytes:
        await session.context.registry.topic(topic, create=False)
        version = await session.context.schemas.version_for_producer(
            topic, schema, session.settings
        )
        return replies.schema_created(command.request_id, version)

    session.run(command.request_id, answer(), replies.schema_refused)
