"""What the metadata node of a cursor holds, and its bytes.

Pure.

    /managed-ledgers/.../<topic>/<cursor>
      owner epoch          who wrote the node last; a lower epoch has lost the cursor
      cursor ledger        where newer state may lie, or none
      state                a snapshot record as in the ledger: the mark-delete, and what fits
      cursor properties    text: users', and internal ones, told by their prefix

The node's own envelope has a checksum and the inner record has one too; both are compressed by the
same rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.avro import AvroSchema
from ackgate.persistence.codec import decode_record
from ackgate.persistence.envelope import Packing, seal, unseal
from ackgate.persistence.records import RecordKind, SnapshotRecord
from ackgate.persistence.recovery import StoredState

if TYPE_CHECKING:
    from collections.abc import Mapping

_NODE: Final = AvroSchema("cursor_node")

INTERNAL_PREFIX: Final = "#pulsar.internal."
"""Properties of this name are the broker's own: users neither see nor set them. Pulsar's prefix."""


@dataclass(frozen=True, slots=True)
class CursorNode:
    """The content of a cursor's metadata node."""

    owner_epoch: int

    cursor_ledger_id: int | None
    """None: the state below is all there is."""

    state: bytes | None = field(repr=False)
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
    """Those that users have set."""
    return {k: value for k, value in properties.items() if not k.startswith(INTERNAL_PREFIX)}


def internal_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that the broker keeps for itself."""
    return {k: value for k, value in properties.items() if k.startswith(INTERNAL_PREFIX)}


def check_users_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    """The same again. Raises `CallerError` for one whose name is kept for the broker."""
    for key in properties:
        if key.startswith(INTERNAL_PREFIX):
            raise CallerError(
                f"property {key!r}: names that begin with {INTERNAL_PREFIX!r} are taken"
            )
    return properties


def encode_cursor_node(node: CursorNode, packing: Packing) -> bytes:
    """The node's value."""
    fields = {
        "owner_epoch": node.owner_epoch,
        "cursor_ledger_id": node.cursor_ledger_id,
        "state": node.state,
        "cursor_properties": node.cursor_properties,
    }
    return seal(RecordKind.NODE, _NODE.encode(fields), packing)


def decode_cursor_node(value: bytes, *, path: str) -> CursorNode:
    """The content again. Raises `CorruptRecordError` naming the path."""
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
