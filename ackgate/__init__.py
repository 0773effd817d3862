"""Acknowledgements that are never forgotten: a subscription to embed, and a broker round it.

What stands in `__all__` here, in `cursor`, `dispatcher` (and its rooms `delayed`, `buckets`, `nacks`,
`timing`), `subscription`, `persistence`, `pipeline`, `testing`, `client` and `config`, and every error
of `ackgate.errors`, is there to be relied on; everything else may move. See `docs/embedding.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import EARLIEST, LATEST, MessageLedgers, Position
    from ackgate.dispatcher import Exclusive, Failover, GateSettings, KeyShared, Shared
    from ackgate.embedded.bucket_storage import BucketStorage, StorageLanes
    from ackgate.embedded.message import Message
    from ackgate.embedded.runtime import SubscriptionRuntime
    from ackgate.embedded.storage import EmbeddedStorage, open_embedded, until_durable
    from ackgate.embedded.subscription import EmbeddedConsumer, EmbeddedSubscription
    from ackgate.embedded.topic import EmbeddedTopic
    from ackgate.persistence.messages.rules import Retention
    from ackgate.persistence.records.outcome import PersistOutcome
    from ackgate.subscription import SubscriptionSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "BucketStorage",
    "EmbeddedConsumer",
    "EmbeddedStorage",
    "EmbeddedSubscription",
    "EmbeddedTopic",
    "Exclusive",
    "Failover",
    "GateSettings",
    "KeyShared",
    "Message",
    "MessageLedgers",
    "PersistOutcome",
    "PersistenceSettings",
    "Position",
    "Retention",
    "Shared",
    "StorageLanes",
    "SubscriptionRuntime",
    "SubscriptionSettings",
    "__version__",
    "open_embedded",
    "until_durable",
]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # or mypy would take any name to be there
    __getattr__ = lazy_face(
        __name__,
        {
            "ackgate.config.persistence": ("PersistenceSettings",),
            "ackgate.cursor": ("EARLIEST", "LATEST", "MessageLedgers", "Position"),
            "ackgate.dispatcher": ("Exclusive", "Failover", "GateSettings", "KeyShared", "Shared"),
            "ackgate.embedded.bucket_storage": ("BucketStorage", "StorageLanes"),
            "ackgate.embedded.message": ("Message",),
            "ackgate.embedded.runtime": ("SubscriptionRuntime",),
            "ackgate.embedded.subscription": ("EmbeddedConsumer", "EmbeddedSubscription"),
            "ackgate.embedded.topic": ("EmbeddedTopic",),
            "ackgate.persistence.messages.rules": ("Retention",),
            "ackgate.subscription": ("SubscriptionSettings",),
            "ackgate.embedded.storage": ("EmbeddedStorage", "open_embedded", "until_durable"),
            "ackgate.persistence.records.outcome": ("PersistOutcome",),
        },
    )
