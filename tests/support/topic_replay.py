"""Replays a topic's ack state from its delivery journal: ledgers and cursors, event by event.

Pure. Makes the broker's calls to its cursors again, in the same order; each cursor then has the
version that the broker's had::

    opened, ledger_*, published    -> `MessageLedgers`
    subscribed, recovered          -> a new `ManagedCursor`
    acked, reset, ledger_trimmed   -> the same call as there; its version is compared

Events of one call follow each other: acks carry their count (`AckedCall.entries`), trimmed ledgers
have the same time. After a `dropped` event nothing is compared until the topic or the subscription
is opened again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.cursor import (
    Cleared,
    Expired,
    ManagedCursor,
    MessageLedgers,
    Position,
    Skipped,
    Sought,
)
from ackgate.errors import CorruptRecordError
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.deliveries.details import (
    AckedCall,
    Opened,
    Subscribed,
    decode_detail,
    detail_of,
)
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import SnapshotRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.persistence.deliveries.columns import DeliveryEvent

_ENDS: Final = frozenset({EventKind.OPENED, EventKind.DROPPED})
"""Kinds that do not occur within a call, unless the rest of it was lost."""

_BATCH_INDEXES: Final = "acknowledgmentAtBatchIndexLevelEnabled"


class TopicReplay:
    """The ledgers and cursors of one topic, as far as its journal has been fed."""

    def __init__(self) -> None:
        self.ledgers = MessageLedgers()
        self.cursors: dict[str, ManagedCursor] = {}
        self.versions_compared = 0
        self._acks_batch_indexes = True
        self._uncertain: set[str] = set()
        """Subscriptions of which events are missing."""
        self._call: list[DeliveryEvent] = []
        """The events of one call, as far as they have come."""
        self._missing = 0
        """Events of that call that are still to come."""

    def feed(self, events: Iterable[DeliveryEvent]) -> None:
        """Apply the topic's next events, in the order of their sequence.

        Raises `CorruptRecordError` if they are impossible, or a version differs.
        """
        for event in events:
            self._feed(event)

    def finish(self) -> None:
        """There are no more events."""
        self._end_call()

    def _feed(self, event: DeliveryEvent) -> None:
        if event.kind in _ENDS:
            self._call, self._missing = [], 0
        if self._missing:
            self._call.append(event)
            self._missing -= 1
            if not self._missing:
                self._end_call()
            return
        if self._call and not self._belongs_to_call(event):
            self._end_call()
        match event.kind:
            case EventKind.LEDGER_TRIMMED:
                self._call.append(event)
            case EventKind.ACKED:
                detail = (
                    AckedCall() if event.detail is None else decode_detail(AckedCall, event.detail)
                )
                self._call = [event]
                self._missing = detail.entries - 1
                if not self._missing:
                    self._end_call()
            case _:
                self._apply(event)

    def _belongs_to_call(self, event: DeliveryEvent) -> bool:
        first = self._call[0]
        return event.kind is first.kind and event.time_us == first.time_us

    def _end_call(self) -> None:
        call, self._call = self._call, []
        if not call:
            return
        if call[0].kind is EventKind.LEDGER_TRIMMED:
            self._trim(call)
        else:
            self._ack(call)

    def _apply(self, event: DeliveryEvent) -> None:
        match event.kind:
            case EventKind.OPENED:
                self._open(decode_detail(Opened, event.detail))
            case EventKind.CONFIGURED:
                pass  # what a cursor does is decided at the topic's opening
            case EventKind.LEDGER_OPENED:
                self.ledgers.open_ledger(_position(event).ledger_id)
            case EventKind.LEDGER_CLOSED:
                ledger_id, last_entry_id = _position(event)
                self.ledgers.close_ledger(ledger_id, last_entry_id + 1)
            case EventKind.PUBLISHED:
                ledger_id, entry_id = _position(event)
                known = self.ledgers.entry_count(ledger_id) or 0
                self.ledgers.add_entries(ledger_id, max(0, entry_id + 1 - known))
            case EventKind.SUBSCRIBED | EventKind.RECOVERED:
                self._begin(event)
            case EventKind.UNSUBSCRIBED:
                self.cursors.pop(_name(event), None)
            case EventKind.RESET:
                self._reset(event)
            case EventKind.DROPPED:
                self._uncertain = set(self.cursors)

    # ------------------------------------------------------------------------ beginnings

    def _open(self, opened: Opened) -> None:
        self.ledgers = MessageLedgers()
        self.cursors = {}
        self._uncertain = set()
        self._acks_batch_indexes = opened.settings.get(_BATCH_INDEXES, "true") == "true"
        for ledger in opened.ledgers:
            self.ledgers.open_ledger(ledger.ledger_id)
            if ledger.is_open:
                self.ledgers.add_entries(ledger.ledger_id, ledger.entries)
            else:
                self.ledgers.close_ledger(ledger.ledger_id, ledger.entries)

    def _begin(self, event: DeliveryEvent) -> None:
        name = _name(event)
        self._uncertain.discard(name)
        if event.kind is EventKind.SUBSCRIBED:
            self.cursors[name] = ManagedCursor(
                self.ledgers,
                decode_detail(Subscribed, event.detail).position,
                batch_index_acks=self._acks_batch_indexes,
            )
            return
        record = decode_record(event.state or b"")
        if not isinstance(record, SnapshotRecord):
            raise CorruptRecordError(f"subscription {name} was recovered with no state")
        self.cursors[name], _ = ManagedCursor.from_snapshot(
            self.ledgers, record.snapshot, batch_index_acks=self._acks_batch_indexes
        )
        self._compare(event)

    # --------------------------------------------------------------------------- changes

    def _trim(self, call: list[DeliveryEvent]) -> None:
        ledger_ids = [_position(event).ledger_id for event in call]
        for ledger_id in ledger_ids:
            self.ledgers.trim_ledger(ledger_id)
        for ledger_id in ledger_ids:
            for cursor in self.cursors.values():
                cursor.ledger_trimmed(ledger_id)

    def _ack(self, call: list[DeliveryEvent]) -> None:
        cursor = self._cursor(call[0])
        detail = AckedCall() if call[0].detail is None else decode_detail(AckedCall, call[0].detail)
        if detail.at_once:
            cursor.ack_many_pairs(*zip(*map(_position, call), strict=True))
        elif call[0].is_cumulative:
            self._ack_through(cursor, call[0], detail)
            for event in call[1:]:
                cursor.ack(_position(event))
        else:
            cursor.ack_mixed([(_position(event), _mask(event)) for event in call])
        self._compare(call[-1])

    def _ack_through(self, cursor: ManagedCursor, event: DeliveryEvent, detail: AckedCall) -> None:
        position = _position(event)
        if position > cursor.mark_delete:
            cursor.ack_cumulative(position, unacked_mask=_mask(event), properties=detail.properties)

    def _reset(self, event: DeliveryEvent) -> None:
        cursor = self._cursor(event)
        detail = detail_of(event.kind, event.reason, event.detail)
        assert isinstance(detail, Sought | Skipped | Cleared | Expired)
        detail.move(cursor)
        self._compare(event)

    def _cursor(self, event: DeliveryEvent) -> ManagedCursor:
        try:
            return self.cursors[_name(event)]
        except KeyError:
            raise CorruptRecordError(
                f"{event.kind.value} of subscription {event.subscription}, which has not begun"
            ) from None

    def _compare(self, event: DeliveryEvent) -> None:
        if event.subscription in self._uncertain or event.version is None:
            return
        self.versions_compared += 1
        version = self.cursors[_name(event)].version
        if version != event.version:
            raise CorruptRecordError(
                f"{event.kind.value} of subscription {event.subscription} leads to version "
                f"{version}; the journal has {event.version}"
            )


def _name(event: DeliveryEvent) -> str:
    if event.subscription is None:
        raise CorruptRecordError(f"{event.kind.value} without a subscription")
    return event.subscription


def _position(event: DeliveryEvent) -> Position:
    if event.ledger_id is None:
        raise CorruptRecordError(f"{event.kind.value} without a position")
    return Position(event.ledger_id, -1 if event.entry_id is None else event.entry_id)


def _mask(event: DeliveryEvent) -> int | None:
    stored = event.unacked_indexes
    return None if stored is None else int.from_bytes(stored, "little")
