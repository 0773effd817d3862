"""The answers of ``ackgate stats`` and its Python calls.

Pure, frozen. A broker's answer and one from files have the same form. In the latter everything
that lives in memory only is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.stats import to_json

if TYPE_CHECKING:
    from ackgate.broker.stats import AckPicture, AckState, Hole, SubscriptionStats


@dataclass(frozen=True, slots=True)
class SubscriptionAnswer:
    """One subscription of a topic, or of one partition."""

    topic: str
    subscription: str
    ack_state: AckState
    picture: AckPicture
    """Which entries are acked, per message ledger."""
    stats: SubscriptionStats | None
    """As in Pulsar. None in an answer from files."""
    written_ms: int | None
    """When the newest record was written, in ms since 1970. Only in an answer from files."""
    holes: tuple[Hole, ...] = ()
    """The oldest holes and their consumers. Empty in an answer from files."""


@dataclass(frozen=True, slots=True)
class StatsAnswer:
    """The subscriptions of a topic."""

    topic: str
    source: str
    """Address of the broker, or path of the data directory."""
    is_live: bool
    """True: a broker answered. False: as persisted; a running broker may know more."""
    taken_ms: int
    subscriptions: tuple[SubscriptionAnswer, ...]
    is_embedded: bool = False
    """Whether the topic belongs to a host that embeds subscriptions."""
    knows_messages: bool = True
    """False: the embedding host keeps the messages. Counts then end at the last ack."""
    knows_consumers: bool = True
    """False: the lists of consumers were not asked for."""
    missing: tuple[str, ...] = ()
    """Subscriptions, partitions and open ledgers of files that cannot be read, and why."""


_ACK_STATE_TWICE: Final = {"subscriptions": {"__all__": {"stats": {"ack_state"}}}}


def answer_json(answer: StatsAnswer) -> dict[str, Any]:
    """The answer as JSON. The ack state is in it once, beside the other statistics."""
    fields: dict[str, Any] = to_json(answer, exclude=_ACK_STATE_TWICE)
    return fields
