"""A broker process of the real code, without sockets.

Everything between a session and the disk is what runs in production: registry, topics, managed
ledgers, subscriptions, cursor stores, ledger client, bookies, upkeep. Only the edges are others:
the disk, the lanes, the metadata session, the clock and the source of random bytes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackgate.broker.cluster.ownership import Ownership
from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.upkeep import chores, run_chore
from ackgate.broker.wire.errors import BrokerError
from ackgate.errors import AckGateError, ClosedHandleError, SessionLostError
from ackgate.persistence.bookies.settings import BookieSettings, ledger_client_settings
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
from ackgate.persistence.nodes.owner_nodes import BrokerRecord
from ackgate.persistence.ports import DigestType, LedgerOptions, SessionState
from tests.support.bare_broker import bare_services
from tests.support.simulation.lane import SimulatedLane
from tests.support.simulation.metadata import SimulatedMetadataStore

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Mapping

    from ackgate.broker.topic.services import SharedServices
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.names import TopicName
    from ackgate.config.settings import Settings
    from ackgate.persistence.bookies.bookie import Bookie
    from tests.support.simulation.disk import SimulatedFiles
    from tests.support.simulation.loop import Process
    from tests.support.simulation.metadata import MetadataServer
    from tests.support.simulation.plan import Plan

BOOKIES = Path("/bookies")


class SimulatedBroker:
    """One life of a broker process."""

    def __init__(
        self,
        process: Process,
        plan: Plan,
        settings: Settings,
        *,
        files: SimulatedFiles,
        metadata: MetadataServer,
        rng: random.Random,
        disk_delay: Callable[[str], float],
        clock_ms: Callable[[], int],
        on_load: Callable[[SimulatedBroker, Topic], None],
    ) -> None:
        self.process = process
        self.name = process.name
        self.number = int(process.name.removeprefix("broker-").partition(".")[0])
        self.is_ready = False
        self.is_stopping = False
        self.bookies: list[Bookie] = []
        self._plan = plan
        self._settings = settings
        self._files = files
        self._server = metadata
        self._rng = rng
        self._disk_delay = disk_delay
        self._clock_ms = clock_ms
        self._on_load = on_load
        self.metadata: SimulatedMetadataStore | None = None
        self._registry: TopicRegistry | None = None
        self._ownership: Ownership | None = None
        self._services: SharedServices | None = None
        self._client: BookieLedgerClient | None = None
        self._upkeep: list[asyncio.Task[None]] = []
        self._requests: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Open everything. Raises `AckGateError`; then the process had better end."""
        plan, rng = self._plan, self._rng
        self.metadata = metadata = SimulatedMetadataStore(
            self._server,
            self.process,
            timeout_seconds=plan.session_timeout_seconds,
            operation_timeout_seconds=plan.operation_timeout_seconds,
        )
        self.bookies = await open_bookies(
            [BOOKIES / str(number) for number in range(plan.bookies)],
            settings=BookieSettings(
                journal_bytes_max=plan.journal_bytes_max,
                write_cache_bytes_max=plan.write_cache_bytes_max,
                open_files_max=plan.open_files_max,
                checkpoint_idle_seconds=plan.checkpoint_idle_seconds,
                block_bytes=plan.block_bytes,
            ),
            disk=self._files.disk(self.name),
            lane=self._lane,
            random_bytes=rng.randbytes,
        )
        persistence = self._settings.persistence
        self._client = client = BookieLedgerClient(
            self.bookies,
            metadata,
            settings=ledger_client_settings(persistence),
            clock_ms=self._clock_ms,
            random_bytes=rng.randbytes,
        )
        self._services = services = bare_services(
            client,
            metadata,
            settings=self._settings,
            clock_ms=self._clock_ms,
            ledger_options=LedgerOptions(
                ensemble_size=persistence.managed_ledger_default_ensemble_size,
                write_quorum=persistence.managed_ledger_default_write_quorum,
                ack_quorum=persistence.managed_ledger_default_ack_quorum,
                digest_type=DigestType(persistence.managed_ledger_digest_type),
            ),
            cache_bytes=plan.cache_bytes,
            name=self.name,
        )
        old_ledgers = await client.ledger_ids()
        self._registry = registry = _Registry(services, lambda topic: self._on_load(self, topic))
        services.forget_topic = registry.forget
        if plan.is_owned:
            self._ownership = registry.owners = Ownership(services, registry)
            self._ownership.on_joined(services.policies.follow)
            url = f"http://broker-{self.number}"
            await self._ownership.join(
                BrokerRecord(f"broker-{self.number}", f"pulsar://broker-{self.number}", url, "")
            )
        else:
            metadata.on_session_change(self._session_changed)
        self._upkeep = [
            self.process.spawn(run_chore(chore)) for chore in chores(services, registry)
        ]
        if plan.is_alone:
            self.spawn(self._delete_orphans(services, old_ledgers))
        self.is_ready = True

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST and self._registry is not None:
            self._registry.abandon(lambda _: True)
            self.spawn(self._renew())

    async def _renew(self) -> None:
        assert self.metadata is not None
        while self.metadata.session_state is SessionState.LOST:
            try:
                await self.metadata.renew()
            except ClosedHandleError:
                return
            except AckGateError:
                await asyncio.sleep(0.2)

    def _lane(self, name: str) -> SimulatedLane:
        return SimulatedLane(name, self.process, lambda: self._disk_delay(name))

    async def _delete_orphans(self, services: SharedServices, candidates: list[int]) -> None:
        try:
            await delete_orphan_ledgers(services, candidates)
        except AckGateError:
            return

    async def stop(self) -> None:
        """What SIGTERM does."""
        self.is_stopping = True
        self.is_ready = False
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        if self._ownership is not None:
            await self._ownership.leave()
        if self._registry is not None:
            await self._registry.close()
        if self._services is not None:
            self._services.policies.stop()
        if self._client is not None:
            await self._client.close()
        if self.metadata is not None:
            await self.metadata.close()

    # ---------------------------------------------------------------- what sessions need

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request."""
        task = self.process.spawn(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def topic(self, name: TopicName) -> Topic:
        """Find or load a topic."""
        assert self._registry is not None
        return await self._registry.topic(name, create=True)

    async def topic_in_the_end(self, name: TopicName) -> Topic:
        """Find or load a topic, again and again while somebody else may own it or the session is new."""
        while True:
            try:
                return await self.topic(name)
            except (BrokerError, SessionLostError):
                await asyncio.sleep(0.5)

    def forget(self, topic: Topic) -> None:
        """Let go of a topic that somebody else owns."""
        assert self._registry is not None
        self._registry.forget(topic)

    async def look_up(self, name: TopicName, *, is_authoritative: bool) -> tuple[int, bool]:
        """Number of the broker that serves a topic, and whether it owns it already."""
        assert self._ownership is not None
        location = await self._ownership.locate(name, is_authoritative=is_authoritative)
        return int(location.broker_id.removeprefix("broker-")), location.is_owner

    async def unload(self, name: TopicName) -> None:
        """What the admin interface does."""
        assert self._registry is not None
        try:
            await self._registry.unload(name)
        except AckGateError:
            return

    @property
    def topics(self) -> list[Topic]:
        """Those that are loaded."""
        return list(self._registry) if self._registry is not None else []

    @property
    def ledger_client(self) -> BookieLedgerClient:
        """The broker's own."""
        assert self._client is not None
        return self._client


class _Registry(TopicRegistry):
    """Tells of every topic that was loaded, before anybody can use it."""

    def __init__(self, services: SharedServices, on_load: Callable[[Topic], None]) -> None:
        super().__init__(services)
        self._on_load = on_load

    async def _load(
        self, name: TopicName, *, create: bool, properties: Mapping[str, str] | None
    ) -> Topic:
        topic = await super()._load(name, create=create, properties=properties)
        self._on_load(topic)
        return topic
