"""A broker without sockets: its topics over whatever stores a test brings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ackgate.broker.cluster.policies import PolicyStore
from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.topic.services import SharedServices
from ackgate.config.settings import Settings
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.ports import LedgerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ports import LedgerClient, MetadataStore


def loop_clock_ms() -> int:
    """The running loop's time as the time of day: that of a virtual clock where there is one."""
    return int(asyncio.get_running_loop().time() * 1000)


def bare_services(
    ledger_client: LedgerClient,
    metadata: MetadataStore,
    *,
    settings: Settings | None = None,
    clock_ms: Callable[[], int] = loop_clock_ms,
    ledger_options: LedgerOptions | None = None,
    cache_bytes: int = 0,
    name: str = "test",
) -> SharedServices:
    """What its topics share. Give it a registry's `forget` as `forget_topic`."""
    return SharedServices(
        settings=settings or Settings(),
        clock_ms=clock_ms,
        ledger_client=ledger_client,
        metadata=metadata,
        ledger_options=ledger_options or LedgerOptions(),
        cache=EntryCache(cache_bytes),
        policies=PolicyStore(metadata),
        producer_name_prefix=name,
        forget_topic=lambda _: None,
    )


def bare_broker(
    ledger_client: LedgerClient,
    metadata: MetadataStore,
    *,
    settings: Settings | None = None,
    clock_ms: Callable[[], int] = loop_clock_ms,
) -> TopicRegistry:
    """Its topics. Close the registry at the end."""
    services = bare_services(ledger_client, metadata, settings=settings, clock_ms=clock_ms)
    registry = TopicRegistry(services)
    services.forget_topic = registry.forget
    return registry
