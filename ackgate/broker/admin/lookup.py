"""Where a topic is served: here. For clients that look up over HTTP. Edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import json_reply
from ackgate.broker.admin.router import Route

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply


async def look_up(call: Call) -> Reply:
    """The addresses of the broker that serves the topic, which may not exist yet."""
    call.topic_name  # noqa: B018 - a bad name is refused
    broker = call.broker
    return json_reply(
        {
            "brokerUrl": broker.service_url,
            "httpUrl": broker.web_url,
            "nativeUrl": broker.service_url,
            "brokerUrlSsl": "",
        }
    )


ROUTES: Final = (Route("GET", "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}", look_up),)
