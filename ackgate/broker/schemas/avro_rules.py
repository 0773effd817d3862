"""Is an Avro definition valid?

Pure. The rules of Avro's Java library (1.11, by which Pulsar accepts definitions), as far as comparing two
schemas does without them. Earlier releases stored definitions that break these rules; such ones are still
compared, and only a new one is checked. Avro's comments in JSON are not taken.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Never

from ackgate.broker.schemas.avro_compatibility import PRIMITIVES, full_name, parse
from ackgate.broker.wire import IncompatibleSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.broker.schemas.avro_compatibility import AvroType

FIXED_BYTES_MAX: Final = 2**31 - 9
"""Java's longest array."""

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_ORDERS: Final = frozenset({"ASCENDING", "DESCENDING", "IGNORE"})


def check(definition: bytes) -> AvroType:
    """Parse a definition that keeps all rules. Raises `IncompatibleSchemaError` naming what is wrong."""
    try:
        text = definition.decode()
        given = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        _refuse(error)
    parsed = parse(text)
    _check_unions(parsed, set())
    try:
        _Definition().check(given, "")
    except (KeyError, TypeError, AttributeError) as error:
        _refuse(repr(error))
    return parsed


def _refuse(why: object) -> Never:
    raise IncompatibleSchemaError(f"not a schema: {why!s:.200}")


def _check_unions(type_: AvroType, met: set[int]) -> None:
    if id(type_) in met:
        return
    met.add(id(type_))
    if type_.kind == "union":
        names = [branch.name or branch.kind for branch in type_.inner]
        if "union" in names:
            _refuse("a union in a union")
        _check_unique(names, "branch")
    for part in (*type_.inner, *(each.type for each in type_.fields.values())):
        _check_unions(part, met)


class _Definition:
    """Checks one definition's JSON, of which `parse` has found that all types are known."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def check(self, schema: Any, namespace: str) -> None:  # noqa: ANN401 - JSON
        if isinstance(schema, list):
            for branch in schema:
                self.check(branch, namespace)
        elif isinstance(schema, dict):
            kind = schema["type"]
            if not isinstance(kind, str):
                _refuse(f"{kind!r} is not the name of a type")
            if kind in {"array", "map"}:
                self.check(schema["items" if kind == "array" else "values"], namespace)
            elif kind in _NAMED:
                self._check_named(kind, schema, namespace)

    def _check_named(self, kind: str, schema: dict[str, Any], namespace: str) -> None:
        name = full_name(schema["name"], schema.get("namespace", namespace))
        namespace, _, simple = name.rpartition(".")
        _check_names([simple])
        if name in PRIMITIVES or name in self._named:
            _refuse(f"type {name} is there already")
        self._named.add(name)
        _check_names(alias.rpartition(".")[2] for alias in _texts(schema, "aliases"))
        if kind == "enum":
            symbols = _texts(schema, "symbols")
            _check_names(symbols)
            _check_unique(symbols, "symbol")
            default = schema.get("default")
            if isinstance(default, str) and default not in symbols:
                _refuse(f"the default {default!r} is no symbol")
        elif kind == "fixed":
            if not 0 <= schema["size"] <= FIXED_BYTES_MAX:
                _refuse(f"{schema['size']} is no size")
        else:
            self._check_fields(schema["fields"], namespace)

    def _check_fields(self, fields: Any, namespace: str) -> None:  # noqa: ANN401 - JSON
        if not isinstance(fields, list):
            _refuse("fields is not a list")
        names = [each["name"] for each in fields]
        _check_names(names)
        _check_unique(names, "field")
        for each in fields:
            _texts(each, "aliases")
            if each.get("order", "ignore").upper() not in _ORDERS:
                _refuse(f"{each['order']!r} is no order")
            self.check(each["type"], namespace)


def _texts(schema: dict[str, Any], key: str) -> list[str]:
    value = schema.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        _refuse(f"{key} is not a list of texts")
    return value


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        first, rest = name[:1], name[1:].replace("_", "")
        if not (first.isalpha() or first == "_") or (rest and not rest.isalnum()):
            _refuse(f"{name!r} is no name")


def _check_unique(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _refuse(f"{what} {name} is there twice")
        seen.add(name)
