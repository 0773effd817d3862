"""The node of a cursor as bytes."""

from __future__ import annotations

import pytest

from ackgate.errors import CorruptRecordError
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node, encode_cursor_node
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Compression, Packing
from tests.unit.persistence.test_codec import delta, snapshot

NODE = CursorNode(7, 12, encode_record(snapshot(), Packing()), {"k": "ä", "": ""})


@pytest.mark.parametrize("compression", Compression, ids=lambda c: c.name)
def test_a_node_comes_back_with_its_state(compression: Compression) -> None:
    value = encode_cursor_node(NODE, Packing(compression, 0))
    node = decode_cursor_node(value, path="/x")
    assert node == NODE
    state = node.stored_state()
    assert state is not None
    assert state.record == snapshot()


def test_a_node_without_ledger_or_state_comes_back() -> None:
    bare = CursorNode(0, None, None, {})
    assert decode_cursor_node(encode_cursor_node(bare, Packing()), path="/x") == bare
    assert bare.stored_state() is None


def test_a_damaged_node_is_named() -> None:
    value = encode_cursor_node(NODE, Packing())
    for damaged in (b"", b"something else", value[:-1], value + b"x", encode_of_snapshot()):
        with pytest.raises(CorruptRecordError, match="cursor node /the/path"):
            decode_cursor_node(damaged, path="/the/path")


def encode_of_snapshot() -> bytes:
    return encode_record(snapshot(), Packing())


def test_a_state_that_is_no_snapshot_is_refused() -> None:
    node = CursorNode(1, None, encode_record(delta(), Packing()), {})
    with pytest.raises(CorruptRecordError, match="not a snapshot"):
        node.stored_state()
