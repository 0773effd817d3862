"""Entries that hold several messages: built as producers do, taken apart as consumers do.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.chaos.facts import MessageKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.wire_client import Message


def pack(payloads: Iterable[bytes]) -> bytes:
    """The payload of a batch."""
    parts = []
    for payload in payloads:
        metadata = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts += [len(metadata).to_bytes(4, "big"), metadata, payload]
    return b"".join(parts)


def unpack(message: Message) -> list[tuple[MessageKey, bytes]]:
    """The messages of an entry that are still to be acked, with their payloads."""
    metadata = message.metadata
    if not metadata.HasField("num_messages_in_batch"):
        return [(MessageKey(*message.position, 0), message.payload)]
    rest = message.payload
    found = []
    for index in range(metadata.num_messages_in_batch):
        size = int.from_bytes(rest[:4], "big")
        single = pb.SingleMessageMetadata.FromString(rest[4 : 4 + size])
        end = 4 + size + single.payload_size
        if message.unacked_mask is None or message.unacked_mask >> index & 1:
            found.append((MessageKey(*message.position, index), rest[4 + size : end]))
        rest = rest[end:]
    return found
