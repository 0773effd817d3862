"""Errors that a broker sends its clients: the protocol's codes, and a class for each that we raise.

Pure. The session answers a failed command with ``code`` and the text. The text is sent to the
client, so it names what was asked for and never holds a payload, a path of this machine or a stack
trace. `server_error` finds the code of whatever is not a `BrokerError`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar

from ackgate.broker.security import AuthenticationFailedError, NotAuthorizedError
from ackgate.errors import (
    AckGateError,
    ConsumerAssignError,
    ConsumerBusyError,
    CorruptRecordError,
    CursorClosedError,
    DiskFullError,
    MetadataStoreError,
    OwnershipError,
    StorageError,
)

if TYPE_CHECKING:
    from ackgate.network import Urls


class ServerError(enum.IntEnum):
    """The protocol's error numbers (`ServerError` in ``pulsar.proto``)."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class BrokerError(AckGateError):
    """A request of a client was refused. Never raised itself.

    Nothing was changed, unless a child says otherwise.
    """

    code: ClassVar[ServerError] = ServerError.UNKNOWN


class ProtocolError(BrokerError):
    """Bytes or order of commands break the protocol. The connection that sent them is closed."""


class FrameTooLargeError(ProtocolError):
    """A frame announces more bytes than the bound allows. It is refused before it is buffered."""


class ServiceNotReadyError(BrokerError):
    """The broker cannot serve this now (starting, stopping, unloading). Clients retry."""

    code = ServerError.SERVICE_NOT_READY


class NotOwnedError(ServiceNotReadyError):
    """Another broker serves this topic, or is to acquire it: the client looks up again."""

    def __init__(self, topic: object, web: Urls, *, is_owner: bool) -> None:
        super().__init__(
            f"topic {topic} is not served by this broker; please redo the lookup. Request is denied"
        )
        self.web = web
        """Admin interface of that broker."""
        self.is_owner = is_owner
        """False: no broker serves the topic yet, and that one has to acquire it."""


class InvalidTopicNameError(BrokerError, ValueError):
    """The topic name is malformed, or names a domain that this broker does not serve."""

    code = ServerError.INVALID_TOPIC_NAME


class TopicNotFoundError(BrokerError, LookupError):
    """The topic does not exist and was not to be created."""

    code = ServerError.TOPIC_NOT_FOUND


class NamespaceNotFoundError(TopicNotFoundError):
    """The namespace does not exist, so no topic can be created in it."""


class TopicTerminatedError(BrokerError):
    """The topic was terminated: it takes no more messages."""

    code = ServerError.TOPIC_TERMINATED


class SubscriptionNotFoundError(BrokerError, LookupError):
    """The subscription does not exist and was not to be created."""

    code = ServerError.SUBSCRIPTION_NOT_FOUND


class ConsumerNotFoundError(BrokerError, LookupError):
    """The connection has no consumer of this id."""

    code = ServerError.CONSUMER_NOT_FOUND


class ProducerBusyError(BrokerError):
    """Another producer holds the name or, exclusively, the topic."""

    code = ServerError.PRODUCER_BUSY


class ProducerBlockedError(BrokerError):
    """There is no room for what the producer would send. Its client retries by itself."""

    code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION


class ProducerFencedError(BrokerError):
    """A newer exclusive producer has taken the topic. The client must not reconnect."""

    code = ServerError.PRODUCER_FENCED


class ChecksumError(BrokerError):
    """The CRC32C of a published entry is not that of its bytes. The entry was not stored."""

    code = ServerError.CHECKSUM


class IncompatibleSchemaError(BrokerError):
    """The schema is not compatible with those that the topic has."""

    code = ServerError.INCOMPATIBLE_SCHEMA


class NotAllowedError(BrokerError):
    """The request is well formed and known, but not allowed in this state or not offered here."""

    code = ServerError.NOT_ALLOWED


class LimitReachedError(NotAllowedError):
    """A topic has as many subscriptions, or a namespace as many topics, as it may have."""


class PersistenceFailedError(BrokerError):
    """The entry or the ack could not be made durable. Its outcome is unknown until recovery."""

    code = ServerError.PERSISTENCE


class MetadataFailedError(BrokerError):
    """The metadata store could not be read or written."""

    code = ServerError.METADATA


def server_error(error: BaseException) -> ServerError:
    """The protocol's code for any exception."""
    if isinstance(error, BrokerError):
        return error.code
    if isinstance(error, AuthenticationFailedError):
        return ServerError.AUTHENTICATION
    if isinstance(error, NotAuthorizedError):
        return ServerError.AUTHORIZATION
    if isinstance(error, ConsumerBusyError):
        return ServerError.CONSUMER_BUSY
    if isinstance(error, ConsumerAssignError):
        return ServerError.CONSUMER_ASSIGN
    if isinstance(error, DiskFullError):  # the metadata store's disk, too
        return ServerError.PERSISTENCE
    if isinstance(error, MetadataStoreError):
        return ServerError.METADATA
    if isinstance(error, OwnershipError | CursorClosedError):  # the client looks up again
        return ServerError.SERVICE_NOT_READY
    if isinstance(error, StorageError | CorruptRecordError):
        return ServerError.PERSISTENCE
    return ServerError.UNKNOWN
