"""What a ledger is for, as its custom metadata says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.persistence.buckets.snapshots import DELAYED_CURSOR_KEY
from ackgate.persistence.cursors.ledger import CURSOR_PATH_KEY
from ackgate.persistence.deliveries.node import JOURNAL_TOPIC_KEY
from ackgate.persistence.nodes.paths import MANAGED_LEDGERS, name_of_node
from ackgate.persistence.nodes.topic_node import TOPIC_PATH_KEY

if TYPE_CHECKING:
    from ackgate.persistence.ports import LedgerMetadata

_TOPIC_PARTS: Final = 4
"""Tenant, namespace, domain, topic."""


_KINDS: Final = (
    (CURSOR_PATH_KEY, "cursor"),
    (TOPIC_PATH_KEY, "message"),
    (DELAYED_CURSOR_KEY, "delayed"),
    (JOURNAL_TOPIC_KEY, "journal"),
)


class LedgerOwner(NamedTuple):
    """A topic, or a cursor of it."""

    kind: str
    """`message`, `cursor`, `delayed` (a snapshot of delayed entries of a cursor), `journal` (of a
    topic's deliveries), or `other`: not made by a broker."""
    topic: str
    cursor: str

    @property
    def text(self) -> str:
        return f"{self.topic} cursor {self.cursor}" if self.cursor else self.topic


def owner_of(metadata: LedgerMetadata) -> LedgerOwner:
    """The owner that the ledger's custom metadata name, for display only; not validated."""
    for key, kind in _KINDS:
        path = metadata.custom_metadata.get(key)
        if path is None:
            continue
        parts = path.decode(errors="replace").removeprefix(MANAGED_LEDGERS).strip("/").split("/")
        names = [name_of_node(part) for part in parts]
        if len(names) < _TOPIC_PARTS:
            return LedgerOwner(kind, "/".join(names), "")
        tenant, namespace, domain, topic, *rest = names
        return LedgerOwner(kind, f"{domain}://{tenant}/{namespace}/{topic}", "/".join(rest))
    return LedgerOwner("other", "", "")
