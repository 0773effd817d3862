"""Where a topic is served, for clients that look up over HTTP. Edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import AUTHORITATIVE, Reply, json_reply
from ackgate.broker.admin.router import Route
from ackgate.broker.errors import NotOwnedError

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call


async def look_up(call: Call) -> Reply:
    """The addresses of the broker that serves the topic, which may not exist yet."""
    name = call.topic_name
    found = await call.broker.ownership.locate(name, is_authoritative=call.is_asked(AUTHORITATIVE))
    if not found.is_owner:
        raise NotOwnedError(name, found.web_url, is_owner=False)
    return json_reply(
        {
            "brokerUrl": found.service_url,
            "httpUrl": found.web_url,
            "nativeUrl": found.service_url,
            "brokerUrlSsl": "",
        }
    )


async def bundle(call: Call) -> Reply:
    """The bundle that the topic falls into; any broker knows."""
    name = call.topic_name
    bundles = await call.broker.ownership.bundles(name.namespace_name)
    return Reply(200, bundles.of(name).range_name.encode(), "text/plain")


_TOPIC: Final = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"

ROUTES: Final = (Route("GET", _TOPIC, look_up), Route("GET", f"{_TOPIC}/bundle", bundle))
