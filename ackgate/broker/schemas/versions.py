"""The stored versions of topics' schemas, and a cache of them.

Edge: owns the nodes below ``/schemas``::

    /schemas/<tenant>/<namespace>/<topic>/<version>     one JSON object each, version 0, 1, 2, ...

A version is written once and never changed. It goes only with all others of its topic, and a new one
takes the number above the latest. So while the latest is the very node that it was, all below it are, too:

    look:   list the numbers, read the latest that is cached, and whatever is not cached

Two requests to the metadata store then tell that a topic's cached versions are the stored ones, whoever
wrote last. No watch is kept: a ZooKeeper session looks at every node that it watches.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from ackgate.broker.schemas.compatibility import fingerprint
from ackgate.broker.wire import Schema, SchemaType, StoredSchema
from ackgate.errors import (
    CallerError,
    CorruptRecordError,
    MetadataConflictError,
    NoSuchNodeError,
)
from ackgate.persistence.nodes.changes import delete_node, until_won
from ackgate.persistence.nodes.paths import node_of_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.broker.wire import TopicName
    from ackgate.persistence.ports import MetadataStore, NodeValue

SCHEMAS: Final = "/schemas"

CACHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for cached versions; the topics asked for last stay."""

READERS_MAX: Final = 100
"""Schemas that are remembered as able to read a topic, so that they are compared once."""

READS_AT_ONCE_MAX: Final = 16
"""Versions of a topic that are read at the same time."""

TOPIC_BYTES: Final = 1_000
"""Estimated memory of a cached topic without versions."""

VERSION_BYTES: Final = 1_000
"""Estimated memory of a cached version, in addition to the size of its node."""

TOPIC_BYTES_MAX: Final = CACHED_BYTES_MAX // 2
"""Largest memory of one topic's versions, so that they stay cached: 48 of the largest, or 25,000 small ones.
A topic that has more keeps them, and gets no new one. In Pulsar the node that lists them is the bound."""

_FORMAT: Final = 1


class _Version(NamedTuple):
    """A version's node as it was read."""

    node: NodeValue | None
    """With a digest in place of its value. None: it was deleted meanwhile."""
    stored: StoredSchema | None
    """None: it marks the schema as deleted, or was deleted."""
    fingerprint: bytes
    size_bytes: int


@dataclass(slots=True)
class _Cached:
    """What is known of one topic."""

    versions: dict[int, _Version] = field(default_factory=dict)
    size_bytes: int = 0
    """Estimated memory of the versions."""
    found: TopicVersions | None = None
    """The versions as they are handed out; None while some are missing."""

    def add(self, number: int, version: _Version) -> None:
        self.versions[number] = version
        self.size_bytes += version.size_bytes

    def clear(self) -> None:
        self.versions.clear()
        self.size_bytes, self.found = 0, None


@dataclass(frozen=True, slots=True)
class TopicVersions:
    """All versions of one topic's schema at one time."""

    numbers: Sequence[int]
    """Ascending, with those that are deleted or mark a deletion."""
    current: Sequence[StoredSchema]
    """Those since the schema was last deleted, oldest first."""
    size_bytes: int
    """Estimated memory of all."""
    by_fingerprint: Mapping[bytes, StoredSchema]
    """Of the current ones; of several that are the same, the oldest."""
    readers: set[tuple[bytes, str]] = field(default_factory=set)
    """Schemas, by fingerprint, that can read these under a strategy; at most `READERS_MAX`."""

    @property
    def next_number(self) -> int:
        return self.numbers[-1] + 1 if self.numbers else 0

    def remember_reader(self, reader: tuple[bytes, str]) -> None:
        if len(self.readers) < READERS_MAX:
            self.readers.add(reader)


