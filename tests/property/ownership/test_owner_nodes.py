"""What brokers tell of themselves is read back as it was, and garbage is called corrupt."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ackgate.broker.cluster.bundles import NamespaceBundles
from ackgate.broker.wire.names import NamespaceName, TopicName
from ackgate.errors import CorruptRecordError
from ackgate.network import AdvertisedListener, Urls
from ackgate.persistence.nodes.owner_nodes import (
    BrokerRecord,
    OwnerRecord,
    broker_path,
    decode_broker,
    decode_owner,
    encode_broker,
    encode_owner,
    is_in_range,
)
from ackgate.persistence.ports.node_rules import check_path

TEXT = st.text(max_size=20)
URLS = st.builds(Urls, TEXT, TEXT)
LISTENERS = st.lists(
    st.builds(AdvertisedListener, TEXT, URLS, URLS), max_size=2, unique_by=lambda each: each.name
)
BROKERS = st.builds(
    BrokerRecord,
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    st.lists(TEXT, max_size=3).map(tuple),
    st.integers(0, 2**53),
    st.integers(-1, 2**31),
    listeners=LISTENERS.map(tuple),
)
OWNERS = st.builds(OwnerRecord, TEXT, TEXT, TEXT, TEXT, st.integers(0, 2**53), st.booleans())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "brokerId",
                    "instance",
                    "epoch",
                    "bookies",
                    "nativeUrl",
                    "run",
                    "advertisedListeners",
                ]
            ),
            inner,
        )
    ),
)


@given(BROKERS)
def test_a_broker_is_read_back(record: BrokerRecord) -> None:
    assert decode_broker(encode_broker(record), path="/p") == record


@given(OWNERS)
def test_an_owner_is_read_back(record: OwnerRecord) -> None:
    assert decode_owner(encode_owner(record), path="/p") == record


@given(st.text(min_size=1, max_size=20))
def test_a_broker_is_one_node_whatever_it_is_called(broker_id: str) -> None:
    path = broker_path(broker_id)
    check_path(path)
    assert path.count("/") == 3


@pytest.mark.parametrize("decode", [decode_broker, decode_owner])
@given(value=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_called_corrupt_by_name(decode: Callable[..., Any], value: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="/the/node"):
        decode(value, path="/the/node")


@given(st.text(min_size=1, max_size=8), st.integers(1, 64))
def test_a_topic_lies_in_the_range_of_its_bundle_alone(name, count):
    bundles = NamespaceBundles.cut(NamespaceName("t", "n"), count)
    topic = TopicName.parse(f"persistent://t/n/{name.encode().hex()}")

    ranges = [bundle.range_name for bundle in bundles]
    assert [r for r in ranges if is_in_range(r, str(topic))] == [bundles.of(topic).range_name]
