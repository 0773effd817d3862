"""Well-formed commands at the wrong time, to the wrong address, or with impossible contents."""

from __future__ import annotations

import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import encode
from tests.broker.bad_input.raw import (
    RawConnection,
    Type,
    command,
    connect_command,
    entry,
    producer_command,
    send_command,
    subscribe_command,
)

T = "persistent://public/default/t"

BEFORE_CONNECT = {
    "PRODUCER": producer_command(T),
    "SUBSCRIBE": subscribe_command(T),
    "SEND": send_command(0),
    "FLOW": command(Type.FLOW, "flow", consumer_id=1, messagePermits=1),
    "LOOKUP": command(Type.LOOKUP, "lookupTopic", topic=T, request_id=1),
    "PARTITIONED_METADATA": command(
        Type.PARTITIONED_METADATA, "partitionMetadata", topic=T, request_id=1
    ),
}


@pytest.mark.parametrize("name", BEFORE_CONNECT)
def test_nothing_can_be_asked_before_connect(connect, name):
    connection: RawConnection = connect(connect=False)
    connection.send(BEFORE_CONNECT[name])
    words = connection.last_words()
    assert [word.type for word in words] == [Type.ERROR]
    assert f"{name} before CONNECT" in words[0].error.message


def test_connect_twice(connect):
    connection: RawConnection = connect()
    connection.send(connect_command())
    assert "CONNECT" in connection.last_words()[-1].error.message


@pytest.mark.parametrize("kind", [Type.CONNECTED, Type.MESSAGE, Type.SEND_RECEIPT, Type.SUCCESS])
def test_a_client_that_talks_like_a_broker(connect, kind):
    connection: RawConnection = connect()
    envelope = pb.BaseCommand()
    envelope.type = kind
    connection.send(envelope)
    assert pb.BaseCommand.Type.Name(kind) in connection.last_words()[-1].error.message


def test_a_command_without_its_part(connect):
    connection: RawConnection = connect()
    envelope = pb.BaseCommand()
    envelope.type = Type.SUBSCRIBE
    connection.send(envelope)
    assert "SUBSCRIBE" in connection.last_words()[-1].error.message


def test_text_that_is_not_text(connect, ackgate_topic):
    connection: RawConnection = connect()
    sound = encode(producer_command(ackgate_topic))
    connection.send_bytes(sound.replace(b"public", b"pub\xffic"))
    assert connection.last_words()[-1].error.message == "PRODUCER with a topic that is not UTF-8"


def test_a_type_that_nobody_knows(connect):
    connection: RawConnection = connect()
    connection.send_bytes(b"\x00\x00\x00\x07\x00\x00\x00\x03\x08\xe7\x07")
    assert "unknown type" in connection.last_words()[-1].error.message


# ---------------------------------------------------------------- unknown ids


def test_a_send_to_an_unknown_producer_ends_the_connection(connect):
    connection: RawConnection = connect()
    connection.send(send_command(0, producer_id=77), entry(b"x"))
    assert "producer 77" in connection.last_words()[-1].error.message


def test_acks_flow_and_redelivery_for_an_unknown_consumer_do_no_harm(connect):
    connection: RawConnection = connect()
    connection.send(command(Type.FLOW, "flow", consumer_id=77, messagePermits=10))
    connection.send(
        command(
            Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            "redeliverUnacknowledgedMessages",
            consumer_id=77,
        )
    )
    reply = connection.ask(
        Type.ACK,
        "ack",
        consumer_id=77,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=0, entryId=0)],
    )
    assert reply.ackResponse.error == pb.ConsumerNotFound
    assert "77" in reply.ackResponse.message
    assert connection.is_alive()


@pytest.mark.parametrize(
    ("kind", "field", "extra"),
    [
        (Type.SEEK, "seek", {"message_publish_time": 1}),
        (Type.GET_LAST_MESSAGE_ID, "getLastMessageId", {}),
        (Type.UNSUBSCRIBE, "unsubscribe", {}),
    ],
)
def test_requests_for_an_unknown_consumer_are_refused(connect, kind, field, extra):
    connection: RawConnection = connect()
    reply = connection.ask(kind, field, consumer_id=77, **extra)
    assert reply.type == Type.ERROR
    assert "onsumer" in reply.error.message
    assert connection.is_alive()


def test_closing_what_is_not_there_succeeds(connect):
    connection: RawConnection = connect()
    reply = connection.ask(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=77)
    assert reply.type == Type.SUCCESS
    reply = connection.ask(Type.CLOSE_PRODUCER, "close_producer", producer_id=77)
    assert reply.type == Type.SUCCESS


# ---------------------------------------------------------------- impossible contents


