"""The wire protocol: connections, frames, commands, and the ports through which they reach topics.

The face of the room. Each name is imported from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.wire.entry import (
        ENTRY_FORM,
        Batch,
        Entry,
        message_properties,
        repacked,
        unpack,
    )
    from ackgate.broker.wire.errors import (
        BrokerError,
        IncompatibleSchemaError,
        InvalidTopicNameError,
        LimitReachedError,
        MetadataFailedError,
        NamespaceNotFoundError,
        NotAllowedError,
        NotOwnedError,
        PersistenceFailedError,
        ProducerBlockedError,
        ProducerBusyError,
        ProducerFencedError,
        ServerError,
        ServiceNotReadyError,
        SubscriptionNotFoundError,
        TopicNotFoundError,
        TopicTerminatedError,
        server_error,
    )
    from ackgate.broker.wire.names import (
        InvalidNameError,
        NamespaceName,
        TopicName,
        check_subscription_name,
        quoted,
    )
    from ackgate.broker.wire.ports import Connection, ServedTopic, SessionPort
    from ackgate.broker.wire.protocol_server import ProtocolServer
    from ackgate.broker.wire.publish_buffer import PublishBuffer, publish_buffer_bytes
    from ackgate.broker.wire.replies import (
        ConsumerStatsReply,
        LastMessageId,
        MessageOut,
    )
    from ackgate.broker.wire.requests import (
        AccessMode,
        ConsumerRates,
        IndividualAcks,
        InitialPosition,
        ProducerRequest,
        Schema,
        SchemaType,
        SentEntry,
        StoredSchema,
        SubscribeRequest,
        SubscriptionType,
        unacked_mask,
    )

__all__ = [
    "ENTRY_FORM",
    "AccessMode",
    "Batch",
    "BrokerError",
    "Connection",
    "ConsumerRates",
    "ConsumerStatsReply",
    "Entry",
    "IncompatibleSchemaError",
    "IndividualAcks",
    "InitialPosition",
    "InvalidNameError",
    "InvalidTopicNameError",
    "LastMessageId",
    "LimitReachedError",
    "MessageOut",
    "MetadataFailedError",
    "NamespaceName",
    "NamespaceNotFoundError",
    "NotAllowedError",
    "NotOwnedError",
    "PersistenceFailedError",
    "ProducerBlockedError",
    "ProducerBusyError",
    "ProducerFencedError",
    "ProducerRequest",
    "ProtocolServer",
    "PublishBuffer",
    "Schema",
    "SchemaType",
    "SentEntry",
    "ServedTopic",
    "ServerError",
    "ServiceNotReadyError",
    "SessionPort",
    "StoredSchema",
    "SubscribeRequest",
    "SubscriptionNotFoundError",
    "SubscriptionType",
    "TopicName",
    "TopicNotFoundError",
    "TopicTerminatedError",
    "check_subscription_name",
    "message_properties",
    "publish_buffer_bytes",
    "quoted",
    "repacked",
    "server_error",
    "unacked_mask",
    "unpack",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.wire.entry": (
            "Batch",
            "ENTRY_FORM",
            "Entry",
            "message_properties",
            "repacked",
            "unpack",
        ),
        "ackgate.broker.wire.errors": (
            "BrokerError",
            "IncompatibleSchemaError",
            "InvalidTopicNameError",
            "LimitReachedError",
            "MetadataFailedError",
            "NamespaceNotFoundError",
            "NotAllowedError",
            "NotOwnedError",
            "PersistenceFailedError",
            "ProducerBlockedError",
            "ProducerBusyError",
            "ProducerFencedError",
            "ServerError",
            "ServiceNotReadyError",
            "SubscriptionNotFoundError",
            "TopicNotFoundError",
            "TopicTerminatedError",
            "server_error",
        ),
        "ackgate.broker.wire.names": (
            "InvalidNameError",
            "NamespaceName",
            "TopicName",
            "check_subscription_name",
            "quoted",
        ),
        "ackgate.broker.wire.ports": ("Connection", "ServedTopic", "SessionPort"),
        "ackgate.broker.wire.protocol_server": ("ProtocolServer",),
        "ackgate.broker.wire.publish_buffer": ("PublishBuffer", "publish_buffer_bytes"),
        "ackgate.broker.wire.replies": (
            "ConsumerStatsReply",
            "LastMessageId",
            "MessageOut",
        ),
        "ackgate.broker.wire.requests": (
            "AccessMode",
            "ConsumerRates",
            "IndividualAcks",
            "InitialPosition",
            "ProducerRequest",
            "Schema",
            "SchemaType",
            "SentEntry",
            "StoredSchema",
            "SubscribeRequest",
            "SubscriptionType",
            "unacked_mask",
        ),
    },
)
