"""Names as clients send them: what is read from them, and what is refused."""

from __future__ import annotations

import pytest

from ackgate.broker.wire.errors import InvalidTopicNameError, NotAllowedError, ServerError
from ackgate.broker.wire.names import (
    NAME_BYTES_MAX,
    InvalidNameError,
    NamespaceName,
    TopicName,
    check_consumer_name,
    check_producer_name,
    check_subscription_name,
    quoted,
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("acme/shop/orders", "persistent://acme/shop/orders"),
        ("persistent://acme/shop/orders", "persistent://acme/shop/orders"),
        ("non-persistent://acme/shop/orders", "non-persistent://acme/shop/orders"),
        ("persistent://a-b=c:d.e_f/1/x", "persistent://a-b=c:d.e_f/1/x"),
        ("persistent://acme/shop/größe %2F äöü", "persistent://acme/shop/größe %2F äöü"),
        ("persistent://acme/shop/...", "persistent://acme/shop/..."),
    ],
)
def test_a_topic_name_has_one_full_form(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "a/b",
        "a/b/",
        "/b/c",
        "a//c",
        "a/b/c/d",
        "persistent://",
        "persistent://a",
        "persistent://a/b",
        "persistent://a/b/ ",
        "persistent://a/cluster/b/c",
        "http://a/b/c",
        "://a/b/c",
        "persistent://a/b/c\x00",
        "persistent://a/b/c\nd",
        "persistent://a/b/c\u2028d",
        "persistent://a/b/.",
        "persistent://a/b/..",
        "persistent://../b/c",
        "persistent://a/../c",
        "../../etc",
        "persistent://a b/c/d",
        "persistent://a/b%2F/c",
        "persistent://a/ü/c",
        "persistent://a/b/" + "x" * (NAME_BYTES_MAX + 1),
        "persistent://a/b/" + "ü" * (NAME_BYTES_MAX // 2 + 1),
        "x" * 10_000_000,
        "-partition-5",
        "persistent://a/b/-partition-0",
        "a/b/ -partition-1",
        "a/b/..-partition-1",
    ],
)
def test_a_topic_name_that_cannot_be_used_is_refused_by_a_short_message(text: str) -> None:
    with pytest.raises(InvalidTopicNameError) as refused:
        TopicName.parse(text)
    assert refused.value.code is ServerError.INVALID_TOPIC_NAME
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("local_name", "index", "base"),
    [
        ("t-partition-0", 0, "t"),
        ("t-partition-17", 17, "t"),
        ("t-partition-1-partition-2", 2, "t-partition-1"),
        ("t", -1, "t"),
        ("t-partition-", -1, "t-partition-"),
        ("t-partition-01", -1, "t-partition-01"),
        ("t-partition--1", -1, "t-partition--1"),
        ("t-partition-x", -1, "t-partition-x"),
        ("t-partition-٣", -1, "t-partition-٣"),
        ("t-partition-2147483647", 2**31 - 1, "t"),
        ("t-partition-2147483648", -1, "t-partition-2147483648"),
        ("t-partition-" + "9" * 900, -1, "t-partition-" + "9" * 900),
    ],
)
def test_a_partition_is_the_last_suffix_without_leading_zeros(
    local_name: str, index: int, base: str
) -> None:
    name = TopicName.parse(local_name)
    assert name.partition_index == index
    assert name.is_partition == (index >= 0)
    assert name.partitioned.local_name == base
    if index >= 0:
        assert name.partitioned.partition(index) == name


def test_the_parts_of_a_name() -> None:
    name = TopicName.parse("non-persistent://acme/shop/orders")
    assert (name.tenant, name.namespace, name.local_name) == ("acme", "shop", "orders")
    assert name.namespace_name == NamespaceName("acme", "shop")
    with pytest.raises(NotAllowedError, match="does not serve non-persistent"):
        name.require_persistent()


@pytest.mark.parametrize("text", ["", "a", "a/", "/b", "a/b/c", "a/..", "./b", "a b/c", "a/b\n"])
def test_a_namespace_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        NamespaceName.parse(text)


@pytest.mark.parametrize("check", [check_subscription_name, check_producer_name])
def test_other_names_may_hold_anything_that_does_no_harm(check: object) -> None:
    assert callable(check)
    for good in ("a", "a/b", "größe", "with blank", "...", "%2E%2E", "x" * NAME_BYTES_MAX):
        assert check(good) == good
    for bad in ("", "  ", ".", "..", "a\x00b", "a\rb", "\x1b[31m", "x" * (NAME_BYTES_MAX + 1)):
        with pytest.raises(InvalidNameError) as refused:
            check(bad)
        assert str(refused.value).isprintable()


def test_a_consumer_may_have_no_name() -> None:
    assert check_consumer_name("") == ""
    with pytest.raises(InvalidNameError):
        check_consumer_name("..")


def test_quoting_cuts_and_escapes() -> None:
    assert quoted("plain") == "'plain'"
    assert quoted("a\x1b[31m\n") == r"'a\x1b[31m\n'"
    assert len(quoted("x" * 1000)) < 100
