"""Schemas of a topic, for clients that look up over HTTP, and for people. Edge; reads only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.call import json_reply
from ackgate.broker.admin.refusals import RefusedError
from ackgate.broker.admin.router import Route
from ackgate.broker.schemas import version_bytes
from ackgate.broker.wire_types import SchemaType

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply
    from ackgate.broker.schemas import StoredSchema

VERSION_MAX: Final = 2**63 - 1


async def latest(call: Call) -> Reply:
    """The newest version."""
    return _told(await call.broker.schemas.get(call.topic_name))


async def one(call: Call) -> Reply:
    """One version."""
    version = call.integer("version")
    if version > VERSION_MAX:
        raise RefusedError(404, "Schema not found")
    return _told(await call.broker.schemas.get(call.topic_name, version_bytes(version)))


async def every(call: Call) -> Reply:
    """All versions, oldest first."""
    stored = await call.broker.schemas.all(call.topic_name)
    return json_reply({"getSchemaResponses": [schema_json(schema) for schema in stored]})


def _told(stored: StoredSchema | None) -> Reply:
    if stored is None:
        raise RefusedError(404, "Schema not found")
    return json_reply(schema_json(stored))


def schema_json(stored: StoredSchema) -> dict[str, Any]:
    """One version in Pulsar's form."""
    schema = stored.schema
    is_pair = schema.type is SchemaType.KEY_VALUE
    definition = _pair(schema.definition) if is_pair else schema.definition.decode(errors="replace")
    return {
        "version": int.from_bytes(stored.version, "big"),
        "type": schema.type.name,
        "timestamp": 0,
        "data": definition,
        "properties": dict(schema.properties),
    }


def _pair(definition: bytes) -> str:
    """A key/value schema's two definitions as one JSON text; each is stored behind its length."""
    parts: list[Any] = []
    for _ in range(2):
        length = int.from_bytes(definition[:4], "big", signed=True)
        part, definition = definition[4 : 4 + max(length, 0)], definition[4 + max(length, 0) :]
        try:
            parts.append(json.loads(part))
        except ValueError:
            parts.append("")  # a primitive has no definition
    return json.dumps(dict(zip(("key", "value"), parts, strict=True)))


_TOPIC: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ROUTES: Final = (
    Route("GET", f"{_TOPIC}/schema", latest),
    Route("GET", f"{_TOPIC}/schema/{{version}}", one),
    Route("GET", f"{_TOPIC}/schemas", every),
)
