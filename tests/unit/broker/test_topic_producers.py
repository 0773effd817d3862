"""Names and access modes of a topic's producers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ackgate.broker.topic.producers import Producer, TopicProducers
from ackgate.broker.wire.errors import ProducerBusyError, ProducerFencedError
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import AccessMode, ProducerRequest
from ackgate.errors import MetadataStoreError
from ackgate.network import NOWHERE, Urls

TOPIC = TopicName.parse("t")


class Session:
    """What a producer's connection was told."""

    def __init__(self) -> None:
        self.is_open = True
        self.closed: list[int] = []
        self.ready: list[int] = []

    def close_producer(self, producer_id: int, urls: Urls = NOWHERE) -> None:
        self.closed.append(producer_id)

    def send_producer_ready(self, producer_id: int) -> None:
        self.ready.append(producer_id)


class Epochs:
    """Where the topic epoch is stored."""

    def __init__(self) -> None:
        self.stored: list[int] = []

    async def __call__(self, epoch: int) -> None:
        self.stored.append(epoch)


@pytest.fixture
def epochs() -> Epochs:
    return Epochs()


@pytest.fixture
def producers(epochs: Epochs) -> TopicProducers:
    return TopicProducers("t", None, epochs)


def producer(
    name: str,
    mode: AccessMode = AccessMode.SHARED,
    *,
    session: Session | None = None,
    producer_id: int = 1,
    epoch: int = 0,
    topic_epoch: int | None = None,
) -> Producer:
    request = ProducerRequest(
        TOPIC, producer_id, name, epoch=epoch, access_mode=mode, topic_epoch=topic_epoch
    )
    return Producer(cast("Any", None), cast("Any", session or Session()), request, name)


async def test_a_name_is_held_by_one_live_producer(producers: TopicProducers) -> None:
    await producers.add(producer("p"))
    with pytest.raises(ProducerBusyError, match="'p'"):
        await producers.add(producer("p"))


class FailingEpochs:
    """A store of the topic epoch that fails once it is let go on, and works from then on."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.is_failing = True

    async def __call__(self, epoch: int) -> None:
        await self.goes_on.wait()
        if self.is_failing:
            self.is_failing = False
            raise MetadataStoreError("no answer")


async def test_who_waits_for_one_that_could_not_be_admitted_is_admitted() -> None:
    epochs = FailingEpochs()
    producers = TopicProducers("t", None, epochs)
    first = asyncio.ensure_future(producers.add(producer("first", AccessMode.EXCLUSIVE)))
    await asyncio.sleep(0)
    waiting = producer("waiting", AccessMode.WAIT_FOR_EXCLUSIVE)
    await producers.add(waiting)
    epochs.goes_on.set()
    with pytest.raises(MetadataStoreError):
        await first
    assert waiting.is_ready
    assert list(producers) == [waiting]


async def test_one_that_waits_and_leaves_does_not_give_away_what_another_is_getting() -> None:
    epochs = FailingEpochs()
    epochs.is_failing = False
    producers = TopicProducers("t", None, epochs)
    first = producer("first", AccessMode.EXCLUSIVE)
    adding = asyncio.ensure_future(producers.add(first))
    await asyncio.sleep(0)
    leaving, staying = (producer(name, AccessMode.WAIT_FOR_EXCLUSIVE) for name in "ab")
    for waiting in (leaving, staying):
        await producers.add(waiting)
    epochs.goes_on.set()
    await producers.remove(leaving)
    await adding
    assert list(producers) == [first]
    assert not staying.is_ready


async def test_who_waits_gets_the_place_of_a_dead_connection_that_came_back_in_vain(
    producers: TopicProducers,
) -> None:
    session = Session()
    await producers.add(producer("p", session=session))
    waiting = producer("w", AccessMode.WAIT_FOR_EXCLUSIVE)
    await producers.add(waiting)
    session.is_open = False
    with pytest.raises(ProducerBusyError):
        await producers.add(producer("p"))
    assert waiting.is_ready


async def test_who_was_fenced_does_not_fence_its_successor(producers: TopicProducers) -> None:
    """Its client comes back by itself, with the epoch that it held."""
    old, new = (producer(name, AccessMode.EXCLUSIVE_WITH_FENCING) for name in ("old", "new"))
    await producers.add(old)
    await producers.add(new)
    returned = producer("old", AccessMode.EXCLUSIVE_WITH_FENCING, topic_epoch=old.topic_epoch)
    with pytest.raises(ProducerFencedError, match="topic epoch has moved"):
        await producers.add(returned)
    assert list(producers) == [new]
    assert not new.is_closed


async def test_a_dead_connection_gives_its_name_up(producers: TopicProducers) -> None:
    session = Session()
    await producers.add(producer("p", session=session))
    session.is_open = False
    await producers.add(producer("p"))
    assert len(producers) == 1


async def test_the_same_client_may_come_back_with_a_later_epoch(producers: TopicProducers) -> None:
    session = Session()
    await producers.add(producer("p", session=session))
    await producers.add(producer("p", session=session, epoch=1))
    with pytest.raises(ProducerBusyError):
        await producers.add(producer("p", session=session, epoch=1))


async def test_exclusive_refuses_others_and_shared_is_refused_beside_it(
    producers: TopicProducers, epochs: Epochs
) -> None:
    first = producer("a", AccessMode.EXCLUSIVE)
    await producers.add(first)
    assert first.topic_epoch == 0
    assert epochs.stored == [0]
    with pytest.raises(ProducerBusyError):
        await producers.add(producer("b"))
    with pytest.raises(ProducerFencedError):
        await producers.add(producer("c", AccessMode.EXCLUSIVE))


async def test_who_waits_is_told_when_the_holder_leaves(producers: TopicProducers) -> None:
    holder = producer("a", AccessMode.EXCLUSIVE)
    await producers.add(holder)
    session = Session()
    waiting = producer("b", AccessMode.WAIT_FOR_EXCLUSIVE, session=session, producer_id=7)
    await producers.add(waiting)
    assert not waiting.is_ready
    await producers.remove(holder)
    assert waiting.is_ready
    assert session.ready == [7]
    assert waiting.topic_epoch == 1


async def test_fencing_throws_everybody_out(producers: TopicProducers) -> None:
    sessions = [Session(), Session()]
    await producers.add(producer("a", AccessMode.EXCLUSIVE, session=sessions[0]))
    await producers.add(producer("b", AccessMode.WAIT_FOR_EXCLUSIVE, session=sessions[1]))
    await producers.add(producer("c", AccessMode.EXCLUSIVE_WITH_FENCING))
    assert [session.closed for session in sessions] == [[1], [1]]
    assert [p.name for p in producers] == ["c"]


async def test_an_older_topic_epoch_is_fenced(producers: TopicProducers) -> None:
    first = producer("a", AccessMode.EXCLUSIVE)
    await producers.add(first)
    await producers.remove(first)
    second = producer("b", AccessMode.EXCLUSIVE)
    await producers.add(second)
    await producers.remove(second)
    assert second.topic_epoch == 1
    with pytest.raises(ProducerFencedError, match="moved to 1"):
        await producers.add(producer("a", AccessMode.EXCLUSIVE, topic_epoch=0))
