"""What the metadata node of a cursor holds, its bytes, and its owner's writes of it.

Edge: `OwnedCursorNode` writes; all else is pure.

    /managed-ledgers/.../<topic>/<cursor>
      owner epoch          who wrote the node last; a lower epoch has lost the cursor
      cursor ledger        where newer state may be, or none
      state                a snapshot record as in the ledger: the mark-delete, and what fits
      cursor properties    text: users', and internal ones with a prefix

The node's own envelope has a checksum and the inner record has one too; both are compressed by the
same rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.nodes.fenced_node import FencedNode
from ackgate.persistence.records.avro import AvroSchema
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.envelope import Packing, seal, unseal
from ackgate.persistence.records.recovery import StoredState
from ackgate.persistence.records.values import RecordKind, SnapshotRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.persistence.ports import MetadataStore

_NODE: Final = AvroSchema("cursor_node")

INTERNAL_PREFIX: Final = "#pulsar.internal."
"""Properties of this name are the broker's own: users neither see nor set them. Pulsar's prefix."""


class CursorNode(NamedTuple):
    """The content of a cursor's metadata node."""

    owner_epoch: int

    cursor_ledger_id: int | None
    """None: the state below is all there is."""

    state: bytes | None
    """An encoded `SnapshotRecord`; None when not even its mark-delete fitted."""

    cursor_properties: Mapping[str, str]

    def stored_state(self) -> StoredState | None:
        """The state, decoded. Raises `CorruptRecordError`."""
        if self.state is None:
            return None
        record = decode_record(self.state)
        if not isinstance(record, SnapshotRecord):
            raise CorruptRecordError("the node's state is not a snapshot")
        return StoredState(record, 1)


def users_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that users have set, without those that the broker keeps for itself."""
    return {k: value for k, value in properties.items() if not k.startswith(INTERNAL_PREFIX)}


def internal_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that the broker keeps for itself."""
    return {k: value for k, value in properties.items() if k.startswith(INTERNAL_PREFIX)}


def check_users_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties. Raises `CallerError` for a name that is kept for the broker."""
    for key in properties:
        if key.startswith(INTERNAL_PREFIX):
            raise CallerError(
                f"property {key!r}: names that begin with {INTERNAL_PREFIX!r} are taken"
            )
    return properties


def encode_cursor_node(node: CursorNode, packing: Packing) -> bytes:
    fields = {
        "owner_epoch": node.owner_epoch,
        "cursor_ledger_id": node.cursor_ledger_id,
        "state": node.state,
        "cursor_properties": node.cursor_properties,
    }
    return seal(RecordKind.NODE, _NODE.encode(fields), packing)


def decode_cursor_node(value: bytes, *, path: str) -> CursorNode:
    """Decode the value of a cursor's node. Raises `CorruptRecordError` naming the path."""
    try:
        kind, body = unseal(value)
        if kind != RecordKind.NODE:
            raise CorruptRecordError(f"record kind {kind} is not a cursor node")  # noqa: TRY301
        fields = _NODE.decode(body)
    except CorruptRecordError as error:
        raise type(error)(f"cursor node {path}: {error}") from error
    return CursorNode(
        owner_epoch=fields["owner_epoch"],
        cursor_ledger_id=fields["cursor_ledger_id"],
        state=fields["state"],
        cursor_properties=fields["cursor_properties"],
    )


def ledgers_of_cursor(value: bytes, path: str) -> set[int]:
    """The cursor ledger that a cursor's node names, if any. Raises `CorruptRecordError`."""
    named = decode_cursor_node(value, path=path).cursor_ledger_id
    return set() if named is None else {named}


class OwnedCursorNode(FencedNode[CursorNode]):
    """The node of a cursor that is ours: what it says, and every write of it. A `NodeView`.

    The state is not kept in memory.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        path: str,
        node: CursorNode,
        *,
        version: int,
        encode: Callable[[CursorNode], bytes],
    ) -> None:
        """`node` was read or written at `version`, and its epoch is ours."""
        kept = node._replace(state=None)
        super().__init__(
            metadata,
            path,
            empty=kept,
            encode=encode,
            decode=decode_cursor_node,
            of="cursor",
            adopt=_adopted,
        )
        self.owned(kept, version=version)

    @property
    def owner_epoch(self) -> int:
        return self.value.owner_epoch

    @property
    def cursor_ledger_id(self) -> int | None:
        """The cursor ledger that the node names."""
        return self.value.cursor_ledger_id

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """The cursor's properties, in the node."""
        return self.value.cursor_properties

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        """The value that `put` would write."""
        node = self.value._replace(cursor_ledger_id=cursor_ledger_id, state=state)
        return encode_cursor_node(node, packing)

    async def put(self, *, cursor_ledger_id: int | None, state: bytes | None) -> int:
        """Write a ledger id and a state, which is not kept in memory. Returns the node's bytes."""
        size = await self.change(
            lambda node: node._replace(cursor_ledger_id=cursor_ledger_id, state=state)
        )
        self.value = self.value._replace(state=None)
        return size

    async def change_properties(
        self,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        check: Callable[[CursorNode], None],
    ) -> None:
        """Replace the properties; ledger and state stay as they are stored."""

        def changed(found: CursorNode) -> CursorNode:
            node = found._replace(
                owner_epoch=self.owner_epoch,
                cursor_properties=dict(change(self.cursor_properties)),
            )
            check(node)
            return node

        node = await self.change_stored(changed)
        self.value = self.value._replace(cursor_properties=node.cursor_properties)


def _adopted(found: CursorNode, ours: CursorNode) -> CursorNode:
    """What the node holds after an unanswered put of ours, or a stale owner's write.

    The ledger is `found`'s. So are the properties, but only if the write was ours.
    """
    is_ours = found.owner_epoch == ours.owner_epoch
    return ours._replace(
        cursor_ledger_id=found.cursor_ledger_id,
        cursor_properties=found.cursor_properties if is_ours else ours.cursor_properties,
    )
