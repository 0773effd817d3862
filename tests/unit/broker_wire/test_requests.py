"""From protobuf to checked values."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.broker.wire import requests
from ackgate.broker.wire.errors import (
    BrokerError,
    InvalidTopicNameError,
    MetadataFailedError,
    NotAllowedError,
)
from ackgate.broker.wire.names import InvalidNameError
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.requests import AccessMode, InitialPosition, SchemaType, SubscriptionType
from ackgate.cursor import EARLIEST, LATEST, Position
from ackgate.dispatcher import KeySharedMode
from ackgate.errors import AckGateError, ConsumerAssignError


def subscribe(**fields: Any) -> pb.CommandSubscribe:
    required = {"topic": "t", "subscription": "s", "subType": 1, "consumer_id": 1, "request_id": 2}
    return pb.CommandSubscribe(**(required | fields))


def producer(**fields: Any) -> pb.CommandProducer:
    return pb.CommandProducer(**({"topic": "t", "producer_id": 1, "request_id": 2} | fields))


def test_a_bare_subscribe_has_the_defaults_of_the_protocol() -> None:
    request = requests.subscribe_request(subscribe())
    assert str(request.topic) == "persistent://public/default/t"
    assert request.subscription_type is SubscriptionType.SHARED
    assert request.initial_position is InitialPosition.LATEST
    assert request.is_durable
    assert request.create_topic
    assert request.start_position is None
    assert request.start_batch_index is None
    assert request.key_shared is None
    assert request.schema is None
    assert request.epoch is None


def test_a_full_subscribe_arrives_whole() -> None:
    command = subscribe(
        subType=3,
        consumer_name="c",
        priority_level=4,
        durable=False,
        start_message_id=pb.MessageIdData(ledgerId=5, entryId=6, batch_index=7),
        start_message_rollback_duration_sec=8,
        initialPosition=1,
        read_compacted=True,
        replicate_subscription_state=True,
        force_topic_creation=False,
        consumer_epoch=0,
        schema=pb.Schema(name="n", type=4, schema_data=b"{}"),
        metadata=[pb.KeyValue(key="k", value="v")],
        subscription_properties=[pb.KeyValue(key="p", value="q")],
        keySharedMeta=pb.KeySharedMeta(
            keySharedMode=1, hashRanges=[pb.IntRange(start=0, end=9)], allowOutOfOrderDelivery=True
        ),
    )
    request = requests.subscribe_request(command)
    assert request.start_position == Position(5, 6)
    assert request.start_batch_index == 7
    assert request.start_rollback_seconds == 8
    assert not request.is_durable
    assert not request.create_topic
    assert request.key_shared is not None
    assert request.key_shared.mode is KeySharedMode.STICKY
    assert request.key_shared.hash_ranges == ((0, 10),)
    assert request.key_shared.allows_out_of_order
    assert request.schema is not None
    assert request.schema.type is SchemaType.AVRO
    assert request.epoch == 0
    assert dict(request.metadata) == {"k": "v"}
    assert dict(request.subscription_properties) == {"p": "q"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "a/b"}, InvalidTopicNameError),
        ({"topic": "non-persistent://a/b/c"}, NotAllowedError),
        ({"subscription": ""}, InvalidNameError),
        ({"subscription": ".."}, InvalidNameError),
        ({"consumer_name": "\x00"}, InvalidNameError),
        ({"metadata": [pb.KeyValue(key="k", value="v" * 1024)]}, MetadataFailedError),
    ],
)
def test_what_cannot_be_subscribed_is_refused(
    fields: dict[str, Any], error: type[BrokerError]
) -> None:
    with pytest.raises(error):
        requests.subscribe_request(subscribe(**fields))


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5), (0, 65_536), (-5, -1)])
def test_impossible_hash_ranges_are_refused(start: int, end: int) -> None:
    meta = pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=start, end=end)])
    with pytest.raises(ConsumerAssignError, match="hash range"):
        requests.key_shared_policy(meta)


def test_a_producer_may_have_no_name_and_no_schema() -> None:
    request = requests.producer_request(producer())
    assert request.name is None
    assert request.access_mode is AccessMode.SHARED
    assert request.topic_epoch is None
    assert request.is_name_from_user
    stated = producer(schema=pb.Schema(name="", type=21, schema_data=b""))
    assert requests.producer_request(stated).schema is None


def test_a_producer_with_everything() -> None:
    request = requests.producer_request(
        producer(
            producer_name="p",
            epoch=3,
            user_provided_producer_name=False,
            producer_access_mode=3,
            topic_epoch=0,
            encrypted=True,
            initial_subscription_name="dlq",
            metadata=[pb.KeyValue(key="k", value="v")],
        )
    )
    assert (request.name, request.epoch, request.topic_epoch) == ("p", 3, 0)
    assert request.access_mode is AccessMode.EXCLUSIVE_WITH_FENCING
    assert request.initial_subscription == "dlq"
    assert request.is_encrypted
    assert not request.is_name_from_user


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "position"),
    [
        (2**64 - 1, 2**64 - 1, EARLIEST),
        (2**63 - 1, 2**63 - 1, LATEST),
        (5, 2**64 - 1, Position(5, -1)),
        (5, 2**63, Position(5, -1)),
        (5, 6, Position(5, 6)),
    ],
)
def test_ids_are_java_longs(ledger_id: int, entry_id: int, position: Position) -> None:
    message_id = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    assert requests.position(message_id) == position


def test_an_ack_set_is_one_mask_and_an_endless_one_is_refused() -> None:
    message_id = pb.MessageIdData(ledgerId=1, entryId=1)
    assert requests.unacked_mask(message_id) is None
    message_id.ack_set.extend([-1, 1])
    assert requests.unacked_mask(message_id) == 2**65 - 1
    message_id.ack_set.extend([1] * 5000)
    with pytest.raises(AckGateError):
        requests.unacked_mask(message_id)
