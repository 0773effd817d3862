"""Bundles against counting: every topic is in exactly one, and names mean what they say."""

from __future__ import annotations

import json
import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ackgate.broker.cluster.bundles import (
    BUNDLES_MAX,
    HASH_MAX,
    BadBundleError,
    Bundle,
    NamespaceBundles,
    bundle_of_owner_path,
    topic_hash,
)
from ackgate.broker.wire.names import NamespaceName, TopicName
from ackgate.errors import CallerError, CorruptRecordError

NAMES = st.text("abz-=:.09", min_size=1, max_size=8).filter(lambda name: name not in {".", ".."})
NAMESPACES = st.builds(NamespaceName, NAMES, NAMES)
COUNTS = st.integers(1, BUNDLES_MAX) | st.integers(1, 9)


def bounds(bundle: Bundle) -> tuple[int, int]:
    low, high = bundle.range_name.split("_")
    return int(low, 16), int(high, 16)


@given(NAMESPACES, COUNTS, st.text(min_size=1, max_size=20))
def test_a_topic_is_in_the_one_bundle_whose_bounds_hold_its_hash(
    namespace: NamespaceName, count: int, local_name: str
) -> None:
    bundles = NamespaceBundles.cut(namespace, count)
    topic = TopicName(namespace, local_name)
    found = zlib.crc32(f"persistent://{namespace}/{local_name}".encode(errors="surrogatepass"))
    assert topic_hash(topic) == found
    holding = [
        bundle
        for bundle in bundles
        if bounds(bundle)[0] <= found < bounds(bundle)[1] + (bounds(bundle)[1] == HASH_MAX)
    ]
    assert holding == [bundles.of(topic)]


@given(NAMESPACES, COUNTS)
def test_bundles_are_cut_evenly_and_read_back_as_they_were(
    namespace: NamespaceName, count: int
) -> None:
    bundles = NamespaceBundles.cut(namespace, count)
    assert NamespaceBundles.decode(namespace, bundles.encode()) == bundles
    widths = [high - low for low, high in map(bounds, bundles)]
    assert len(widths) == count
    assert len({*widths[:-1]}) <= 1
    for bundle in bundles:
        assert bundles.named(bundle.range_name) == bundle
        assert bundle_of_owner_path(bundle.owner_path) == bundle


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["bundles", "boundaries"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_what_is_no_cut_is_called_corrupt(value: bytes) -> None:
    namespace = NamespaceName("t", "n")
    try:
        bundles = NamespaceBundles.decode(namespace, value)
    except CorruptRecordError as error:
        assert "t/n" in str(error)  # noqa: PT017 - either is right
    else:
        assert NamespaceBundles.decode(namespace, bundles.encode()) == bundles


@given(st.text(max_size=24) | st.from_regex(r"0x[0-9a-f]{8}_0x[0-9a-f]{8}", fullmatch=True))
def test_what_is_no_bundle_is_refused_by_name(text: str) -> None:
    bundles = NamespaceBundles.cut(NamespaceName("t", "n"), 4)
    if text not in {bundle.range_name for bundle in bundles}:
        with pytest.raises(BadBundleError, match="bundle"):
            bundles.named(text)


def test_pulsars_four() -> None:
    four = NamespaceBundles.cut(NamespaceName("public", "default"), 4)
    assert four.to_json() == {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        "numBundles": 4,
    }
    three = NamespaceBundles.cut(NamespaceName("public", "default"), 3)
    assert three.to_json()["boundaries"] == ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"]


@pytest.mark.parametrize("count", [0, -1, BUNDLES_MAX + 1])
def test_an_impossible_number_of_bundles_is_refused(count: int) -> None:
    with pytest.raises(CallerError, match=str(count)):
        NamespaceBundles.cut(NamespaceName("t", "n"), count)


@pytest.mark.parametrize(
    "path", ["/namespace", "/namespace/t/n", "/namespace/t/n/range", "/other/t/n/0x0_0x1", "/"]
)
def test_other_nodes_are_no_owners(path: str) -> None:
    assert bundle_of_owner_path(path) is None
