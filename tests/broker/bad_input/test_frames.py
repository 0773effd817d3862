"""Bytes that are no protocol: the connection that sent them ends, nobody else notices."""

from __future__ import annotations

import random
import struct

import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import encode
from ackgate.persistence.messages.frame import seal_entry
from tests.broker.bad_input.raw import (
    RawConnection,
    Type,
    command,
    connect_command,
    entry,
    greeting,
    producer_command,
    send_command,
    subscribe_command,
    work,
)

MUTANTS = 40
"""Of each kind; every one is a connection of its own."""


def flip(stream: bytes, rng: random.Random) -> bytes:
    mutated = bytearray(stream)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
    return bytes(mutated)


def cut(stream: bytes, rng: random.Random) -> bytes:
    return stream[: rng.randrange(len(stream))]


def remove(stream: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(stream))
    return stream[:start] + stream[start + rng.randrange(1, 40) :]


def insert(stream: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(stream))
    return stream[:start] + rng.randbytes(rng.randrange(1, 40)) + stream[start:]


def shuffle(stream: bytes, rng: random.Random) -> bytes:
    frames = []
    while stream:
        (size,) = struct.unpack_from(">I", stream)
        frames.append(stream[: size + 4])
        stream = stream[size + 4 :]
    return b"".join(rng.choices(frames, k=2 * len(frames)))


def noise(stream: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(stream))


MUTATIONS = [flip, cut, remove, insert, shuffle, noise]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_mutated_greetings(connect, ackgate_topic, mutate):
    stream = b"".join(greeting(ackgate_topic))
    for seed in range(MUTANTS):
        connection = connect(connect=False)
        connection.send_bytes(mutate(stream, random.Random(f"{mutate.__name__} {seed}")))
        connection.end_of_input()
        connection.last_words()
        connection.close()


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_mutated_work(connect, fresh_ackgate_topic, mutate):
    for seed in range(MUTANTS):
        connection = greeted(connect, fresh_ackgate_topic())
        connection.send_bytes(mutate(work(), random.Random(f"{mutate.__name__} {seed}")))
        connection.end_of_input()
        connection.last_words()
        connection.close()


def greeted(connect, topic: str) -> RawConnection:
    """A connection with producer 1 and consumer 1."""
    connection: RawConnection = connect(connect=False)
    for frame, answer in zip(
        greeting(topic), (Type.CONNECTED, Type.PRODUCER_SUCCESS, Type.SUCCESS), strict=True
    ):
        connection.send_bytes(frame)
        assert connection.receive().type == answer
    return connection


def test_what_has_been_said_before_the_mistake_holds(connect, ackgate_topic):
    connection = connect()
    connection.send(producer_command(ackgate_topic))
    assert connection.receive().type == Type.PRODUCER_SUCCESS
    connection.send(send_command(0), entry(b"good"))
    while connection.receive().type != Type.SEND_RECEIPT:
        pass
    connection.send_bytes(b"\x00" * 100)
    connection.last_words()
    reader = connect()
    reader.send(subscribe_command(ackgate_topic))
    reader.send(command(Type.FLOW, "flow", consumer_id=1, messagePermits=10))
    while reader.receive().type != Type.MESSAGE:
        pass


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (5 * 1024 * 1024 + 10 * 1024 + 1, "frame of 5253121 bytes is above the limit of 5253120"),
        (2**32 - 1, "frame of 4294967295 bytes is above the limit of 5253120"),
        (0, "malformed frame: total size 0"),
        (5, "malformed frame: total size 5"),
    ],
)
def test_a_frame_of_an_impossible_size_is_refused_by_its_first_bytes(connect, size, said):
    connection: RawConnection = connect()
    connection.send_bytes(struct.pack(">II", size, 10))
    words = connection.last_words()
    assert said in words[-1].error.message


def test_before_the_handshake_frames_are_small(connect):
    connection: RawConnection = connect(connect=False)
    connection.send_bytes(struct.pack(">II", 65_537, 10))
    assert "above the limit of 65536" in connection.last_words()[-1].error.message


def test_a_command_larger_than_its_frame(connect):
    connection: RawConnection = connect()
    connection.send_bytes(struct.pack(">II", 100, 101) + bytes(100))
    assert "command size 101" in connection.last_words()[-1].error.message


def test_a_command_that_is_not_protobuf(connect):
    connection: RawConnection = connect()
    connection.send_bytes(struct.pack(">II", 12, 8) + b"\xff" * 8)
    assert "protobuf" in connection.last_words()[-1].error.message


