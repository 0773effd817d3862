"""The topic node: what goes in comes out, and damage is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.errors import CorruptRecordError
from ackgate.persistence.nodes.topic_node import (
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
)

PATH = "/managed-ledgers/t/n/persistent/x"

records = st.builds(
    MessageLedgerRecord,
    ledger_id=st.integers(0, 2**63 - 1),
    entry_count=st.none() | st.integers(0, 2**32),
    size_bytes=st.integers(0, 2**50),
    opened_ms=st.integers(0, 2**45),
    closed_ms=st.none() | st.integers(0, 2**45),
)
nodes = st.builds(
    TopicNode,
    ledgers=st.lists(records, max_size=5).map(tuple),
    properties=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    owner_epoch=st.integers(0, 2**40),
    is_terminated=st.booleans(),
)


@given(nodes)
def test_a_node_comes_back_as_it_was(node: TopicNode) -> None:
    assert decode_topic_node(encode_topic_node(node), path=PATH) == node


@given(nodes, st.data())
def test_a_flipped_byte_is_noticed_or_means_the_same(node: TopicNode, data: st.DataObject) -> None:
    value = bytearray(encode_topic_node(node))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert decode_topic_node(bytes(value), path=PATH) == node
    except CorruptRecordError as error:
        assert PATH in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"null", b'{"format":1}', b"\xff\xfe"])
def test_foreign_bytes_are_refused_by_path(value: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="/managed-ledgers/t/n/persistent/x"):
        decode_topic_node(value, path=PATH)


def test_a_later_format_is_named() -> None:
    value = encode_topic_node(TopicNode()).replace(b'"format":1', b'"format":9')
    with pytest.raises(CorruptRecordError, match="format 9"):
        decode_topic_node(value, path=PATH)
