"""The answer to a failed request: a status and a reason, in Pulsar's words.

Pure. Every answer that is not a success has the body ``{"reason": ...}``. The reason names what was
asked for; it never holds a stack trace, a path of this machine or a payload.
"""

from __future__ import annotations

import json
from typing import Final

from ackgate.broker.security import AuthenticationFailedError, NotAuthorizedError
from ackgate.broker.wire import (
    BrokerError,
    InvalidNameError,
    InvalidTopicNameError,
    LimitReachedError,
    MetadataFailedError,
    PersistenceFailedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from ackgate.errors import (
    AckGateError,
    CallerError,
    ConfigurationError,
    CursorClosedError,
    NodeExistsError,
    NoSuchNodeError,
)

_STATUS_OF: Final[tuple[tuple[type[Exception], int], ...]] = (
    (AuthenticationFailedError, 401),
    (NotAuthorizedError, 403),
    (InvalidTopicNameError, 412),
    (InvalidNameError, 412),
    (TopicNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (NoSuchNodeError, 404),
    (NodeExistsError, 409),
    (LimitReachedError, 409),
    (ServiceNotReadyError, 503),
    (PersistenceFailedError, 503),
    (MetadataFailedError, 503),
    (BrokerError, 412),
    (ConfigurationError, 412),
    (CursorClosedError, 503),
    (CallerError, 412),
    (AckGateError, 503),
)
"""Status by type of error; the first match counts. All other kinds of `AckGateError` come from
storage, ownership or stored bytes: the broker could not serve the request now."""


class RefusedError(CallerError):
    """Rejects a request with this status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def status_of(error: AckGateError) -> int:
    """The HTTP status for this error."""
    if isinstance(error, RefusedError):
        return error.status
    return next(status for kind, status in _STATUS_OF if isinstance(error, kind))


def reason_of(body: bytes) -> str:
    """The reason in the body of a refusal, also of another broker's."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


# Pulsar's own words where it has them: scripts look for them.


def topic_not_found(name: object) -> RefusedError:
    """The error for a topic or partition that does not exist."""
    return RefusedError(404, f"Topic {name} not found")


def subscription_not_found(subscription: str, topic: object) -> RefusedError:
    """The error for a subscription that the topic does not have."""
    return RefusedError(404, f"Subscription {subscription} not found for topic {topic}")


def message_not_found() -> RefusedError:
    """The error for a position that has no entry."""
    return RefusedError(404, "Message id not found")


def topic_exists() -> RefusedError:
    """The error for a topic name that is taken, partitioned or not."""
    return RefusedError(409, "This topic already exists")
