"""Whatever a host does wrong is answered with an error of ours, that says what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

import ackgate
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    DataDirectoryBusyError,
    OwnershipError,
)
from ackgate.persistence import MemoryMetadataStore
from ackgate.testing import MemoryLedgerClient

WRONG_OPENINGS: dict[str, dict[str, Any]] = {
    "no directory": {},
    "a number": {"directory": 7},
    "an empty path": {"directory": ""},
    "metadata by its address": {"directory": "data", "metadata": "zk:localhost:2181"},
    "ledgers by their directory": {"directory": "data", "ledger_client": "bookies"},
    "settings in a dictionary": {"directory": "data", "settings": {"ackPersistLingerMs": 3}},
    "a time for a clock": {"directory": "data", "clock_ms": 1_000},
}


@pytest.mark.parametrize("name", WRONG_OPENINGS)
async def test_wrong_arguments_of_open(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CallerError):
        async with ackgate.open_embedded(**WRONG_OPENINGS[name]):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        async with ackgate.open_embedded(tmp_path / "data"):
            pass


async def test_directory_that_is_open(tmp_path: Path) -> None:
    async with ackgate.open_embedded(tmp_path):
        with pytest.raises(DataDirectoryBusyError):
            async with ackgate.open_embedded(tmp_path):
                pass


class Host:
    """One topic, one subscription, one consumer."""

    storage: ackgate.EmbeddedStorage
    topic: ackgate.EmbeddedTopic
    sub: ackgate.EmbeddedSubscription
    consumer: ackgate.EmbeddedConsumer

    async def __aenter__(self) -> Self:
        self.ports = {"metadata": MemoryMetadataStore(), "ledger_client": MemoryLedgerClient()}
        self._opened = ackgate.open_embedded(**self.ports)  # type: ignore[arg-type]
        self.storage = await self._opened.__aenter__()
        self.topic = await self.storage.topic("orders")
        self.sub = await self.topic.subscribe("billing")
        self.consumer = self.sub.attach("alice")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.__aexit__(None, None, None)


async def later(call: Callable[[], object]) -> object:
    """What the call returns, awaited if that is what it wants."""
    returned = call()
    return await returned if isinstance(returned, Awaitable) else returned


any_: Any = None  # what a host without a type checker passes

WRONG_CALLS: dict[str, Callable[[Host], object]] = {
    "a topic without a name": lambda host: host.storage.topic(""),
    "a topic by bytes": lambda host: host.storage.topic(any_ or b"orders"),
    "ledgers that are a list": lambda host: host.storage.topic("log", ledgers=any_ or [7]),
    "other ledgers": lambda host: host.storage.topic("orders", ledgers=MessageLedgers()),
    "reading without ledgers": lambda host: host.storage.topic("log", read=any_ or print),
    "retention as a number": lambda host: host.storage.topic("log", retention=any_ or 7),
    "a cursor of nothing": lambda host: host.storage.open_cursor("log", "c", any_),
    "a subscription that is open": lambda host: host.topic.subscribe("billing"),
    "a subscription without a name": lambda host: host.topic.subscribe(""),
    "a kind by its class": lambda host: host.topic.subscribe("s", kind=any_ or ackgate.Shared),
    "a kind by its name": lambda host: host.topic.subscribe("s", kind=any_ or "Shared"),
    "a gate as a switch": lambda host: host.topic.subscribe("s", gate=any_ or True),
    "a start as a number": lambda host: host.topic.subscribe("s", start=any_ or 7),
    "a gate that lets through too much": lambda host: host.topic.subscribe(
        "s", gate=ackgate.GateSettings(enabled=True, ranges_max=10_001)
    ),
    "a consumer twice": lambda host: host.sub.attach("alice"),
    "a consumer without a name": lambda host: host.sub.attach(""),
    "no permits": lambda host: host.sub.attach("bob", permits=0),
    "permits as text": lambda host: host.sub.attach("bob", permits=any_ or "many"),
    "one message for a list": lambda host: host.topic.publish(any_ or b"order"),
    "text": lambda host: host.topic.publish(any_ or ["order"]),
    "no list": lambda host: host.topic.publish(any_ or 7),
    "a key as bytes": lambda host: host.topic.publish([b"order"], key=any_ or b"k"),
    "a key that is no Unicode": lambda host: host.topic.publish([b"order"], key="\ud800"),
    "a time that is past all": lambda host: host.topic.publish([b"order"], deliver_at_ms=-1),
    "a time that never comes": lambda host: host.topic.publish([b"order"], deliver_at_ms=2**63),
    "a message that is too large": lambda host: host.topic.publish([bytes(6 * 1024 * 1024)]),
    "an ack of nothing": lambda host: host.consumer.ack(),
    "an ack of a number": lambda host: host.consumer.ack(any_ or 7),
    "an ack of a pair": lambda host: host.consumer.ack(any_ or (1, 0)),
    "an ack of what does not exist": lambda host: host.consumer.ack(Position(99, 0)),
    "a cumulative ack of what does not exist": lambda host: host.consumer.ack_cumulative(
        Position(99, 0)
    ),
    "a nack with a negative delay": lambda host: host.consumer.nack(Position(1, 0), delay_ms=-1),
    "a nack without end": lambda host: host.consumer.nack(Position(1, 0), delay_ms=2**63),
    "a seek beyond the end": lambda host: host.sub.seek(Position(99, 0)),
    "a seek to a pair": lambda host: host.sub.seek(any_ or (1, 0)),
    "a skip of less than nothing": lambda host: host.sub.skip(-1),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
async def test_wrong_call_raises_and_changes_nothing(name: str) -> None:
    async with Host() as host:
        before = host.sub.statistics()
        with pytest.raises((CallerError, ConfigurationError)):
            await later(lambda: WRONG_CALLS[name](host))
        assert host.sub.statistics() == before
        assert host.topic.subscriptions == ("billing",)


CALLS: dict[str, Callable[[Host], object]] = {
    "topic": lambda host: host.storage.topic("orders"),
    "open_cursor": lambda host: host.storage.open_cursor("log", "c", MessageLedgers()),
    "subscribe": lambda host: host.topic.subscribe("other"),
    "publish": lambda host: host.topic.publish([b"order"]),
    "attach": lambda host: host.sub.attach("bob"),
    "seek": lambda host: host.sub.seek(Position(1, 0)),
    "ack": lambda host: host.consumer.ack(Position(1, 0)),
    "nack": lambda host: host.consumer.nack(Position(1, 0)),
}


@pytest.mark.parametrize("name", CALLS)
async def test_use_after_close(name: str) -> None:
    async with Host() as host:
        pass
    with pytest.raises(ClosedHandleError, match="closed"):
        await later(lambda: CALLS[name](host))


@pytest.mark.parametrize("name", CALLS)
async def test_wrong_event_loop(name: str) -> None:
    async with Host() as host:
        with pytest.raises(CallerError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, later(lambda: CALLS[name](host)))  # type: ignore[arg-type]


async def test_call_without_an_event_loop() -> None:
    async with Host() as host:
        with pytest.raises(CallerError, match="another event loop"):
            await asyncio.to_thread(host.sub.attach, "bob")


async def test_own_messages_and_the_hosts_are_not_mixed() -> None:
    async with Host() as host:
        ports: Any = host.ports
        ledgers = MessageLedgers()
        ledgers.open_ledger(7)
        await host.storage.open_cursor("log", "c", ledgers, create_at=Position(7, -1))
        with pytest.raises(CallerError, match="pass its ledgers"):
            await host.storage.topic("log")
    async with ackgate.open_embedded(**ports) as storage:
        with pytest.raises(CallerError, match="without ledgers"):
            await storage.topic("orders", ledgers=MessageLedgers())


async def test_topic_that_somebody_else_opened_raises_everywhere() -> None:
    async with Host() as host:
        ports: Any = host.ports
        waiting = asyncio.ensure_future(anext(host.consumer))
        async with ackgate.open_embedded(**ports) as later_owner:
            topic = await later_owner.topic("orders")
            with pytest.raises(OwnershipError):
                await host.topic.publish([b"order"])
            with pytest.raises(OwnershipError):
                await waiting
            with pytest.raises(OwnershipError):
                await host.consumer.ack(Position(1, 0))
            assert await topic.publish([b"order"])
