"""Which command goes where: one table.

Edge. SEND, ACK and FLOW are not in it: the session's receive loop takes them by a shorter road.

A row says in which field of the envelope the command lies, who handles it, and the reply of a
refusal (ERROR for most requests; some have a reply of their own). Handlers raise `BrokerError` for
what the client shall be answered, and `ProtocolError` for what ends the connection. A command that is not
in the table ends the connection too: it is a broker's (a client that sends RECEIPTs is none), or of
a protocol that this broker has not promised in CONNECTED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ackgate.broker.wire import lookups, replies
from ackgate.broker.wire.errors import NotAllowedError
from ackgate.broker.wire.producers import TRANSACTIONS_REFUSED
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.session_context import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.wire.consumers import Consumers
    from ackgate.broker.wire.errors import ProtocolError
    from ackgate.broker.wire.producers import Producers
    from ackgate.broker.wire.session_context import FailureReply

Type = pb.BaseCommand.Type


class CommandSession(Connection, Protocol):
    """A connection as `Intake` and the table see it: it has producers and consumers, and may be ended."""

    @property
    def producers(self) -> Producers: ...

    @property
    def consumers(self) -> Consumers: ...

    @property
    def is_connected(self) -> bool:
        """Whether CONNECT has been said and accepted."""

    def connect(self, command: pb.CommandConnect) -> None:
        """Handle CONNECT."""

    def refuse(self, request_id: int, error: Exception, fail: FailureReply) -> None:
        """Answer a request with its failure."""

    def end(self, error: ProtocolError) -> None:
        """The connection cannot go on. Say why, here and there."""


class CommandRoute(NamedTuple):
    """One row of the table."""

    field: str
    handle: Callable[[CommandSession, Any], None]
    """Called with the session and the command in `field`."""
    fail: FailureReply = replies.error


def _refuse_transaction(_: CommandSession, __: object) -> None:
    raise NotAllowedError(TRANSACTIONS_REFUSED)


def _ignore(_: CommandSession, __: object) -> None:
    """PONG: that something came is all it has to say."""


ROUTES: Final[Mapping[int, CommandRoute]] = {
    Type.CONNECT: CommandRoute("connect", lambda session, command: session.connect(command)),
    Type.PING: CommandRoute("ping", lambda session, _: session.send(replies.PONG)),
    Type.PONG: CommandRoute("pong", _ignore),
    # finding topics
    Type.PARTITIONED_METADATA: CommandRoute(
        "partitionMetadata", lookups.partitioned_metadata, replies.partitions_failed
    ),
    Type.LOOKUP: CommandRoute("lookupTopic", lookups.lookup, replies.lookup_failed),
    Type.GET_TOPICS_OF_NAMESPACE: CommandRoute("getTopicsOfNamespace", lookups.topics_of_namespace),
    Type.WATCH_TOPIC_LIST: CommandRoute("watchTopicList", lookups.watch_topic_list),
    Type.WATCH_TOPIC_LIST_CLOSE: CommandRoute("watchTopicListClose", lookups.close_topic_watcher),
    # publishing
    Type.PRODUCER: CommandRoute(
        "producer", lambda session, command: session.producers.create(command)
    ),
    Type.CLOSE_PRODUCER: CommandRoute(
        "close_producer", lambda session, command: session.producers.close(command)
    ),
    # consuming
    Type.SUBSCRIBE: CommandRoute(
        "subscribe", lambda session, command: session.consumers.subscribe(command)
    ),
    Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: CommandRoute(
        "redeliverUnacknowledgedMessages",
        lambda session, command: session.consumers.redeliver(command),
    ),
    Type.SEEK: CommandRoute("seek", lambda session, command: session.consumers.seek(command)),
    Type.GET_LAST_MESSAGE_ID: CommandRoute(
        "getLastMessageId", lambda session, command: session.consumers.last_message_id(command)
    ),
    Type.CONSUMER_STATS: CommandRoute(
        "consumerStats",
        lambda session, command: session.consumers.stats(command),
        replies.consumer_stats_failed,
    ),
    Type.UNSUBSCRIBE: CommandRoute(
        "unsubscribe", lambda session, command: session.consumers.unsubscribe(command)
    ),
    Type.CLOSE_CONSUMER: CommandRoute(
        "close_consumer", lambda session, command: session.consumers.close(command)
    ),
    # schemas
    Type.GET_SCHEMA: CommandRoute("getSchema", lookups.get_schema, replies.schema_not_found),
    Type.GET_OR_CREATE_SCHEMA: CommandRoute(
        "getOrCreateSchema", lookups.get_or_create_schema, replies.schema_refused
    ),
    # transactions: Pulsar without a coordinator answers every one with the same ERROR
    Type.TC_CLIENT_CONNECT_REQUEST: CommandRoute("tcClientConnectRequest", _refuse_transaction),
    Type.NEW_TXN: CommandRoute("newTxn", _refuse_transaction),
    Type.ADD_PARTITION_TO_TXN: CommandRoute("addPartitionToTxn", _refuse_transaction),
    Type.ADD_SUBSCRIPTION_TO_TXN: CommandRoute("addSubscriptionToTxn", _refuse_transaction),
    Type.END_TXN: CommandRoute("endTxn", _refuse_transaction),
    Type.END_TXN_ON_PARTITION: CommandRoute("endTxnOnPartition", _refuse_transaction),
    Type.END_TXN_ON_SUBSCRIPTION: CommandRoute("endTxnOnSubscription", _refuse_transaction),
}

BEFORE_CONNECT: Final = frozenset({Type.CONNECT, Type.PING, Type.PONG})
"""All that a client may say before it has introduced itself."""