class SchemaVersions:
    """The versions of all topics' schemas."""

    def __init__(
        self, metadata: MetadataStore, *, cached_bytes_max: int = CACHED_BYTES_MAX
    ) -> None:
        self._metadata = metadata
        self._cached: OrderedDict[str, _Cached] = OrderedDict()
        """By a topic's path, the one asked for last at the end."""
        self._cached_bytes = 0
        self._cached_bytes_max = cached_bytes_max
        self._looks: dict[str, asyncio.Task[TopicVersions]] = {}
        """By a topic's path, the look that has not begun yet."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By a topic's path, held by its look."""

    async def look(self, topic: TopicName) -> TopicVersions:
        """The versions as they are stored at some time after this call.

        Those who ask at the same time share a look, and its failure. Raises `CorruptRecordError`.
        """
        path = _topic_path(topic)
        looking = self._looks.get(path)
        if looking is None:
            looking = asyncio.get_running_loop().create_task(self._look(path))
            self._looks[path] = looking
        return await asyncio.shield(looking)

    async def _look(self, path: str) -> TopicVersions:
        async with self._locks.setdefault(path, asyncio.Lock()):
            del self._looks[path]  # who asks from here on may know of a later write
            cached = self._take(path)
            try:
                return await self._refresh(path, cached)
            finally:
                self._keep(path, cached)

    async def _refresh(self, path: str, cached: _Cached) -> TopicVersions:
        numbers = await self._numbers(path)
        if not await self._is_stored(path, cached.versions, set(numbers)):
            cached.clear()
        missing = [number for number in numbers if number not in cached.versions]
        if cached.found is None or missing:
            cached.found = None
            for start in range(0, len(missing), READS_AT_ONCE_MAX):
                group = missing[start : start + READS_AT_ONCE_MAX]
                read = await asyncio.gather(*(self._read(path, number) for number in group))
                for number, version in zip(group, read, strict=True):
                    cached.add(number, version)
            cached.found = _handed_out(numbers, cached)
        return cached.found

    async def _is_stored(
        self, path: str, versions: Mapping[int, _Version], numbers: set[int]
    ) -> bool:
        """Whether the cached versions are among those that are stored now."""
        if not versions.keys() <= numbers:
            return False
        latest = max(versions, default=None)
        return latest is None or (await self._read(path, latest)).node == versions[latest].node

    def _take(self, path: str) -> _Cached:
        cached = self._cached.pop(path, None)
        if cached is None:
            return _Cached()
        self._cached_bytes -= TOPIC_BYTES + cached.size_bytes
        return cached

    def _keep(self, path: str, cached: _Cached) -> None:
        self._cached[path] = cached
        self._cached_bytes += TOPIC_BYTES + cached.size_bytes
        while self._cached_bytes > self._cached_bytes_max:
            _, oldest = self._cached.popitem(last=False)
            self._cached_bytes -= TOPIC_BYTES + oldest.size_bytes

    # ---- nodes

    async def numbers(self, topic: TopicName) -> list[int]:
        """The numbers of all versions, ascending."""
        return await self._numbers(_topic_path(topic))

    async def read(self, topic: TopicName, number: int) -> StoredSchema | None:
        """One version. None: there is none, or it marks the schema as deleted."""
        path = _version_path(_topic_path(topic), number)
        node = await self._metadata.get(path)
        return None if node is None else _decode(node.value, path, number)

    async def create(self, topic: TopicName, number: int, schema: Schema | None) -> None:
        """Store a version; None marks the schema as deleted. Raises `NodeExistsError`."""
        path = _version_path(_topic_path(topic), number)
        await self._metadata.create(path, _encode(schema))

    async def delete(self, topic: TopicName) -> None:
        """Delete all versions. It is fine if there are none."""
        path = _topic_path(topic)

        async def attempt() -> None:
            for number in await self._numbers(path):
                with contextlib.suppress(NoSuchNodeError):
                    await delete_node(self._metadata, _version_path(path, number))
            try:
                await delete_node(self._metadata, path)
            except NoSuchNodeError:
                return
            except CallerError as error:  # it has just got another version
                raise MetadataConflictError(path) from error

        await until_won(attempt, of=f"the schema of {topic}")

    async def _numbers(self, path: str) -> list[int]:
        names = await self._metadata.children(path)
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    async def _read(self, topic_path: str, number: int) -> _Version:
        path = _version_path(topic_path, number)
        node = await self._metadata.get(path)
        if node is None:
            return _Version(None, None, b"", VERSION_BYTES)
        stored = _decode(node.value, path, number)
        return _Version(
            node._replace(value=sha256(node.value).digest()),
            stored,
            b"" if stored is None else fingerprint(stored.schema),
            VERSION_BYTES + len(node.value),
        )


def _handed_out(numbers: Sequence[int], cached: _Cached) -> TopicVersions:
    current: list[StoredSchema] = []
    by_fingerprint: dict[bytes, StoredSchema] = {}
    for number in numbers:
        version = cached.versions[number]
        if version.stored is None:
            current.clear()
            by_fingerprint.clear()
        else:
            current.append(version.stored)
            by_fingerprint.setdefault(version.fingerprint, version.stored)
    return TopicVersions(numbers, current, cached.size_bytes, by_fingerprint)


def version_bytes(number: int) -> bytes:
    """A version as clients and brokers send it: 8 bytes, big-endian."""
    return number.to_bytes(8, "big")


def _topic_path(topic: TopicName) -> str:
    base = topic.partitioned
    names = (base.tenant, base.namespace, base.local_name)
    return "/".join((SCHEMAS, *map(node_of_name, names)))


def _version_path(topic_path: str, number: int) -> str:
    return f"{topic_path}/{number}"


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


def _decode(value: bytes, path: str, number: int) -> StoredSchema | None:
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
        return StoredSchema(schema, version_bytes(number), int(fields.get("created_ms", 0)))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"{path}: not a stored schema: {error!r}") from error
