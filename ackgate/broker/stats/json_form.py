"""Converts frozen statistics to JSON and back, by pydantic.

Pure. Keys are the fields' names in Pulsar's camelCase; a `Position` is ``"ledger:entry"`` as Pulsar
prints it, an enum is its value. Reading is strict, because the text comes from a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel as key_of

from ackgate.cursor import (
    POSITIONS_AS_TEXT,
    CursorStatistics,
    Position,
    RecoveredStateReport,
)
from ackgate.dispatcher import GateStatistics
from ackgate.dispatcher.buckets import BucketStatistics
from ackgate.errors import CorruptRecordError
from ackgate.persistence.records.outcome import CursorStoreStats, PersistOutcome, RecoveryReport

__all__ = ["from_json", "key_of", "to_json"]

T = TypeVar("T")

_FORM: Final = ConfigDict(alias_generator=key_of, strict=True, defer_build=True)


def to_json(value: Any, exclude: Any = None) -> Any:  # noqa: ANN401 - any statistics dataclass
    """Plain dicts, lists and scalars. `exclude`: fields to leave out, as pydantic takes them."""
    return _adapter(type(value)).dump_python(
        value, mode="json", by_alias=True, exclude=exclude, context=POSITIONS_AS_TEXT
    )


def from_json(kind: type[T], text: bytes | str) -> T:
    """Read an instance of the dataclass `kind`. Ignores unknown keys.

    Raises `CorruptRecordError` naming the key.
    """
    try:
        read: T | None = _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise CorruptRecordError(f"not a {kind.__name__}: {error}") from error
    if read is None:
        raise CorruptRecordError(f"not a {kind.__name__}: null")
    return read


_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """The converter of a type, made at its first use because that takes milliseconds."""
    if kind not in _ADAPTERS:
        form: Any = kind | None  # pydantic takes no configuration for a dataclass by itself
        adapter = _ADAPTERS[kind] = TypeAdapter(form, config=_FORM)
        adapter.rebuild(_types_namespace=_named_types())
    return _ADAPTERS[kind]


def _named_types() -> dict[str, Any]:
    """Types in annotations that their modules import for type checkers only."""
    from ackgate.broker.stats.ack_state import AckState  # noqa: PLC0415 - it is not needed to write
    from ackgate.broker.stats.delayed import DelayedState  # noqa: PLC0415
    from ackgate.broker.stats.glance import OverviewRow  # noqa: PLC0415
    from ackgate.broker.stats.holes import Hole  # noqa: PLC0415
    from ackgate.broker.stats.ledger_acks import AckPicture  # noqa: PLC0415
    from ackgate.broker.stats.values import SubscriptionStats  # noqa: PLC0415

    types_named = (
        AckPicture,
        AckState,
        BucketStatistics,
        CursorStatistics,
        CursorStoreStats,
        DelayedState,
        GateStatistics,
        Hole,
        Mapping,
        OverviewRow,
        PersistOutcome,
        Position,
        RecoveredStateReport,
        RecoveryReport,
        SubscriptionStats,
    )
    return {kind.__name__: kind for kind in types_named}
