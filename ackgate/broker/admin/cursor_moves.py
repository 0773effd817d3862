"""Moving a subscription's cursor: skip, clear, reset to a time or a position, expire. Edge.

Each answers when the new state is durable. Consumers of a subscription that is reset are
disconnected first; they reconnect by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import DONE, CursorTarget
from ackgate.broker.admin.http.peers import on_partitions
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.cursor import EARLIEST, LATEST

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.topic import SubscriptionDriver

BATCH_MESSAGES_MAX: Final = 1_000_000
"""Largest index of a message in its batch that is accepted."""


async def skip_messages(call: Call) -> Reply:
    """Ack the next `entries` unacked entries."""
    entries = call.integer("entries")
    await call.refuse_partitioned("Skip messages on a partitioned topic is not allowed")
    await (await call.subscription()).skip(entries)
    return DONE


async def skip_all(call: Call) -> Reply:
    """Ack everything that the topic holds."""
    if await on_partitions(call, skip_all):
        return DONE
    await (await call.subscription()).clear_backlog()
    return DONE


async def reset_to_time(call: Call) -> Reply:
    """Read next from the first message published at this time (ms since 1970) or later."""
    publish_time_ms = call.integer("timestamp")
    if await on_partitions(call, reset_to_time):
        return DONE
    await (await call.subscription()).seek_to_time(publish_time_ms)
    return DONE


async def reset_to_position(call: Call) -> Reply:
    """Read next from the position in the body, or after it."""
    target = CursorTarget.read(call.json())
    await call.refuse_partitioned("Reset-cursor at position is not allowed for partitioned-topic")
    await _reset(await call.subscription(), target)
    return DONE


async def expire_messages(call: Call) -> Reply:
    """Ack what was published more than `seconds` ago."""
    seconds = call.integer("seconds")
    if await on_partitions(call, expire_messages):
        return DONE
    await _expire(await call.subscription(), seconds)
    return DONE


async def expire_to_position(call: Call) -> Reply:
    """Ack everything up to a position."""
    target = CursorTarget.read(call.json())
    await call.refuse_partitioned(
        "Expire message at position is not supported for partitioned-topic"
    )
    subscription = await call.subscription()
    position = target.position
    if target.is_excluded and position not in {EARLIEST, LATEST}:
        position = subscription.topic.ledger.ledgers.previous(position)
    await subscription.expire_through(position)
    return DONE


async def expire_all_subscriptions(call: Call) -> Reply:
    """The same for every subscription of a topic; a failure of one does not stop the others."""
    seconds = call.integer("seconds")
    if await on_partitions(call, expire_all_subscriptions):
        return DONE
    refusal: RefusedError | None = None
    for subscription in list((await call.topic()).subscriptions.values()):
        try:
            await _expire(subscription, seconds)
        except RefusedError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return DONE


async def _expire(subscription: SubscriptionDriver, seconds: int) -> None:
    if not subscription.cursor.backlog_entries:
        # Pulsar's words, twice a blank included.
        raise RefusedError(
            409,
            f"Expire message by timestamp not issued on topic {subscription.topic.name} for "
            f"subscription {subscription.name} due to ongoing message expiration not finished or "
            "subscription almost catch  up. If it's performed on a partitioned topic operation "
            "might succeeded on other partitions, please check stats of individual partition.",
        )
    await subscription.expire_older_than(seconds)


async def _reset(subscription: SubscriptionDriver, target: CursorTarget) -> None:
    position, index = target.position, target.batch_index
    ledger = subscription.topic.ledger
    if position in {EARLIEST, LATEST} or not ledger.ledgers.exists(position):
        await subscription.seek(position)
        return
    if index < 0:
        following = ledger.ledgers.next_valid(position)
        await subscription.seek(following if target.is_excluded else position)
        return
    index = min(index, BATCH_MESSAGES_MAX) + target.is_excluded
    if index == 0:
        await subscription.seek(position)
        return
    messages = (await ledger.reads.read_one(position)).metadata.num_messages_in_batch
    if index >= messages:
        await subscription.seek(ledger.ledgers.next_valid(position))
    else:
        await subscription.seek(position, (1 << messages) - (1 << index))


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"

ROUTES: Final = (
    Route("POST", f"{_SUBSCRIPTION}/skip/{{entries}}", skip_messages),
    Route("POST", f"{_SUBSCRIPTION}/skip_all", skip_all),
    Route("POST", f"{_SUBSCRIPTION}/resetcursor", reset_to_position),
    Route("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}", reset_to_time),
    Route("POST", f"{_SUBSCRIPTION}/expireMessages", expire_to_position),
    Route("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}", expire_messages),
    Route(
        "POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", expire_all_subscriptions
    ),
)