def test_a_wrong_checksum_fails_that_message_and_no_other(connect, ackgate_topic):
    connection: RawConnection = connect()
    connection.ask(Type.PRODUCER, "producer", topic=ackgate_topic, producer_id=1)
    broken = bytearray(entry(b"payload", 1))
    broken[-1] ^= 1
    connection.send(send_command(0), entry(b"first", 0))
    connection.send(send_command(1), bytes(broken))
    connection.send(send_command(2), entry(b"third", 2))
    heard: dict[int, str] = {}
    while len(heard) < 3:
        reply = connection.receive()
        if reply.type == Type.SEND_RECEIPT:
            heard[reply.send_receipt.sequence_id] = "stored"
        elif reply.type == Type.SEND_ERROR:
            assert reply.send_error.error == pb.ChecksumError
            heard[reply.send_error.sequence_id] = reply.send_error.message
    assert heard == {0: "stored", 1: "Checksum failed on the broker", 2: "stored"}


@pytest.mark.parametrize(
    "sealed",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x0e\x01", id="only the magic number"),
        pytest.param(struct.pack(">I", 1000) + b"x", id="metadata longer than the entry"),
        pytest.param(seal_entry(b"\xff\xff\xff", b"x"), id="metadata that is none"),
    ],
)
def test_an_entry_that_nobody_could_read_is_not_stored(connect, ackgate_topic, sealed):
    connection = greeted(connect, ackgate_topic)
    connection.send(send_command(0), sealed)
    assert "malformed entry" in connection.last_words()[-1].error.message
    second = greeted(connect, ackgate_topic)
    second.send(command(Type.FLOW, "flow", consumer_id=1, messagePermits=10))
    second.send(send_command(0), entry(b"sound"))
    while True:
        reply = second.receive()
        if reply.type == Type.MESSAGE:
            break


def test_keys_that_are_no_text_are_keys(connect, ackgate_topic):
    """Clients in C++ may set any bytes; protobuf calls the field a string."""
    connection: RawConnection = connect()
    connection.ask(Type.PRODUCER, "producer", topic=ackgate_topic, producer_id=1)
    connection.ask(
        Type.SUBSCRIBE,
        "subscribe",
        topic=ackgate_topic,
        subscription="s",
        subType=pb.CommandSubscribe.Key_Shared,
        consumer_id=1,
    )
    connection.send(command(Type.FLOW, "flow", consumer_id=1, messagePermits=10))
    metadata = pb.MessageMetadata(
        producer_name="raw", sequence_id=0, publish_time=1, partition_key="key"
    ).SerializeToString()
    connection.send(send_command(0), seal_entry(metadata.replace(b"key", b"k\xffy"), b"x"))
    while connection.receive().type != Type.MESSAGE:
        pass


@pytest.mark.parametrize("count", [0, -1, 2**31 - 1, -(2**31)])
def test_a_send_that_lies_about_its_batch_costs_its_consumer_nothing(connect, ackgate_topic, count):
    connection = greeted(connect, ackgate_topic)
    connection.send(command(Type.FLOW, "flow", consumer_id=1, messagePermits=10))
    for number in range(10):
        lie = command(Type.SEND, "send", producer_id=1, sequence_id=number, num_messages=count)
        connection.send(lie, entry(b"x", number))
    delivered = 0
    while delivered < 10:
        delivered += connection.receive().type == Type.MESSAGE


def test_byte_by_byte_is_as_good_as_at_once(connect, ackgate_topic):
    connection = greeted(connect, ackgate_topic)
    for byte in work():
        connection.send_bytes(bytes([byte]))
    heard: set[int] = set()
    expected = {Type.SEND_RECEIPT, Type.MESSAGE, Type.ACK_RESPONSE, Type.PONG, Type.SUCCESS}
    while not expected <= heard:
        heard.add(connection.receive().type)


def test_endless_commands_without_reading_the_answers(connect):
    """A client that asks and never reads must not fill the broker's memory."""
    connection: RawConnection = connect()
    ping = encode(command(Type.PING, "ping")) * 10_000
    connection._socket.settimeout(1.0)
    with pytest.raises(TimeoutError):  # the broker has stopped reading
        for _ in range(10_000):
            connection._socket.sendall(ping)


def test_a_handshake_in_an_old_protocol_version_is_refused(connect):
    connection: RawConnection = connect(connect=False)
    connection.send(connect_command(protocol_version=3))
    assert "protocol version 3" in connection.last_words()[-1].error.message
