"""What ``ackgate stats`` and its Python calls answer.

Pure, frozen. One form for a broker that was asked and for files that were read; of files everything
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
    """What is acked, per message ledger."""
    stats: SubscriptionStats | None
    """As in Pulsar. None: read from files."""
    written_ms: int | None
    """Files: when the newest record was written, in ms since 1970."""
    holes: tuple[Hole, ...] = ()
    """The oldest ones, with who has them; of files none."""


@dataclass(frozen=True, slots=True)
class StatsAnswer:
    """The subscriptions of a topic."""

    topic: str
    source: str
    """Address of the broker, or the data directory."""
    is_live: bool
    """True: a broker's answer. False: as persisted; a running broker may know more."""
    taken_ms: int
    subscriptions: tuple[SubscriptionAnswer, ...]
    is_embedded: bool = False
    """True: of a host that embeds subscriptions."""
    knows_messages: bool = True
    """False: such a host keeps its messages itself. No count includes entries after the last ack."""


_ACK_STATE_TWICE: Final = {"subscriptions": {"__all__": {"stats": {"ack_state"}}}}


def answer_json(answer: StatsAnswer) -> dict[str, Any]:
    """The answer as JSON. The ack state is in it once, beside the other statistics."""
    fields: dict[str, Any] = to_json(answer, exclude=_ACK_STATE_TWICE)
    return fields
