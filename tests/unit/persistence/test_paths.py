"""Names become nodes and come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.errors import CallerError
from ackgate.persistence import cursor_path, topic_path
from ackgate.persistence.nodes.paths import (
    delivery_journal_path,
    ledger_path,
    name_of_node,
    node_of_name,
)
from ackgate.persistence.ports.node_rules import check_path


def test_the_layout_is_pulsars() -> None:
    topic = topic_path("public", "default", "orders-partition-0")
    assert topic == "/managed-ledgers/public/default/persistent/orders-partition-0"
    assert cursor_path(topic, "my sub") == topic + "/my%20sub"
    assert ledger_path(12) == "/ledgers/12"


def test_delivery_journals_lie_in_a_tree_of_their_own() -> None:
    path = delivery_journal_path("public", "a/b", "my topic")
    assert path == "/ackgate/delivery-journals/public/a%2Fb/my%20topic"


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_name_is_one_possible_node_and_comes_back(name: str) -> None:
    node = node_of_name(name)
    check_path(f"/{node}")
    assert "/" not in node
    assert name_of_node(node) == name


@pytest.mark.parametrize("name", ["..", ".", "../..", "a/b", "%2F", "\0", "ä", "#x", " "])
def test_no_name_steps_out(name: str) -> None:
    path = topic_path(name, name, name)
    check_path(path)
    assert path.count("/") == 5


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(CallerError):
        node_of_name(name)