def subscribed(connect, topic: str) -> RawConnection:
    """A connection with producer 1, consumer 1 and three messages in ledger `ledger_id`."""
    connection: RawConnection = connect()
    connection.ask(Type.PRODUCER, "producer", topic=topic, producer_id=1)
    connection.ask(
        Type.SUBSCRIBE,
        "subscribe",
        topic=topic,
        subscription="s",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=1,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    for number in range(3):
        connection.send(send_command(number), entry(b"x", number))
    while connection.receive().send_receipt.sequence_id != 2:
        pass
    return connection


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param(lambda here: (here, 10**6), id="an entry that does not exist"),
        pytest.param(lambda here: (here + 10**6, 0), id="a ledger that does not exist"),
        pytest.param(lambda _: (HUGE, HUGE), id="minus one"),
        pytest.param(lambda here: (here, 2**32), id="an entry id above the bound"),
        pytest.param(lambda _: (2**63 - 1, 2**63 - 1), id="the latest"),
    ],
)
def test_an_ack_of_what_does_not_exist_fails_as_a_whole(connect, ackgate_topic, elsewhere):
    connection = subscribed(connect, ackgate_topic)
    last = connection.ask(Type.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)
    there = last.getLastMessageIdResponse.last_message_id
    ledger_id, entry_id = elsewhere(there.ledgerId)
    message_ids = [
        pb.MessageIdData(ledgerId=there.ledgerId, entryId=0),
        pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
    ]
    reply = connection.ask(
        Type.ACK,
        "ack",
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=message_ids,
    )
    assert reply.ackResponse.HasField("error")
    assert reply.ackResponse.message
    # All three are still there to be delivered.
    connection.send(command(Type.FLOW, "flow", consumer_id=1, messagePermits=10))
    delivered: set[int] = set()
    while len(delivered) < 3:
        message = connection.receive()
        if message.type == Type.MESSAGE:
            delivered.add(message.message.message_id.entryId)
    assert delivered == {0, 1, 2}


def test_a_cumulative_ack_beyond_the_end_is_refused(connect, ackgate_topic):
    connection = subscribed(connect, ackgate_topic)
    reply = connection.ask(
        Type.ACK,
        "ack",
        consumer_id=1,
        ack_type=pb.CommandAck.Cumulative,
        message_id=[pb.MessageIdData(ledgerId=2**40, entryId=5)],
    )
    assert reply.ackResponse.HasField("error")
    assert connection.is_alive()


@pytest.mark.parametrize("words", [[0], [-1] * 10_000, [2**63 - 1, -(2**63)], [1] * 3])
def test_acks_with_odd_batch_masks_do_no_harm(connect, ackgate_topic, words):
    connection = subscribed(connect, ackgate_topic)
    last = connection.ask(Type.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)
    ledger_id = last.getLastMessageIdResponse.last_message_id.ledgerId
    reply = connection.ask(
        Type.ACK,
        "ack",
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=ledger_id, entryId=1, ack_set=words)],
    )
    if len(words) > 1024:
        assert "10000 words" in reply.ackResponse.message
    assert connection.is_alive()


def test_permits_beyond_all_bounds(connect, ackgate_topic):
    connection = subscribed(connect, ackgate_topic)
    for permits in (0, 2**32 - 1, 2**32 - 1, 2**31):
        connection.send(command(Type.FLOW, "flow", consumer_id=1, messagePermits=permits))
    delivered = 0
    while delivered < 3:
        delivered += connection.receive().type == Type.MESSAGE
    assert connection.is_alive()


def test_seeks_to_nowhere(connect, ackgate_topic):
    connection = subscribed(connect, ackgate_topic)
    for ledger_id, entry_id in ((0, 10**9), (2**62, 0), (HUGE, HUGE), (2**63 - 1, 2**63 - 1)):
        connection.ask(
            Type.SEEK,
            "seek",
            consumer_id=1,
            message_id=pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
        )
        connection.ask(
            Type.SUBSCRIBE,
            "subscribe",
            topic=ackgate_topic,
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
        )
    connection.ask(Type.SEEK, "seek", consumer_id=1, message_publish_time=HUGE)
    assert connection.is_alive()


def test_transactions_and_non_persistent_topics_are_refused_by_name(connect):
    connection: RawConnection = connect()
    reply = connection.ask(Type.NEW_TXN, "newTxn")
    assert reply.error.error == pb.NotAllowedError
    assert "ransactions" in reply.error.message
    reply = connection.ask(
        Type.PRODUCER, "producer", topic="non-persistent://public/default/t", producer_id=1
    )
    assert reply.error.error == pb.NotAllowedError
    assert "non-persistent://public/default/t" in reply.error.message
