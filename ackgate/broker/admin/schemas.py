"""Schemas of topics: for clients that look up over HTTP, for people, and for uploads. Edge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import json_reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import BODY_BYTES_MAX, Route
from ackgate.broker.schemas import DEFINITION_BYTES_MAX, check_definition, version_bytes
from ackgate.broker.wire import IncompatibleSchemaError, Schema, SchemaType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.wire import StoredSchema

VERSION_MAX: Final = 2**63 - 1

NO_VERSION: Final = -1
"""Pulsar's version of a schema that left none."""

UPLOAD_BYTES_MAX: Final = 2 * DEFINITION_BYTES_MAX + BODY_BYTES_MAX
"""The largest schema as a text in JSON, where each of its quotes takes two bytes."""


async def latest_schema(call: Call) -> Reply:
    return _told(await call.broker.schemas.get(call.topic_name))


async def one_schema(call: Call) -> Reply:
    """One version of the schema."""
    version = call.integer("version", least=-VERSION_MAX - 1)
    if not 0 <= version <= VERSION_MAX:
        raise RefusedError(404, "Schema not found")
    return _told(await call.broker.schemas.get(call.topic_name, version_bytes(version)))


async def all_schemas(call: Call) -> Reply:
    """All versions of the schema, oldest first."""
    stored = await call.broker.schemas.all(call.topic_name)
    return json_reply({"getSchemaResponses": [schema_json(schema) for schema in stored]})


async def post_schema(call: Call) -> Reply:
    """Upload one, `{"type": "AVRO", "schema": "...", "properties": {}}`; a new version if it may follow.

    Also where producers may add none (`isAllowAutoUpdateSchemaEnabled`).
    """
    schema = await _uploaded(call)
    settings = call.broker.services.settings.broker
    try:
        version = await call.broker.schemas.get_or_create(
            call.topic_name, schema, settings, is_uploaded=True
        )
    except IncompatibleSchemaError as error:
        raise RefusedError(409, str(error)) from None
    return json_reply({"version": {"version": int.from_bytes(version, "big")}})


async def try_schema(call: Call) -> Reply:
    """Whether one, given as for an upload, may be the next version; changes nothing."""
    schema = await _uploaded(call)
    settings = call.broker.services.settings.broker
    try:
        await call.broker.schemas.check_next(call.topic_name, schema, settings)
        is_compatible = True
    except IncompatibleSchemaError:
        is_compatible = False
    strategy = settings.schema_compatibility_strategy
    return json_reply(
        {"compatibility": is_compatible, "schemaCompatibilityStrategy": strategy}, 202
    )


async def delete_schema(call: Call) -> Reply:
    """End the schema; older versions stay for what was stored by them, but with `?force=true`."""
    await call.require_namespace()
    schemas, topic = call.broker.schemas, call.topic_name
    number = await schemas.mark_deleted(topic)
    if call.is_asked("force"):
        await schemas.delete(topic)
        number = NO_VERSION
    return json_reply({"version": number})


async def _uploaded(call: Call) -> Schema:
    """The schema in the body, whose definition is valid."""
    await call.require_namespace()
    schema = schema_in(call.json_object(), call.topic_name.partitioned.local_name)
    try:
        check_definition(schema)
    except IncompatibleSchemaError as error:
        raise RefusedError(422, str(error)) from None
    return schema


def schema_in(given: Mapping[str, Any], topic: str) -> Schema:
    """Read an uploaded schema from its JSON. Raises `RefusedError`."""
    name, definition = given.get("type"), given.get("schema", "")
    properties = {} if given.get("properties") is None else given["properties"]
    if name == "BYTES":
        raise RefusedError(
            406, "Do not upload a BYTES schema, because it's the default schema type"
        )
    if name not in _UPLOADED_TYPES:
        raise RefusedError(400, f"type is not one of {', '.join(_UPLOADED_TYPES)}")
    if not isinstance(definition, str):
        raise RefusedError(400, "schema is not a text")
    if not isinstance(properties, dict) or not all(
        isinstance(value, str) for value in properties.values()
    ):
        raise RefusedError(400, "properties is not an object of texts")
    for text in (definition, *properties.keys(), *properties.values()):
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can escape half of a surrogate pair
            raise RefusedError(400, f"{text!a:.80} is not valid Unicode") from None
    kind = SchemaType[name]
    data = _pair_bytes(definition) if kind is SchemaType.KEY_VALUE else definition.encode()
    return Schema(topic, kind, data, properties)


_UPLOADED_TYPES: Final = tuple(
    kind.name for kind in SchemaType if kind not in {SchemaType.NONE, SchemaType.AUTO_CONSUME}
)


def _told(stored: StoredSchema | None) -> Reply:
    if stored is None:
        raise RefusedError(404, "Schema not found")
    return json_reply(schema_json(stored))


def schema_json(stored: StoredSchema) -> dict[str, Any]:
    """One version of the schema in Pulsar's form."""
    schema = stored.schema
    is_pair = schema.type is SchemaType.KEY_VALUE
    definition = _pair(schema.definition) if is_pair else schema.definition.decode(errors="replace")
    return {
        "version": int.from_bytes(stored.version, "big"),
        "type": schema.type.name,
        "timestamp": stored.created_ms,
        "data": definition,
        "properties": dict(schema.properties),
    }


def _pair(definition: bytes) -> str:
    """A key/value schema's two definitions as one JSON text. Stored, each follows its length."""
    parts = []
    for _ in range(2):
        length = int.from_bytes(definition[:4], "big", signed=True)
        part, definition = definition[4 : 4 + max(length, 0)], definition[4 + max(length, 0) :]
        try:
            parts.append(json.dumps(json.loads(part)))
        except (ValueError, RecursionError):  # a primitive type has no definition
            parts.append('""')
    return '{{"key": {}, "value": {}}}'.format(*parts)


def _pair_bytes(text: str) -> bytes:
    """The reverse of `_pair`. A primitive is an empty text, which has no definition."""
    try:
        given = json.loads(text)
        parts = [given["key"], given["value"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedError(422, "a KEY_VALUE schema is an object with key and value") from None
    found = b""
    for part in parts:
        piece = b"" if part == "" else json.dumps(part, separators=(",", ":")).encode()
        found += len(piece).to_bytes(4, "big") + piece
    return found


_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ROUTES: Final = (
    Route("GET", f"{_SCHEMAS}/schema", latest_schema),
    Route("POST", f"{_SCHEMAS}/schema", post_schema, body_bytes_max=UPLOAD_BYTES_MAX),
    Route("DELETE", f"{_SCHEMAS}/schema", delete_schema),
    Route("POST", f"{_SCHEMAS}/compatibility", try_schema, body_bytes_max=UPLOAD_BYTES_MAX),
    Route("GET", f"{_SCHEMAS}/schema/{{version}}", one_schema),
    Route("GET", f"{_SCHEMAS}/schemas", all_schemas),
)
