"""A session that is fed mutated commands: it answers or closes, and others are served."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from google.protobuf.message import Message as ProtobufMessage
from hypothesis import given

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import PING
from tests.support.wire_client import WireClient
from tests.unit.broker_wire.wire_server import serving

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

Type = pb.BaseCommand.Type

numbers = st.one_of(st.sampled_from([0, 1, 2, 3, 2**31, 2**63, 2**64 - 1]), st.integers(0, 10))
texts = st.one_of(
    st.sampled_from(["t", "public/default", "s", "", "..", "a/b", "\x00", "x" * 2000]),
    st.text(max_size=10),
)


def value_of(draw: st.DrawFn, field: FieldDescriptor, depth: int) -> object:
    if field.type == field.TYPE_ENUM:
        return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    if field.type in {field.TYPE_UINT64, field.TYPE_UINT32}:
        bits = 64 if field.type == field.TYPE_UINT64 else 32
        return draw(numbers) % 2**bits
    if field.type in {field.TYPE_INT32, field.TYPE_INT64}:
        bits = 64 if field.type == field.TYPE_INT64 else 32
        return draw(numbers) % 2**bits - 2 ** (bits - 1)
    if field.type == field.TYPE_BOOL:
        return draw(st.booleans())
    if field.type == field.TYPE_STRING:
        return draw(texts)
    if field.type == field.TYPE_BYTES:
        return draw(st.binary(max_size=12))
    return draw(st.floats(allow_nan=False))


def fill(draw: st.DrawFn, message: ProtobufMessage, depth: int = 0) -> None:
    """Set some of the fields, required ones nearly always."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and draw(st.integers(0, 2)) == 0:
            continue
        if field.is_required and draw(st.integers(0, 20)) == 0:
            continue
        if field.type == field.TYPE_MESSAGE:
            if depth > 2:
                continue
            target = getattr(message, field.name)
            fill(draw, target.add() if field.is_repeated else target, depth + 1)
            if not field.is_repeated:
                target.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).extend([value_of(draw, field, depth)])
        else:
            setattr(message, field.name, value_of(draw, field, depth))


@st.composite
def commands(draw: st.DrawFn) -> bytes:
    """A command of any type, well formed but for its contents, and sometimes not even that."""
    command = pb.BaseCommand()
    by_number = {field.number: field for field in command.DESCRIPTOR.fields}
    number = draw(st.sampled_from(sorted(set(by_number) - {1})))
    command.type = number  # type: ignore[assignment] - types and fields share their numbers
    body = getattr(command, by_number[number].name)
    body.SetInParent()
    fill(draw, body)
    serialized = bytearray(command.SerializePartialToString())
    if draw(st.integers(0, 5)) == 0:  # text that is not UTF-8
        serialized = serialized.replace(b"public", b"p\xffblic").replace(b"s", b"\xfe")
    if draw(st.integers(0, 5)) == 0:
        serialized[draw(st.integers(0, len(serialized) - 1))] ^= 1 << draw(st.integers(0, 7))
    payload = draw(st.one_of(st.just(b""), st.binary(max_size=40)))
    total = 4 + len(serialized) + len(payload)
    sizes = total.to_bytes(4, "big") + len(serialized).to_bytes(4, "big")
    return sizes + bytes(serialized) + payload


@pytest.mark.slow
@given(streams=st.lists(st.lists(commands(), min_size=1, max_size=8), min_size=1, max_size=4))
def test_others_are_served_whatever_one_client_says(streams: list[list[bytes]]) -> None:
    asyncio.run(_attack(streams))


async def _attack(streams: list[list[bytes]]) -> None:
    bugs: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lambda record: bugs.append(record) if record.levelno >= logging.ERROR else None  # type: ignore[method-assign]
    logging.getLogger("ackgate").addHandler(handler)
    try:
        async with serving() as server, await server.connect() as innocent:
            producer = await innocent.producer("innocent")
            for stream in streams:
                hostile = await server.connect()
                await _say(hostile, b"".join(stream))
                await producer.send(b"still here")
                hostile.abort()
        assert not [record.getMessage() for record in bugs]
    finally:
        logging.getLogger("ackgate").removeHandler(handler)


async def _say(client: WireClient, stream: bytes) -> None:
    """Say it, and wait until it was heard or the connection closed."""
    # Ids from 1 on, so that some commands hit a producer or a consumer.
    await client.producer("t")
    await client.subscribe("t", "s")
    client.send_bytes(stream)
    client.send_bytes(PING)
    await client.until(
        lambda: client.closed.done() or any(each.type == Type.PONG for each in client.events)
    )
