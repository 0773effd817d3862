"""One request to the admin interface, and its answer, without the HTTP around it.

Pure. A handler takes a `Call` and returns a `Reply` or raises; what a client sent is read through
the methods here, which refuse what they cannot read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.admin.refusals import RefusedError, subscription_not_found, topic_not_found
from ackgate.broker.errors import TopicNotFoundError
from ackgate.broker.names import NamespaceName, TopicName, check_subscription_name
from ackgate.cursor.position import EARLIEST, ENTRY_ID_MAX, LATEST, LEDGER_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.server import BrokerServer
    from ackgate.broker.subscription import Subscription
    from ackgate.broker.topic import Topic

JSON_TYPE: Final = "application/json"


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    location: str = ""
    """Where to ask instead, of a redirect."""


AUTHORITATIVE: Final = "authoritative"
"""In the query: another broker has decided that this one shall serve the topic."""

DONE: Final = Reply(204)
NOTHING: Final = Reply(200)
"""There is no such value; Pulsar answers that with an empty body."""


def json_reply(value: Any, status: int = 200) -> Reply:  # noqa: ANN401 - any JSON
    """An answer in JSON."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Reply(status, body.encode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    broker: BrokerServer
    parameters: Mapping[str, str]
    """What the path held, decoded."""
    query: Mapping[str, str]
    body: bytes
    method: str = "GET"
    raw_path: str = ""
    """As it came, without the query."""

    # -- names

    @property
    def namespace_name(self) -> NamespaceName:
        """The namespace in the path. Raises `InvalidTopicNameError`."""
        tenant, namespace = self.parameters["tenant"], self.parameters["namespace"]
        try:
            return NamespaceName.parse(f"{tenant}/{namespace}")
        except ValueError:
            raise RefusedError(412, "Namespace name is not valid") from None

    @property
    def topic_name(self) -> TopicName:
        """The topic in the path. Raises `InvalidTopicNameError`."""
        return TopicName.parse(f"persistent://{self.namespace_name}/{self.parameters['topic']}")

    @property
    def subscription_name(self) -> str:
        """The subscription in the path. Raises `InvalidNameError`."""
        return check_subscription_name(self.parameters["subscription"])

    # -- what they name

    async def topic(self) -> Topic:
        """The topic in the path, loaded."""
        return await self.loaded(self.topic_name)

    async def loaded(self, name: TopicName) -> Topic:
        """A topic, loaded. Refuses one that does not exist, or is served elsewhere."""
        await self.require_here(name)
        try:
            return await self.broker.registry.topic(name, create=False)
        except TopicNotFoundError:
            raise topic_not_found(name) from None

    async def require_here(self, name: TopicName) -> None:
        """Refuses a topic that another broker serves, with a redirect to that broker."""
        ownership = self.broker.ownership
        await ownership.require(name, is_authoritative=self.is_asked(AUTHORITATIVE))

    async def subscription(self) -> Subscription:
        """The subscription in the path."""
        return subscription_of(await self.topic(), self.subscription_name)

    async def partitions(self) -> list[TopicName]:
        """The partitions of the topic in the path; empty when it is not partitioned.

        Refuses a topic that does not exist.
        """
        name = self.topic_name
        try:
            count = await self.broker.registry.partition_count(name, create=False)
        except TopicNotFoundError:
            raise topic_not_found(name) from None
        return [name.partition(index) for index in range(count)]

    @property
    def tail(self) -> str:
        """What follows the topic's name in the path of the request."""
        return "".join(f"/{piece}" for piece in self.raw_path.split("/")[7:] if piece)

    # -- values

    def integer(self, name: str, *, least: int = 0) -> int:
        """A number in the path."""
        return _integer(name, self.parameters[name], least)

    def integer_asked(self, name: str, default: int, *, least: int = 0) -> int:
        """A number in the query."""
        return _integer(name, self.query[name], least) if name in self.query else default

    def is_asked(self, name: str, *, default: bool = False) -> bool:
        """A switch in the query."""
        return self.query[name].lower() == "true" if name in self.query else default

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body. Refuses what is not JSON; nothing at all is None."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from None

    def json_integer(self, what: str) -> int:
        """The body, a number."""
        value = self.json()
        if value is None:
            raise RefusedError(400, f"the body is empty; {what} was expected")
        if type(value) is not int:
            raise RefusedError(400, f"{what} is {_told(value)}, which is not an integer")
        return value


def subscription_of(topic: Topic, name: str) -> Subscription:
    """A subscription of a loaded topic. Refuses one that does not exist."""
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise subscription_not_found(name, topic.name)
    return subscription


class CursorTarget(NamedTuple):
    """Where a cursor shall go: Pulsar's ``ResetCursorData``."""

    position: Position
    is_excluded: bool
    """Behind the entry instead of on it."""
    batch_index: int
    """Inside its batch; -1: the whole entry."""

    @classmethod
    def read(cls, value: Any) -> CursorTarget:  # noqa: ANN401 - JSON
        """From a request's body. Refuses what is not a position."""
        if not isinstance(value, dict):
            raise RefusedError(400, 'expected {"ledgerId": ..., "entryId": ...}')
        ledger_id, entry_id = (_member(value, key) for key in ("ledgerId", "entryId"))
        return cls(
            position=_position(ledger_id, entry_id),
            is_excluded=value.get("excluded", value.get("isExcluded", False)) is True,
            batch_index=_member({"batchIndex": -1, **value}, "batchIndex"),
        )


def _position(ledger_id: int, entry_id: int) -> Position:
    """`EARLIEST` and `LATEST` as the Java client writes them: (-1, -1), (2^63-1, 2^63-1)."""
    if ledger_id < 0:
        return EARLIEST
    if ledger_id >= LEDGER_ID_MAX or entry_id > ENTRY_ID_MAX:
        return LATEST if ledger_id >= LEDGER_ID_MAX else Position(ledger_id, ENTRY_ID_MAX)
    return Position(ledger_id, max(entry_id, -1))


def _member(value: Mapping[str, Any], key: str) -> int:
    member = value.get(key)
    if type(member) is not int:
        raise RefusedError(400, f"{key} is {_told(member)}, which is not an integer")
    return member


def _integer(name: str, text: str, least: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise RefusedError(400, f"{name} is {_told(text)}, which is not an integer")
    number = int(text)
    if number < least:
        raise RefusedError(400, f"{name} is {number}, at least {least} is expected")
    return number


def _told(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
