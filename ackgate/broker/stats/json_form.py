"""Frozen statistics as JSON and back: one rule instead of a function per class.

Pure. A dataclass or a named tuple is an object whose keys are its fields in Pulsar's camelCase;
a `Position` is ``"ledger:entry"`` as Pulsar prints it; an enum is its value. `from_json` takes the
class and checks what it reads, because it comes from a socket.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from ackgate.cursor import Position
from ackgate.errors import CorruptRecordError

T = TypeVar("T")


@functools.cache
def key_of(name: str) -> str:
    """``msg_rate_out`` -> ``msgRateOut``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def to_json(value: Any) -> Any:  # noqa: ANN401 - any of the classes of this package
    """Plain dicts, lists and scalars."""
    match value:
        case None | bool() | str() | float():
            return value
        case enum.Enum():
            return value.value
        case int():
            return value
        case Position():
            return str(value)
        case Mapping():
            return {str(to_json(key)): to_json(member) for key, member in value.items()}
        case tuple() if _is_named_tuple(type(value)):
            names = _annotations(type(value))
            return {key_of(n): to_json(member) for n, member in zip(names, value, strict=True)}
        case list() | tuple():
            return [to_json(member) for member in value]
        case _:
            return fields_json(value)


def fields_json(value: Any, *, without: Collection[str] = ()) -> dict[str, Any]:  # noqa: ANN401
    """A dataclass as an object, some of its fields left out."""
    return {
        key_of(field.name): to_json(getattr(value, field.name))
        for field in fields(value)
        if field.name not in without
    }


def from_json(kind: type[T], value: Any) -> T:  # noqa: ANN401 - what a JSON parser gives
    """An instance of the dataclass `kind`. Unknown keys are passed over.

    Raises `CorruptRecordError` naming the key.
    """
    try:
        return typing.cast("T", _read(kind, value, kind.__name__))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"not a {kind.__name__}: {error!r}") from error


def _read(kind: Any, value: Any, place: str) -> Any:  # noqa: ANN401 - annotations and JSON
    if isinstance(kind, type) and (is_dataclass(kind) or _is_named_tuple(kind)):
        if not isinstance(value, dict):
            raise CorruptRecordError(f"{place} is not an object")
        read = {
            name: _read(annotation, value.get(key_of(name)), f"{place}.{key_of(name)}")
            for name, annotation in _annotations(kind).items()
        }
        return kind(**read)
    if kind is Position:
        ledger_id, _, entry_id = _a(str, value, place).partition(":")
        return Position(int(ledger_id), int(entry_id))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:  # X | None is the only union here
        return None if value is None else _read(arguments[0], value, place)
    if origin is tuple:
        return tuple(_read(arguments[0], member, place) for member in _a(list, value, place))
    if origin is Mapping:
        return {
            _key(arguments[0], key): _read(arguments[1], member, f"{place}.{key}")
            for key, member in _a(dict, value, place).items()
        }
    if issubclass(kind, enum.Enum):
        return kind(value)
    if kind is float:
        return float(_a((int, float), value, place))
    return _a(kind, value, place)


@functools.cache
def _annotations(kind: type) -> Mapping[str, Any]:
    """The fields' types, also those that their modules import for type checkers only."""
    known = typing.get_type_hints(kind, localns=_named_types())
    if _is_named_tuple(kind):
        return known
    return {field.name: known[field.name] for field in fields(kind)}


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and kind is not Position


@functools.cache
def _named_types() -> dict[str, Any]:
    from ackgate.broker.stats.ack_state import AckState  # noqa: PLC0415 - for readers only
    from ackgate.broker.stats.delayed import DelayedState  # noqa: PLC0415
    from ackgate.cursor import CursorStatistics, RecoveredStateReport  # noqa: PLC0415
    from ackgate.dispatcher import GateStatistics  # noqa: PLC0415
    from ackgate.dispatcher.buckets import BucketStatistics  # noqa: PLC0415
    from ackgate.persistence.records.outcome import CursorStoreStats, PersistOutcome, RecoveryReport  # noqa: PLC0415

    types_named = (
        AckState,
        BucketStatistics,
        CursorStatistics,
        CursorStoreStats,
        DelayedState,
        GateStatistics,
        Mapping,
        PersistOutcome,
        Position,
        RecoveredStateReport,
        RecoveryReport,
    )
    return {kind.__name__: kind for kind in types_named}


def _key(kind: Any, key: str) -> Any:  # noqa: ANN401 - an annotation
    return kind(key)


def _a(kind: Any, value: Any, place: str) -> Any:  # noqa: ANN401 - an annotation and JSON
    is_wanted = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not is_wanted:
        raise CorruptRecordError(f"{place} is {value!r}, which is not what belongs there")
    return value
