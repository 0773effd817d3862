"""What a delivery event says beside its columns: typed values, and the JSON of the column ``detail``.

Pure. One value for each kind of event that has a detail; its fields are the keys of a flat JSON
object, so that ``$.entries_dropped`` or ``$.mark_delete[0]`` is a path into it. Positions are pairs
of numbers.

    event              detail                                    keys
    opened             Opened                                    settings, policies, ledgers
    configured         Configured                                settings, policies
    subscribed         Subscribed                                position, is_durable
    recovered          RecoveryReport                            its fields
    acked              AckedCall, where there is more to say         entries, at_once, properties
    consumer_added     ConsumerAdded, where there is more to say is_out_of_order
    reset              Sought, Skipped, Cleared, Expired         mark_delete, and what redoes it
    persisted          PersistOutcome                            its fields
    persist_failed     PersistFailed                             error, failing_since_ms

Reading is strict: a key too many or too few (but for those that came later), or a value of another
type, is a `CorruptRecordError`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

# pydantic reads the annotations of the values below.
from ackgate.cursor import Cleared, CursorMove, Expired, Position, Skipped, Sought
from ackgate.errors import CorruptRecordError
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.records.outcome import PersistOutcome, RecoveryReport

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MessageLedger:
    """One message ledger of a topic as it was opened."""

    ledger_id: int
    entries: int
    is_open: bool
    """Whether it takes entries: `entries` are those so far."""


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The topic's policies that have no broker setting; the others are merged into `settings`."""

    redelivery_backoff: dict[str, float] | None = None
    """Policy `redeliveryBackoff`, by its JSON's names; None: there is none."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The topic as it was opened."""

    settings: dict[str, str]
    """Settings by their names in broker.conf, as they apply to this topic: policies override
    them."""

    policies: TopicPolicies
    ledgers: tuple[MessageLedger, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings or policies have changed."""

    settings: dict[str, str]
    """Those that have changed, with what they are now."""

    policies: TopicPolicies
    """The policies as they apply now."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription was created, with its start."""

    position: Position
    """Everything up to it counts as acked."""

    is_durable: bool
    """False for a reader's subscription, of which nothing is stored."""


@dataclass(frozen=True, slots=True)
class AckedCall:
    """More about an ack, for example on the first event of a call that acked several entries."""

    entries: int = 1
    """Events of this call, this one first; the next ones of the subscription are the others. All of
    them have the version that the cursor had after the call."""

    at_once: bool = False
    """Applied as arrays (`ManagedCursor.ack_many_pairs`): the version grew by one for each ledger,
    and not by one for each entry."""

    properties: dict[str, int] | None = None
    """Of a cumulative ack: the mark-delete properties that it set."""


@dataclass(frozen=True, slots=True)
class ConsumerAdded:
    """A consumer with an option that differs from the default."""

    is_out_of_order: bool
    """Key_Shared: a key may move to another consumer while one still has entries of it."""


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """One attempt to write to one store."""

    error: str
    failing_since_ms: int | None
    """Since when nothing could be written anywhere; None: something still can."""


Detail: TypeAlias = (
    Opened
    | Configured
    | Subscribed
    | RecoveryReport
    | AckedCall
    | ConsumerAdded
    | CursorMove
    | PersistOutcome
    | PersistFailed
)
DetailT = TypeVar("DetailT", bound=Detail)

RESETS: Final[Mapping[str, type[CursorMove]]] = {
    "seek": Sought,
    "skip": Skipped,
    "clear": Cleared,
    "expire": Expired,
}
"""Reason of a reset -> its detail."""

REASONS: Final[Mapping[type[CursorMove], str]] = {kind: reason for reason, kind in RESETS.items()}

_KINDS: Final[Mapping[EventKind, type[Detail]]] = {
    EventKind.OPENED: Opened,
    EventKind.CONFIGURED: Configured,
    EventKind.SUBSCRIBED: Subscribed,
    EventKind.RECOVERED: RecoveryReport,
    EventKind.ACKED: AckedCall,
    EventKind.CONSUMER_ADDED: ConsumerAdded,
    EventKind.PERSISTED: PersistOutcome,
    EventKind.PERSIST_FAILED: PersistFailed,
}


_WHERE_NEEDED: Final = (AckedCall, ConsumerAdded)

_LATER_KEYS: Final = frozenset({"damaged_records", "versions_lost"})
"""Keys that earlier builds did not write."""


def encode_detail(detail: Detail) -> str:
    """The JSON of a detail."""
    encoded: bytes = _adapter(type(detail)).dump_json(detail)
    return encoded.decode()


def decode_detail(kind: type[DetailT], text: str | None) -> DetailT:
    """Decode a detail. Raises `CorruptRecordError`, also for None."""
    try:
        detail: DetailT = _adapter(kind).validate_json(text or "", strict=True)
        keys = json.loads(text or "").keys()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise CorruptRecordError(
            f"detail of {kind.__name__}: {place}: {first['msg'].lower()}"
        ) from None
    known = {each.name for each in fields(kind)}
    if not known - _LATER_KEYS <= keys <= known:
        raise CorruptRecordError(
            f"detail of {kind.__name__}: its keys are {', '.join(sorted(keys))}, "
            f"and should be {', '.join(sorted(known))}"
        )
    return detail


def detail_of(kind: EventKind, reason: str | None, text: str | None) -> Detail | None:
    """Decode the detail of an event of this kind; None if it has none and needs none.

    Raises `CorruptRecordError`.
    """
    if kind is EventKind.RESET:
        if reason is None or reason not in RESETS:
            raise CorruptRecordError(f"a reset cannot have the reason {reason!r}")
        return decode_detail(RESETS[reason], text)
    of_kind = _KINDS.get(kind)
    if of_kind is None or (text is None and of_kind in _WHERE_NEEDED):
        return None
    return decode_detail(of_kind, text)


_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """The detail's adapter, made at its first use: that takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
