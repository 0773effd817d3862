"""Which command goes where: one table.

Edge. SEND, ACK and FLOW are not in it: the session's receive loop takes them by a shorter road.

A row says in which field of the envelope the command lies, who handles it, and how a refusal is
told (most requests hear ERROR; some have a reply of their own). Handlers raise `BrokerError` for
what the client shall hear, and `ProtocolError` for what ends the connection. A command that is not
in the table ends the connection too: it is a broker's (a client that sends RECEIPTs is none), or of
a protocol that this broker has not promised in CONNECTED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ackgate.broker import replies
from ackgate.broker.commands import lookups, schemas
from ackgate.broker.commands.producers import TRANSACTIONS_REFUSED
from ackgate.broker.errors import NotAllowedError
from ackgate.broker.proto import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.session import Session

FailureReply: TypeAlias = "Callable[[int, int, str], bytes]"
"""(request id, code, message) -> frame."""

Type = pb.BaseCommand.Type


class Route(NamedTuple):
    """One row of the table."""

    field: str
    handle: Callable[[Session, Any], None]
    """Called with the session and the command in `field`."""
    fail: FailureReply = replies.error


def _refuse_transaction(_: Session, __: object) -> None:
    raise NotAllowedError(TRANSACTIONS_REFUSED)


def _ignore(_: Session, __: object) -> None:
    """PONG: that something came is all it has to say."""


ROUTES: Final[Mapping[int, Route]] = {
    Type.CONNECT: Route("connect", lambda session, command: session.connect(command)),
    Type.PING: Route("ping", lambda session, _: session.send(replies.PONG)),
    Type.PONG: Route("pong", _ignore),
    # finding topics
    Type.PARTITIONED_METADATA: Route(
        "partitionMetadata", lookups.partitioned_metadata, replies.partitions_failed
    ),
    Type.LOOKUP: Route("lookupTopic", lookups.lookup, replies.lookup_failed),
    Type.GET_TOPICS_OF_NAMESPACE: Route("getTopicsOfNamespace", lookups.topics_of_namespace),
    Type.WATCH_TOPIC_LIST: Route("watchTopicList", lookups.watch_topic_list),
    Type.WATCH_TOPIC_LIST_CLOSE: Route("watchTopicListClose", lookups.close_topic_watcher),
    # publishing
    Type.PRODUCER: Route("producer", lambda session, command: session.producers.create(command)),
    Type.CLOSE_PRODUCER: Route(
        "close_producer", lambda session, command: session.producers.close(command)
    ),
    # consuming
    Type.SUBSCRIBE: Route(
        "subscribe", lambda session, command: session.consumers.subscribe(command)
    ),
    Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: Route(
        "redeliverUnacknowledgedMessages",
        lambda session, command: session.consumers.redeliver(command),
    ),
    Type.SEEK: Route("seek", lambda session, command: session.consumers.seek(command)),
    Type.GET_LAST_MESSAGE_ID: Route(
        "getLastMessageId", lambda session, command: session.consumers.last_message_id(command)
    ),
    Type.CONSUMER_STATS: Route(
        "consumerStats",
        lambda session, command: session.consumers.stats(command),
        replies.consumer_stats_failed,
    ),
    Type.UNSUBSCRIBE: Route(
        "unsubscribe", lambda session, command: session.consumers.unsubscribe(command)
    ),
    Type.CLOSE_CONSUMER: Route(
        "close_consumer", lambda session, command: session.consumers.close(command)
    ),
    # schemas
    Type.GET_SCHEMA: Route("getSchema", schemas.get_schema, replies.schema_not_found),
    Type.GET_OR_CREATE_SCHEMA: Route(
        "getOrCreateSchema", schemas.get_or_create_schema, replies.schema_refused
    ),
    # transactions: Pulsar without a coordinator answers every one with the same ERROR
    Type.TC_CLIENT_CONNECT_REQUEST: Route("tcClientConnectRequest", _refuse_transaction),
    Type.NEW_TXN: Route("newTxn", _refuse_transaction),
    Type.ADD_PARTITION_TO_TXN: Route("addPartitionToTxn", _refuse_transaction),
    Type.ADD_SUBSCRIPTION_TO_TXN: Route("addSubscriptionToTxn", _refuse_transaction),
    Type.END_TXN: Route("endTxn", _refuse_transaction),
    Type.END_TXN_ON_PARTITION: Route("endTxnOnPartition", _refuse_transaction),
    Type.END_TXN_ON_SUBSCRIPTION: Route("endTxnOnSubscription", _refuse_transaction),
}

BEFORE_CONNECT: Final = frozenset({Type.CONNECT, Type.PING, Type.PONG})
"""All that a client may say before it has introduced itself."""
