"""What a ledger is for, as its custom metadata says, and whether its owner has given it up.

Edge: reads metadata, and asks bookies whether a ledger holds anything. A ledger that no node names
may still be needed: the metadata may be a copy from before it was named. So a ledger that holds
entries is deleted only if the metadata prove that it was given up:

    whose              given up when
    any                its own node says that it is to be deleted: written before its name is removed
    a topic's          only then: it gets entries only once it is named
    a cursor's         the cursor's node is gone (it is older than its ledgers), names a later ledger, or
                       has a later owner than the one that made the ledger
    a journal's        its node is gone (older as well), or names a later ledger
    a snapshot's       always: an index of delayed messages is rebuilt from the messages

An adopted ledger (`adoption`) counts as given up only when its own node says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.persistence.buckets.snapshots import DELAYED_CURSOR_KEY
from ackgate.persistence.cursors.ledger import CURSOR_PATH_KEY, OWNER_EPOCH_KEY
from ackgate.persistence.cursors.node import decode_cursor_node
from ackgate.persistence.deliveries.node import (
    JOURNAL_PATH_KEY,
    JOURNAL_TOPIC_KEY,
    decode_journal_node,
)
from ackgate.persistence.nodes.paths import MANAGED_LEDGERS, name_of_node
from ackgate.persistence.nodes.topic_node import TOPIC_PATH_KEY
from ackgate.persistence.nodes.unnamed_ledgers import ADOPTED_KEY, DELETION_KEY

if TYPE_CHECKING:
    from ackgate.persistence.ports import LedgerClient, LedgerMetadata, MetadataStore

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


async def is_given_up(client: LedgerClient, metadata: MetadataStore, about: LedgerMetadata) -> bool:
    """Whether a ledger that its owner's node does not name may be deleted.

    Raises `StorageError`, `CorruptRecordError`.
    """
    custom = about.custom_metadata
    if DELETION_KEY in custom or DELAYED_CURSOR_KEY in custom:
        return True
    if await client.is_empty(about.ledger_id):
        return True
    if ADOPTED_KEY in custom:
        return False
    if CURSOR_PATH_KEY in custom:
        return await _is_given_up_by_cursor(metadata, about)
    if JOURNAL_PATH_KEY in custom:
        return await _is_given_up_by_journal(metadata, about)
    return False


async def _is_given_up_by_cursor(metadata: MetadataStore, about: LedgerMetadata) -> bool:
    path = about.custom_metadata[CURSOR_PATH_KEY].decode()
    found = await metadata.get(path)
    if found is None:
        return True
    node = decode_cursor_node(found.value, path=path)
    maker = about.custom_metadata.get(OWNER_EPOCH_KEY)
    if maker is not None and node.owner_epoch > int(maker):
        return True
    return node.cursor_ledger_id is not None and node.cursor_ledger_id > about.ledger_id


async def _is_given_up_by_journal(metadata: MetadataStore, about: LedgerMetadata) -> bool:
    path = about.custom_metadata[JOURNAL_PATH_KEY].decode()
    found = await metadata.get(path)
    if found is None:
        return True
    node = decode_journal_node(found.value, path=path)
    return any(ledger.ledger_id > about.ledger_id for ledger in node.ledgers)
