"""What the page shows: all subscriptions, worst first, and one of them with its holes (ours).

Edge. Each view is one path that answers in JSON, and one that streams it as server-sent events:
what is new every `EVERY_MS_DEFAULT`, until the client goes or `STREAM_SECONDS_MAX` is over. A
stream has one view; its size is that of one page.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

from ackgate.broker.admin.http.call import Reply, json_reply, subscription_of
from ackgate.broker.admin.http.refusals import RefusedError, reason_of
from ackgate.broker.admin.http.router import Route
from ackgate.broker.security import LOOK, ClientIdentity, Principal
from ackgate.broker.stats import (
    PAGE_ROWS_MAX,
    Order,
    OverviewAnswer,
    OverviewQuery,
    Severity,
    ack_picture,
    from_json,
    ledger_window,
    merged,
    oldest_holes,
    overview_row,
    subscription_stats,
    to_json,
)
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from enum import Enum

    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.topic import SubscriptionDriver
    from ackgate.persistence.nodes.owner_nodes import BrokerRecord

    Choice = TypeVar("Choice", bound=Enum)

TEXT_CHARACTERS_MAX: Final = 256
"""Longest text to search for."""

MERGED_ROWS_MAX: Final = 1_000
"""Rows that a broker may ask another broker for, to merge those of all brokers."""

PEER_SECONDS_MAX: Final = 4.0
"""How long the rows of another broker are waited for; then it is named as missing."""

CELLS_DEFAULT: Final = 128
EVERY_MS_DEFAULT: Final = 2_000
EVERY_MS_MIN: Final = 500
EVERY_MS_MAX: Final = 60_000
STREAM_SECONDS_MAX: Final = 600.0
"""The client reconnects after this, so that a changed permission takes effect on streams soon."""

EVENT_STREAM: Final = "text/event-stream"


# ---- all subscriptions


async def get_overview(call: Call) -> Reply:
    """All subscriptions of loaded topics, of all brokers, worst first, with the reasons (ours).

    `?here=true`: of this broker alone. `?text=` in the names, `?state=stuck,at-risk,waiting,fine`,
    `?order=worst|topic|subscription|ranges|backlog|unacked|again|delayed|shuts-in|consumers`,
    `?reversed=true`, `?offset=` and `?rows=`. Who is no superuser sees, and has counted, only subscriptions
    that it may look at. A superuser may ask with the eyes of another: `?role=`, and `?originalRole=` of a
    client behind it, if it is a proxy.
    """
    return json_reply(await _overview(call, _query(call)))


async def get_overview_events(call: Call) -> Reply:
    """The same as server-sent events, with what has changed every `?every=` ms (ours)."""
    query = _query(call)
    return await _stream(call, lambda: _overview(call, query))


async def _overview(call: Call, query: OverviewQuery) -> dict[str, Any]:
    broker, place = call.broker, call.broker.web.any
    viewer = _viewer(call)
    is_visible = None if viewer is None else await _sight(call, viewer)
    others = [
        record
        for record in broker.ownership.view.brokers.values()
        if record.broker_id != broker.broker_id
    ]
    if call.is_asked("here") or not others:
        answer = await broker.overview.page(query, place, is_visible)
    else:
        first = replace(query, offset=0, rows_max=query.offset + query.rows_max)
        if first.rows_max > MERGED_ROWS_MAX:
            raise RefusedError(
                400, f"only the first {MERGED_ROWS_MAX} rows of a cluster are sorted"
            )
        asked = {**_as_seen_by(viewer), "here": "true", **first.parameters}
        path = f"{_OVERVIEW}?{urlencode(asked)}"
        answers = await asyncio.gather(
            broker.overview.page(first, place, is_visible),
            *(_of_broker(call, each, path) for each in others),
        )
        answer = merged(answers, query, place)
    answer_json: dict[str, Any] = to_json(answer)
    return answer_json


def _viewer(call: Call) -> ClientIdentity | None:
    """The identity whose rights decide what is shown; None: everything is shown."""
    authorization, identity = call.broker.authorization, call.identity
    if authorization is None or identity is None:
        return None
    if not authorization.are_superusers(identity):
        if "role" in call.query:
            raise RefusedError(403, "only a superuser may ask with the eyes of another role")
        return identity
    if "role" not in call.query:
        return None
    original = call.query.get("originalRole", "")
    return ClientIdentity(Principal(call.query["role"]), Principal(original) if original else None)


async def _sight(call: Call, viewer: ClientIdentity) -> Callable[[SubscriptionDriver], bool]:
    """Make a function that decides which subscriptions the viewer may look at."""
    authorization = call.broker.authorization
    assert authorization is not None  # there is a viewer
    for resource in {topic.name.namespace_name.resource for topic in call.broker.registry}:
        await authorization.read(authorization.unread(viewer, LOOK, resource))

    def is_visible(subscription: SubscriptionDriver) -> bool:
        resource = subscription.topic.name.resource(subscription.name)
        return authorization.allows(viewer, LOOK, resource)

    return is_visible


async def _of_broker(call: Call, record: BrokerRecord, path: str) -> OverviewAnswer | str:
    """The first rows of another broker, or the reason why there are none."""
    try:
        async with asyncio.timeout(PEER_SECONDS_MAX):
            reply = await call.broker.peers.ask(record.web, "GET", path)
        if reply.status != 200:
            return f"broker {record.web.any}: {reason_of(reply.body)}"
        answer = from_json(OverviewAnswer, reply.body)
    except TimeoutError:
        return f"broker {record.web.any} has not answered for {PEER_SECONDS_MAX:.0f} s"
    except AckGateError as error:
        return str(error)
    for row in answer.rows:
        row.broker = record.web.any
    return answer


def _as_seen_by(viewer: ClientIdentity | None) -> dict[str, str]:
    """The query that has another broker answer as it would this viewer.

    That broker believes it only from a superuser, which this broker has to be.
    """
    if viewer is None:
        return {}
    asked = {"role": viewer.principal.role}
    return asked if viewer.original is None else {**asked, "originalRole": viewer.original.role}


def _query(call: Call) -> OverviewQuery:
    text = call.query.get("text", "")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise RefusedError(400, f"text is longer than {TEXT_CHARACTERS_MAX} characters")
    rows = call.integer_asked("rows", 50, least=1)
    most = MERGED_ROWS_MAX if call.is_asked("here") else PAGE_ROWS_MAX
    if rows > most:
        raise RefusedError(400, f"rows is {rows}, at most {most} are possible")
    states = call.query.get("state", "")
    return OverviewQuery(
        text=text,
        severities=frozenset(_one_of(Severity, "state", name) for name in states.split(","))
        if states
        else frozenset(Severity),
        order=_one_of(Order, "order", call.query.get("order", Order.WORST.value)),
        is_reversed=call.is_asked("reversed"),
        offset=call.integer_asked("offset", 0),
        rows_max=rows,
    )


def _one_of(kind: type[Choice], what: str, name: str) -> Choice:
    try:
        return kind(name)
    except ValueError:
        allowed = ", ".join(each.value for each in kind)
        raise RefusedError(400, f"{what} is not one of {allowed}") from None


# ---- one subscription


async def get_subscription_view(call: Call) -> Reply:
    """One subscription: row, statistics, oldest holes and their holders, pauses, picture (ours)."""
    return json_reply(await _subscription(call))


async def get_subscription_events(call: Call) -> Reply:
    """The same as server-sent events, with what has changed every `?every=` ms (ours)."""
    return await _stream(call, lambda: _subscription(call))


async def get_subscription_holes(call: Call) -> Reply:
    """A window of a ledger, `?from=` to before `?to=` in `?cells=`; up to 1,024 entries one by one (ours)."""
    subscription = await _found(call)
    ledger_id = call.integer("ledgerId")
    entries = subscription.topic.ledger.ledgers.entry_counts.get(ledger_id, 0)
    window = ledger_window(
        subscription,
        ledger_id,
        call.integer_asked("from", 0),
        call.integer_asked("to", entries),
        call.integer_asked("cells", CELLS_DEFAULT, least=1),
    )
    return json_reply(to_json(window))


async def _subscription(call: Call) -> dict[str, Any]:
    subscription = await _found(call)
    broker = call.broker
    sampler, now_ms = broker.sampler, broker.services.clock_ms()
    stats = subscription_stats(subscription, sampler)
    row = overview_row(subscription, sampler, now_ms)
    forecast = stats.ack_state.forecast
    if forecast is not None:
        row = replace(row, shuts_in_seconds=forecast.gate_shuts_in_seconds)
    snapshot = subscription.cursor.snapshot()
    counts = subscription.topic.ledger.ledgers.entry_counts.items()
    cells = call.integer_asked("cells", CELLS_DEFAULT, least=1)
    return {
        "source": broker.web.any,
        "takenMs": now_ms,
        "row": to_json(broker.overview.explained(row, subscription, now_ms)),
        "stats": to_json(stats),
        "holes": [to_json(hole) for hole in oldest_holes(subscription, sampler)],
        "holders": [
            {"consumer": consumer.name, "first": str(held.position), "sinceMs": held.since_ms}
            for consumer in subscription.consumers
            if (held := sampler.oldest_unacked(consumer)) is not None
        ],
        "pauses": [
            {
                "sinceMs": pause.since_ms,
                "untilMs": pause.until_ms,
                "reasons": [reason.value for reason in pause.reasons],
            }
            for pause in subscription.core.gate.pauses
        ],
        "picture": to_json(ack_picture(counts, snapshot.mark_delete, snapshot.acked, cells)),
    }


async def _found(call: Call) -> SubscriptionDriver:
    return subscription_of(await call.topic_here(), call.subscription_name)


# ---- live


async def _stream(call: Call, take: Callable[[], Awaitable[dict[str, Any]]]) -> Reply:
    """Reply with an event stream.

    An error of the first view rejects the request as on the plain path.
    """
    every_ms = call.integer_asked("every", EVERY_MS_DEFAULT)
    every_ms = min(max(EVERY_MS_MIN, every_ms), EVERY_MS_MAX)
    return Reply(
        200,
        content_type=EVENT_STREAM,
        events=_events(await take(), take, every_ms / 1000),
        client=call.identity.roles[-1] if call.identity is not None else "",
    )


async def _events(
    first: dict[str, Any], take: Callable[[], Awaitable[dict[str, Any]]], every_seconds: float
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + STREAM_SECONDS_MAX
    view, shown = first, None
    while True:
        taken_ms = view.pop("takenMs")
        if view == shown:
            yield b": nothing new\n\n"
        else:
            yield _event("view", {"takenMs": taken_ms, **view})
            shown = view
        if loop.time() >= ends_at:
            return
        await asyncio.sleep(every_seconds)
        taking = asyncio.ensure_future(take())
        try:
            while not (await asyncio.wait((taking,), timeout=every_seconds))[0]:
                yield b": not ready\n\n"
            view = taking.result()
        except AckGateError as error:
            yield _event("refused", {"reason": str(error)})
            return
        finally:
            taking.cancel()


def _event(name: str, value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode(errors="replace")


_OVERVIEW: Final = "/ackgate/overview"
_SUBSCRIPTION: Final = "/ackgate/subscriptions/{tenant}/{namespace}/{topic}/{subscription}"

ROUTES: Final = (
    Route("GET", _OVERVIEW, get_overview),
    Route("GET", f"{_OVERVIEW}/events", get_overview_events),
    Route("GET", _SUBSCRIPTION, get_subscription_view),
    Route("GET", f"{_SUBSCRIPTION}/events", get_subscription_events),
    Route("GET", f"{_SUBSCRIPTION}/holes/{{ledgerId}}", get_subscription_holes),
)
