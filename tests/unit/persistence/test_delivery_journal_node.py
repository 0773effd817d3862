"""The node of a delivery journal: what goes in comes out, and damage is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.errors import CorruptRecordError
from ackgate.persistence.deliveries.node import (
    DeliveryJournalNode,
    JournalLedgerRecord,
    decode_journal_node,
    encode_journal_node,
)
from ackgate.persistence.nodes.paths import delivery_journal_path

PATH = delivery_journal_path("t", "n", "x")

records = st.builds(
    JournalLedgerRecord,
    ledger_id=st.integers(0, 2**63 - 1),
    opened_ms=st.integers(0, 2**45),
    closed_ms=st.none() | st.integers(0, 2**45),
    size_bytes=st.integers(0, 2**50),
    event_count=st.none() | st.integers(0, 2**40),
)
nodes = st.builds(
    DeliveryJournalNode,
    ledgers=st.lists(records, max_size=5).map(tuple),
    owner_epoch=st.integers(0, 2**40),
)


@given(nodes)
def test_a_node_comes_back_as_it_was(node: DeliveryJournalNode) -> None:
    assert decode_journal_node(encode_journal_node(node), path=PATH) == node


@given(nodes, st.data())
def test_a_flipped_byte_is_noticed_or_means_the_same(
    node: DeliveryJournalNode, data: st.DataObject
) -> None:
    value = bytearray(encode_journal_node(node))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert decode_journal_node(bytes(value), path=PATH) == node
    except CorruptRecordError as error:
        assert PATH in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"null", b'{"format":1}', b"\xff\xfe"])
def test_foreign_bytes_are_refused_by_path(value: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="/ackgate/delivery-journals/t/n/x"):
        decode_journal_node(value, path=PATH)


def test_a_later_format_is_named() -> None:
    value = encode_journal_node(DeliveryJournalNode()).replace(b'"format":1', b'"format":9')
    with pytest.raises(CorruptRecordError, match="format 9"):
        decode_journal_node(value, path=PATH)
