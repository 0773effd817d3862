"""Connections between clients and brokers: slow, in order, and broken when either end is gone.

A connection has two ends, in two processes. What one end sends, the other is told after a while, in
its own process; frames are plain calls, so nothing is encoded. When an end breaks off (or is
killed), the other one hears of it later, and what is still on its way is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.simulation.loop import Process


class End(Protocol):
    """Who is told that the connection is gone."""

    def connection_lost(self) -> None:
        """The connection is gone."""


class Direction:
    """One way of a connection."""

    __slots__ = ("_arrives_at", "_latency", "_to", "is_cut")

    def __init__(self, to: Process, latency: Callable[[], float]) -> None:
        self._to = to
        self._latency = latency
        self._arrives_at = 0.0
        self.is_cut = False

    def send(self, call: Callable[..., object], *args: Any) -> None:
        """Have the other end called, unless the connection breaks before that."""
        loop = self._to.loop
        self._arrives_at = max(self._arrives_at, loop.time() + self._latency())
        loop.call_at(self._arrives_at, self._arrive, call, args, context=self._to.context)

    def _arrive(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.is_cut:
            call(*args)


class Connection:
    """Both ways, and both ends."""

    __slots__ = ("_processes", "broker", "client", "is_open", "to_broker", "to_client")

    def __init__(self, client: Process, broker: Process, latency: Callable[[], float]) -> None:
        self.to_broker = Direction(broker, latency)
        self.to_client = Direction(client, latency)
        self.broker: End | None = None
        self.client: End | None = None
        self._processes = (client, broker)
        self.is_open = True
        broker.has_died.append(self.broken)

    def broken(self) -> None:
        """An end is gone: both ends will hear of it, after what is on its way."""
        if self.is_open:
            self.is_open = False
            self.to_client.send(self._tell_client)
            self.to_broker.send(self._tell_broker)

    def cut(self) -> None:
        """The wire is cut: what is on its way is lost, and both ends will hear of it."""
        if self.is_open:
            self.is_open = False
            self.to_client.is_cut = self.to_broker.is_cut = True
            client, broker = self._processes
            client.call_later(0.01, self._tell_client)
            broker.call_later(0.01, self._tell_broker)

    def closed_by_client(self) -> None:
        """The client takes nothing more from now on; the broker hears of it later."""
        self.to_client.is_cut = True
        self.broken()

    def closed_by_broker(self) -> None:
        """The broker takes nothing more from now on; the client hears of it later."""
        self.to_broker.is_cut = True
        self.broken()

    def _tell_client(self) -> None:
        self.to_client.is_cut = True
        if self.client is not None:
            self.client.connection_lost()

    def _tell_broker(self) -> None:
        self.to_broker.is_cut = True
        if self.broker is not None:
            self.broker.connection_lost()
