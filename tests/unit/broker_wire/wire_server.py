"""A protocol server on a free port, with topics in memory behind it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ackgate.broker.schemas.registry import SchemaRegistry
from ackgate.broker.wire.protocol_server import ProtocolServer
from ackgate.config.broker import BrokerSettings
from ackgate.network import Urls
from ackgate.persistence import MemoryMetadataStore
from tests.support.memory_topics import MemoryRegistry, ServedHere
from tests.support.wire_client import WireClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class WireServer:
    """What a test needs of it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.registry = MemoryRegistry()
        self.metadata = MemoryMetadataStore()
        self.owners = ServedHere()
        services: Any = SimpleNamespace(settings=SimpleNamespace(broker=settings))
        schemas = SchemaRegistry(self.metadata)
        self.protocol = ProtocolServer(services, self.registry, schemas, self.owners)
        self.port = 0

    async def open(self) -> WireClient:
        return await WireClient.open("127.0.0.1", self.port)

    async def connect(self, **how: Any) -> WireClient:
        return await WireClient.connect("127.0.0.1", self.port, **how)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[WireServer]:
    server = WireServer(BrokerSettings(**settings))
    server.port = await server.protocol.listen("127.0.0.1", 0)
    server.owners.service = Urls(f"pulsar://127.0.0.1:{server.port}")
    try:
        yield server
    finally:
        await server.protocol.close()


async def eventually(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds; a test that waits in vain fails."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)
