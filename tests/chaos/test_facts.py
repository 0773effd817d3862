"""The judge is judged: each broken promise is told, each kept one is not."""

from __future__ import annotations

import pytest

from ackgate.cursor import Position
from tests.chaos.facts import (
    MessageKey,
    OrderFacts,
    SubscriptionFacts,
    TopicFacts,
    ViolationError,
)

A, B, C = (MessageKey(1, entry_id, 0) for entry_id in range(3))
LAST = MessageKey(9, 0, 0)


@pytest.fixture
def facts() -> SubscriptionFacts:
    facts = SubscriptionFacts("s")
    for key in (A, B, C):
        facts.exists(key)
    return facts


def test_unacked_messages_must_come(facts):
    facts.verify_deliveries({A, B, C}, LAST)
    with pytest.raises(ViolationError, match="1 unacked messages were skipped: 1:1#0"):
        facts.verify_deliveries({A, C}, LAST)


def test_confirmed_acks_must_not_come_again(facts):
    facts.ack_sent([B])
    facts.ack_durable([B])
    facts.verify_deliveries({A, C}, LAST)
    with pytest.raises(ViolationError, match="1 acked messages came again: 1:1#0"):
        facts.verify_deliveries({A, B, C}, LAST)
    with pytest.raises(ViolationError, match="has come again"):
        facts.delivered(B)


def test_unconfirmed_acks_may_come_again_once_and_are_settled_then(facts):
    facts.ack_sent([A, B])
    facts.verify_deliveries({A, C}, LAST)
    with pytest.raises(ViolationError, match="came again"):
        facts.verify_deliveries({A, B, C}, LAST)
    with pytest.raises(ViolationError, match="skipped"):
        facts.verify_deliveries({C}, LAST)


def test_without_a_change_of_hands_an_ack_is_only_known_to_be_applied(facts):
    facts.ack_sent([A, B])
    facts.verify_deliveries({A, C}, LAST, applied_at=10.0)
    assert facts.unsure == {B: 10.0}
    assert facts.open == {A, C}
    facts.applied_is_durable(11.0)
    assert set(facts.done) == {B}


def test_a_late_receipt_must_not_confirm_what_was_lost(facts):
    facts.ack_sent([A, B])
    facts.broker_ended()
    facts.verify_deliveries({A, C}, LAST)
    facts.receipt([B], 0, 1.0)
    with pytest.raises(ViolationError, match="1 acks were confirmed after they had been lost"):
        facts.receipt([A], 0, 1.0)
    facts.ack_sent([A])
    facts.receipt([A], 1, 2.0)


def test_messages_of_one_key_come_first_in_order():
    order = OrderFacts("s")
    order.delivered(B.position, "k")
    order.delivered(Position(0, 0), "other key")
    order.delivered(C.position, "k")
    order.delivered(B.position, "k")  # again
    with pytest.raises(ViolationError, match=r"'k': .* came after"):
        order.delivered(A.position, "k")


def test_a_receipt_covers_what_was_applied_before_its_ack_was_sent(facts):
    facts.ack_sent([A, B, C])
    facts.ack_applied([A], 10.0)
    facts.ack_applied([B], 10.9)
    facts.receipt([C], 0, 10.5)
    assert set(facts.done) == {A, C}
    assert facts.had_receipt == {C}
    assert set(facts.unsure) == {B}


def test_a_state_must_hold_durable_acks_and_no_others(facts):
    facts.ack_durable([A])
    facts.verify_state(lambda position: position == A.position, 1.0)
    with pytest.raises(ViolationError, match="durable acks are gone"):
        facts.verify_state(lambda _: False, 1.0)
    with pytest.raises(ViolationError, match="nobody has acked them: 1:1#0, 1:2#0"):
        facts.verify_state(lambda _: True, 1.0)


def test_an_ack_that_a_crash_took_does_not_count_as_old_later(facts):
    facts.ack_sent([A])
    facts.ack_applied([A], 10.0)
    facts.broker_ended()
    facts.verify_state(lambda _: False, 11.0)
    facts.applied_is_durable(20.0)
    assert not facts.done


def test_mark_delete_must_not_go_back(facts):
    facts.verify_mark_delete(Position(1, 5))
    facts.verify_mark_delete(Position(1, 7), is_durable=False)
    facts.verify_mark_delete(Position(1, 5))
    with pytest.raises(ViolationError, match="went back from 1:5 to 1:4"):
        facts.verify_mark_delete(Position(1, 4))


def test_a_message_is_what_it_was():
    topic = TopicFacts("t", [])
    first, second = topic.new_payload(), topic.new_payload()
    topic.exists(A, first)
    with pytest.raises(ViolationError, match="held b'1' and now holds b'2'"):
        topic.exists(A, second)
    with pytest.raises(ViolationError, match="never sent"):
        topic.exists(B, b"77")
