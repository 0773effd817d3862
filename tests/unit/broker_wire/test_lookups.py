"""Topic lists: Pulsar's hash, and which expressions are evaluated here."""

from __future__ import annotations

import time

import pytest

from ackgate.broker.wire.lookups import harmless_pattern, topics_hash


def test_the_hash_is_guavas_crc32c_of_the_sorted_names() -> None:
    # CRC32C of "" is 0; of "123456789" it is the check value e3069283, and Guava prints the lowest
    # byte first.
    assert topics_hash([]) == "00000000"
    assert topics_hash(["123456789"]) == "839206e3"
    assert topics_hash(["b", "a"]) == topics_hash(["a", "b"])
    assert topics_hash(["a,b"]) == topics_hash(["a", "b"]), "as in Pulsar"


def test_names_are_sorted_as_java_does() -> None:
    # U+1F600 is above U+FB01 by code point, below it by UTF-16 unit.
    smiley, ligature = "\U0001f600", "\ufb01"
    assert sorted([ligature, smiley]) == [ligature, smiley]
    assert topics_hash([ligature, smiley]) == topics_hash([f"{smiley},{ligature}"])


@pytest.mark.parametrize(
    ("text", "topic", "matches"),
    [
        ("public/default/orders-.*", "public/default/orders-1", True),
        ("persistent://public/default/orders-.*", "public/default/orders-1", True),
        ("^persistent://public/default/orders-.*$", "public/default/orders-1", True),
        ("public/default/.*", "public/default/x/y", True),
        ("public/default/[a-c]+", "public/default/abc", True),
        ("public/default/orders", "public/default/orders2", False),
        ("default/.*", "public/default/x", False),
    ],
)
def test_plain_expressions_are_evaluated(text: str, topic: str, *, matches: bool) -> None:
    pattern = harmless_pattern(text)
    assert pattern is not None
    assert (pattern.fullmatch(topic) is not None) == matches


@pytest.mark.parametrize(
    "text",
    [
        *("", "x" * 51, "(a+)+$", "a|b", "a*b*c*", "a{1,9}b{1,9}c{1,9}", "[", r"\Q.\E", r"a\u12"),
        *("*", ".?" * 24 + "x"),
    ],
)
def test_any_other_expression_is_left_to_the_client(text: str) -> None:
    assert harmless_pattern(text) is None


def test_the_worst_expression_that_is_evaluated_does_no_harm() -> None:
    pattern = harmless_pattern("a/b/.*.*x")
    assert pattern is not None
    before = time.process_time()
    assert not pattern.fullmatch("a/b/" + "a" * 1024)
    assert time.process_time() - before < 0.25
