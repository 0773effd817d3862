"""Delayed messages: what is held, cancelling by position, clearing a subscription's index.

Edge. These paths are ours: Pulsar has no cancel, and PIP-195's ``clear-delayed-bucket-snapshots``
was never built. All of them concern one topic or partition; positions say nothing of partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import DONE, json_reply, shown
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.broker.delayed import POSITIONS_MAX, CancelOutcome
from ackgate.broker.stats import delayed_state, to_json
from ackgate.broker.topic import clear_delayed
from ackgate.cursor import ENTRY_ID_MAX, LEDGER_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.delayed import PositionOutcome
    from ackgate.broker.topic import SubscriptionDriver, Topic

_SINGLE_STATUS: Final[Mapping[CancelOutcome, int]] = {
    CancelOutcome.UNKNOWN_POSITION: 404,
    CancelOutcome.NOT_DELAYED: 412,
    CancelOutcome.DUE: 409,
    CancelOutcome.DELIVERED: 409,
}
"""Status of each outcome that is an error if one position is asked for."""


async def get_delayed(call: Call) -> Reply:
    """The delayed messages of each subscription, and how many are cancelled (ours)."""
    await _refuse_partitioned(call)
    topic = await call.topic()
    return json_reply(
        {
            "topic": str(topic.name),
            "cancelled": topic.cancelled.count,
            "subscriptions": {
                name: _told_of(subscription)
                for name, subscription in topic.subscriptions.items()
                if subscription.is_durable
            },
        }
    )


def _told_of(subscription: SubscriptionDriver) -> dict[str, Any]:
    """What a subscription holds, its nacks, its tracker and the reason for it, and its buckets."""
    state = delayed_state(subscription)
    fields = to_json(state)
    return {
        **fields.pop("held"),
        "nextDueMs": state.next_due_ms,
        "degraded": list(state.degraded),
        **fields,
    }


async def cancel_one(call: Call) -> Reply:
    """Cancel one delayed message; an error if it was not cancelled (ours)."""
    position = Position(call.integer("ledgerId"), call.integer("entryId"))
    await _refuse_partitioned(call)
    topic = await call.topic()
    [judged] = await topic.cancelled.cancel([_checked(position)])
    if judged.outcome in _SINGLE_STATUS:
        raise RefusedError(_SINGLE_STATUS[judged.outcome], _why(topic, judged))
    return json_reply(_outcome_json(judged))


async def cancel_many(call: Call) -> Reply:
    """Cancel the messages in the body, ``{"positions": ["12:0", ...]}``; returns the outcome of each (ours).

    Lists only subscriptions with another outcome, or whose consumer had the message.
    """
    positions = _positions(call.json())
    await _refuse_partitioned(call)
    outcomes = await (await call.topic()).cancelled.cancel(positions)
    return json_reply(
        {
            "cancelled": sum(judged.outcome is CancelOutcome.CANCELLED for judged in outcomes),
            "outcomes": [_outcome_json(judged, is_short=True) for judged in outcomes],
        }
    )


async def clear_index(call: Call) -> Reply:
    """Drop a subscription's index of delayed messages with its snapshots; reading rebuilds it (ours)."""
    await _refuse_partitioned(call)
    await (await call.subscription()).clear_delayed()
    return DONE


async def clear_indexes(call: Call) -> Reply:
    """Drop the indexes of delayed messages of a topic, the shared one too; reading rebuilds them (ours)."""
    await _refuse_partitioned(call)
    await clear_delayed(await call.topic())
    return DONE


async def _refuse_partitioned(call: Call) -> None:
    await call.refuse_partitioned(
        f"{call.topic_name} is a partitioned topic: a position is one of a partition"
    )


def _positions(body: object) -> list[Position]:
    texts = body.get("positions") if isinstance(body, dict) else None
    if not isinstance(texts, list):
        raise RefusedError(400, 'expected {"positions": ["ledger:entry", ...]}')
    if len(texts) > POSITIONS_MAX:
        raise RefusedError(400, f"{len(texts)} positions, at most {POSITIONS_MAX} are possible")
    return [_position(text) for text in texts]


def _position(text: object) -> Position:
    ledger_id, separator, entry_id = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not separator or not all(
        part.isascii() and part.isdigit() and len(part) <= 19 for part in (ledger_id, entry_id)
    ):
        raise RefusedError(400, f"{shown(text)} is not a position: ledger:entry is expected")
    return _checked(Position(int(ledger_id), int(entry_id)))


def _checked(position: Position) -> Position:
    if position.ledger_id > LEDGER_ID_MAX or position.entry_id > ENTRY_ID_MAX:
        raise RefusedError(400, f"{position} is not a position: no ledger or entry has such an id")
    return position


def _outcome_json(judged: PositionOutcome, *, is_short: bool = False) -> dict[str, Any]:
    """The outcome as JSON, without fields that are not known."""
    known: dict[str, Any] = {"position": str(judged.position), "outcome": judged.outcome.value}
    if judged.deliver_at is not None:
        known["deliverAt"] = judged.deliver_at
    subscriptions = {
        name: {"outcome": found.outcome.value}
        | ({} if found.consumer is None else {"consumer": found.consumer})
        for name, found in judged.subscriptions.items()
        if not is_short or found != (judged.outcome, None)
    }
    if subscriptions:
        known["subscriptions"] = subscriptions
    return known


def _why(topic: Topic, judged: PositionOutcome) -> str:
    position = f"{judged.position} of {topic.name}"
    match judged.outcome:
        case CancelOutcome.UNKNOWN_POSITION:
            return f"there is no message {position}"
        case CancelOutcome.NOT_DELAYED:
            return f"message {position} was published without a delivery time"
        case _:
            who = ", ".join(
                f"{name}: {found.outcome.value}"
                + (f" to {found.consumer}" if found.consumer is not None else "")
                for name, found in judged.subscriptions.items()
            )
            due = "is due" if judged.outcome is CancelOutcome.DUE else "was delivered"
            return f"message {position} {due}" + (f" ({who})" if who else "")


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"

ROUTES: Final = (
    Route("GET", f"{_TOPIC}/delayed", get_delayed),
    Route("DELETE", f"{_TOPIC}/delayed/{{ledgerId}}/{{entryId}}", cancel_one),
    Route("POST", f"{_TOPIC}/delayed/cancel", cancel_many),
    Route("DELETE", f"{_TOPIC}/delayedBucketSnapshots", clear_indexes),
    Route("DELETE", f"{_TOPIC}/subscription/{{subscription}}/delayedBucketSnapshots", clear_index),
)
