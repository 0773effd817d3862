"""One run: brokers that come and go, clients that go on, faults, and what must hold all the while.

seed --> plan --> start --> faults and work --> faults end --> everything drains --> all stop
                                 |                 |                                    |
                          checks, all the time    every message arrives     one more broker looks:
                                                  and is acked              nothing is lost or left
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import random
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.cluster.policies import namespace_policy_path
from ackgate.broker.wire.names import NamespaceName, TopicName
from ackgate.broker.wire.requests import SubscriptionType
from ackgate.errors import AckGateError, ConfigurationError
from ackgate.persistence.buckets.registry import snapshot_ids
from ackgate.persistence.metadata.memory import MemoryMetadataStore
from ackgate.persistence.system.futures import resolve
from tests.support.simulation.broker import SimulatedBroker
from tests.support.simulation.clients import Client, ConsumingClient, ProducingClient
from tests.support.simulation.disk import SimulatedFiles
from tests.support.simulation.facts import SubscriptionFacts, TopicFacts, ViolationError
from tests.support.simulation.faults import Faults
from tests.support.simulation.loop import Process, SimulationLoop, run
from tests.support.simulation.metadata import MetadataServer
from tests.support.simulation.network import Connection
from tests.support.simulation.observer import Observer
from tests.support.simulation.plan import Plan, make_plan
from tests.support.simulation.session import SimulatedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.topic.topic import Topic
    from ackgate.cursor import Position

EVENTS_SHOWN: Final = 60
DRAIN_SECONDS: Final = 100.0
DRAINED_LOOKS: Final = 4
"""Looks in a row that find everything drained, half a second apart."""

EPOCH_MS: Final = 1_700_000_000_000


class World:
    """See the module."""

    def __init__(self, seed: int, plan: Plan, *, keeps_all: bool = False) -> None:
        self.seed = seed
        self.plan = plan
        self.loop = SimulationLoop(self._rng("scheduler"))
        self.clients = Process(self.loop, "clients")
        self.files = SimulatedFiles()
        self.faults = Faults(self, self._rng("faults"), self._rng("crashes"))
        self.files.on_operation = self.faults.on_operation
        self.observer = Observer(plan, self.log)
        self.is_draining = False
        self.last_id = 0
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=None if keeps_all else EVENTS_SHOWN)
        self.violation: BaseException | None = None
        self.brokers: dict[int, SimulatedBroker] = {}
        self.pace = 0.02
        """Mean seconds between two steps of a client."""
        self._digest = hashlib.blake2b(digest_size=8)
        self._network = self._rng("network")
        self._disk = self._rng("disk")
        self._settings = plan.settings()
        self._lives = 0
        self.preferred: dict[str, int] = {}
        self._failed: asyncio.Future[None] | None = None
        self.connections: list[Connection] = []
        self._producers: list[ProducingClient] = []
        self._consumers: list[ConsumingClient] = []
        self._keepers: list[asyncio.Task[Any]] = []
        self._is_over = False

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self.seed}/{what}")

    # ---------------------------------------------------------------- small services

    def log(self, *words: object) -> None:
        """Note an event: for the trace and its digest."""
        line = f"{self.loop.time():9.4f} {' '.join(map(str, words))}"
        self._digest.update(line.encode())
        self.events.append(line)

    def next_id(self) -> int:
        """A number that was never used."""
        self.last_id += 1
        return self.last_id

    def clock_ms(self) -> int:
        """The time of day."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    @property
    def digest(self) -> str:
        """The same for two runs that went the same way."""
        end = f"{self.loop.steps} {self.last_id} {self._network.random()} {self._disk.random()}"
        return hashlib.blake2b(self._digest.digest() + end.encode(), digest_size=8).hexdigest()

    def fail(self, error: BaseException) -> None:
        """The run has failed. The first failure counts."""
        if self.violation is None:
            self.violation = error
            self.log("VIOLATION", error)
            if self._failed is not None:
                resolve(self._failed)

    def _latency(self) -> float:
        return self._network.expovariate(1000 / self.plan.network_ms)

    def _metadata_latency(self) -> float:
        return self._network.expovariate(1000 / self.plan.metadata_ms)

    def _disk_delay(self, lane: str) -> float:
        slow = self.faults.slow.get(lane.rpartition("-")[2], 1.0)
        return slow * self._disk.expovariate(1000 / self.plan.disk_ms)

    # ---------------------------------------------------------------- the story

    def run(self) -> None:
        """Raises `ViolationError`, or whatever went wrong."""
        handler = _Strict(self)
        logger = logging.getLogger("ackgate")
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
        self.loop.set_exception_handler(self._on_exception)
        chance = random.getstate()
        random.seed(self.seed)  # for jitters that production code draws from it
        try:
            run(self.loop, self._main())
        except Exception as error:
            self.fail(error)
        finally:
            random.setstate(chance)
            logger.removeHandler(handler)
            level, logger.propagate = before
            logger.setLevel(level)  # which forgets what loggers below it have cached
        if self.violation is not None:
            raise self.violation

    def _on_exception(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        about = context.get("task") or context.get("future")
        if isinstance(about, asyncio.Task) and about.get_name().startswith("broker"):
            process = next((b for b in self.brokers.values() if b.name == about.get_name()), None)
            if process is None:
                return
        if isinstance(error, ViolationError):
            self.fail(error)
            return
        violation = ViolationError(f"{context['message']}: {error!r} {about or ''}")
        violation.__cause__ = error
        self.fail(violation)

    async def _main(self) -> None:
        self._failed = self.loop.create_future()
        story = self.loop.create_task(self._story())
        await asyncio.wait([story, self._failed], return_when=asyncio.FIRST_COMPLETED)
        if story.done():
            story.result()

    async def _story(self) -> None:
        plan = self.plan
        self.metadata = MetadataServer(self.loop.world, self._metadata_latency, self.clock_ms)
        await self._set_policies()
        self._make_clients()
        self._keepers = [
            self.loop.create_task(self._keep_broker(number)) for number in range(plan.brokers)
        ]
        checking = self.loop.create_task(self._check_often())
        for client in (*self._producers, *self._consumers):
            self._watch(self.clients.spawn(client.run()))
        await self.faults.run()
        await self._drain()
        checking.cancel()
        await self._end()

    async def _set_policies(self) -> None:
        policies = self.plan.policies()
        if policies:
            operator = MemoryMetadataStore(self.metadata.tree, clock_ms=self.clock_ms)
            path = namespace_policy_path(NamespaceName("public", "default"))
            await operator.put(path, json.dumps(policies).encode(), expected_version=None)
            await operator.close()

    def _watch(self, task: asyncio.Task[Any]) -> None:
        def done(ended: asyncio.Task[Any]) -> None:
            if not ended.cancelled() and (error := ended.exception()) is not None:
                self.fail(error)

        task.add_done_callback(done, context=self.loop.world.context)

    def _make_clients(self) -> None:
        plan = self.plan
        for number in range(plan.topics):
            topic = TopicName.parse(f"persistent://public/default/t{number}")
            facts = TopicFacts(str(topic), deduplication=plan.deduplication)
            self.observer.topics[str(topic)] = facts
            for kind in plan.subscriptions:
                acks = facts.subscriptions[kind] = SubscriptionFacts(facts, kind)
                for place in range(1 if kind == "EXCLUSIVE" else plan.consumers):
                    name = f"consumer-{number}-{kind.lower()}-{place}"
                    self._consumers.append(
                        ConsumingClient(
                            self, name, topic, self._rng(name), acks, SubscriptionType[kind]
                        )
                    )
            for place in range(2):
                name = f"producer-{number}-{place}"
                producer = ProducingClient(
                    self, name, topic, self._rng(name), facts, plan.messages // 2
                )
                self.observer.floors[name] = producer.floors
                self._producers.append(producer)

    # ---------------------------------------------------------------- brokers

    async def _keep_broker(self, number: int) -> None:
        """Start a broker, and another one when it is gone."""
        rng = self._rng(f"keeper/{number}")
        while not self._is_over:
            self._lives += 1
            process = Process(self.loop, f"broker-{number}.{self._lives}")
            died: asyncio.Future[None] = self.loop.create_future()
            process.has_died.append(partial(resolve, died))
            broker = SimulatedBroker(
                process,
                self.plan,
                self._settings,
                files=self.files,
                metadata=self.metadata,
                rng=self._rng(process.name),
                disk_delay=self._disk_delay,
                clock_ms=self.clock_ms,
                on_load=self._loaded,
            )
            self.brokers[number] = broker
            self.log("start", process.name)
            starting = process.spawn(broker.start())
            await asyncio.wait([starting, died], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                error = starting.exception()
                if error is not None:
                    if isinstance(error, ConfigurationError) or not isinstance(error, AckGateError):
                        self.fail(error)
                    self.log(process.name, "did not start:", error)
                    self.kill(broker)
                else:
                    self.log(process.name, "is ready")
            await died
            self.log(process.name, "is gone")
            await asyncio.sleep(rng.expovariate(20))

    def _loaded(self, broker: SimulatedBroker, topic: Topic) -> None:
        self.log(broker.name, "has loaded", topic.name, "epoch", topic.ledger.owner_epoch)
        for subscription in topic.subscriptions.values():
            store = subscription.store
            if store is not None:
                report = store.report
                self.log(
                    f"    {subscription.name} from {report.source.value}, ledger"
                    f" {report.cursor_ledger_id}, version {report.version}, mark-delete"
                    f" {report.mark_delete}, {report.ranges} ranges"
                )
        self.counts["loads"] += 1
        self.observer.loaded(topic)

    def kill(self, broker: SimulatedBroker) -> None:
        """End a broker as `kill -9` does."""
        if broker.process.is_alive:
            broker.is_ready = False
            self.files.kill(broker.name)
            broker.process.kill()

    def some_broker(self, rng: random.Random) -> int | None:
        """Number of a broker that can be connected to; None when there is none now."""
        ready = [n for n, b in self.brokers.items() if b.is_ready and b.process.is_alive]
        return rng.choice(ready) if ready else None

    def connect(
        self, client: Client, number: int | None
    ) -> tuple[Connection, SimulatedSession, str] | None:
        """Connect a client to a broker (None: to its topic's); None when that is not there now."""
        if number is None:
            topic = str(client.topic)
            number = self.preferred.get(topic, -1)
            if not self._is_ready(number):
                number = self.some_broker(client.rng)
                if number is None:
                    return None
                self.preferred[topic] = number
        if not self._is_ready(number):
            return None
        broker = self.brokers[number]
        connection = Connection(self.clients, broker.process, self._latency)
        session = SimulatedSession(broker, connection, client, self.observer)
        connection.broker, connection.client = session, client
        self.connections = [each for each in self.connections if each.is_open]
        self.connections.append(connection)
        return connection, session, broker.name

    def _is_ready(self, number: int) -> bool:
        broker = self.brokers.get(number)
        return broker is not None and broker.is_ready and broker.process.is_alive

    def owner(self, name: str) -> SimulatedBroker | None:
        """The broker that a topic's clients go to."""
        number = self.preferred.get(name)
        return self.brokers.get(number) if number is not None else None

    def moved(self, client: ConsumingClient, target: Position, token: int, before: int) -> None:
        """A reset has succeeded."""
        for broker in self.brokers.values():
            if broker.name == client.broker_name:
                name = str(client.topic)
                topic = next((t for t in broker.topics if str(t.name) == name), None)
                self.observer.moved(client.facts, target, token, before, topic)

    # ---------------------------------------------------------------- checks

    async def _check_often(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.check()

    def check(self) -> None:
        """Every invariant, now."""
        try:
            for broker in self.brokers.values():
                if broker.process.is_alive and broker.is_ready:
                    for topic in broker.topics:
                        self.observer.check(topic, self.loop.time())
            self._check_receipts()
        except AssertionError as error:
            self.fail(error)

    def _check_receipts(self) -> None:
        now = self.loop.time()
        patience = self.plan.receipt_timeout_seconds + 3.0
        if any(b.process.is_paused for b in self.brokers.values()):
            self.faults.paused_at = now
        if now - self.faults.paused_at < patience:
            return
        for consumer in self._consumers:
            for request_id, sent_at in consumer.receipts_due.items():
                if consumer.is_connected and now - sent_at > patience:
                    raise ViolationError(
                        f"{consumer.name}: ack {request_id} is unanswered for {now - sent_at:.1f} s"
                    )
                break

    # ---------------------------------------------------------------- the end

    async def _drain(self) -> None:
        """No more faults: everything must arrive and be acked."""
        self.is_draining = True
        self._prefer_newest()
        for client in (*self._producers, *self._consumers) if not self.plan.is_owned else ():
            owner = self.owner(str(client.topic))
            if owner is None or client.broker_name != owner.name:
                client.disconnect()
        until = self.loop.time() + DRAIN_SECONDS
        # More than once: a seek that was on its way may yet move everything back.
        looks = 0
        while looks < DRAINED_LOOKS:
            looks = looks + 1 if self._is_drained() else 0
            if self.loop.time() > until:
                raise ViolationError("not everything has arrived:\n" + self._undrained())
            await asyncio.sleep(0.5)
        for facts in self.observer.topics.values():
            facts.check_order(all_seen=not self.plan.unsubscribes and not self.plan.seeks)
        self.log("drained")

    def _prefer_newest(self) -> None:
        """Send everybody to the newest owner: without bundles, an older one may never learn of it."""
        if self.plan.is_owned:
            return
        newest = {
            name: max((acks.epoch for acks in facts.subscriptions.values()), default=0) - 1
            for name, facts in self.observer.topics.items()
        }
        for number, broker in self.brokers.items():
            for topic in broker.topics if broker.process.is_alive else ():
                epoch = topic.ledger.owner_epoch
                if epoch > newest[str(topic.name)]:
                    newest[str(topic.name)] = epoch
                    self.preferred[str(topic.name)] = number
                else:
                    broker.process.context.run(broker.forget, topic)

    def _is_drained(self) -> bool:
        if not all(producer.is_done for producer in self._producers):
            return False
        for name, facts in self.observer.topics.items():
            owner = self.owner(name)
            topic = next((t for t in owner.topics if str(t.name) == name), None) if owner else None
            if topic is None or topic.is_closing or not owner or not owner.process.is_alive:
                return False
            if any(acks.open for acks in facts.subscriptions.values()):
                return False
            for acks in facts.subscriptions.values():
                subscription = topic.subscriptions.get(acks.name)
                if subscription is None or subscription.cursor.backlog_entries:
                    return False
                if subscription.store is None or subscription.store.is_dirty:
                    return False
        return not any(consumer.receipts_due for consumer in self._consumers)

    def _undrained(self) -> str:
        lines = [
            f"{producer.name}: {producer.remaining} to send, {len(producer.pending)} pending"
            f" at {producer.broker_name} connected={producer.is_connected}"
            for producer in self._producers
        ]
        lines += [
            f"{consumer.name}: held {len(consumer.held)}, {len(consumer.receipts_due)} receipts due"
            f" at {consumer.broker_name} connected={consumer.is_connected}"
            for consumer in self._consumers
        ]
        for name, facts in self.observer.topics.items():
            owner = self.owner(name)
            lines.append(
                f"{name}: owner {owner.name if owner else None}, {len(facts.entries)} entries"
            )
            for topic in owner.topics if owner else ():
                for subscription in topic.subscriptions.values():
                    acks = facts.subscriptions[subscription.name]
                    lines.append(
                        f"  {subscription.name}: open {len(acks.open)}, unsure {len(acks.unsure)};"
                        f" {subscription.cursor.statistics()} {subscription.core.gate.statistics()}"
                        f" read {subscription.cursor.read_position}"
                    )
        return "\n".join(lines)

    async def _end(self) -> None:
        """Stop everything, and have one more broker look at what is left."""
        for client in (*self._producers, *self._consumers):
            client.is_stopped = True
            client.disconnect()
        self._is_over = True
        await asyncio.sleep(1.0)
        await self._until(
            lambda: all(b.is_ready or not b.process.is_alive for b in self.brokers.values())
        )
        for broker in list(self.brokers.values()):
            if broker.process.is_alive:
                await broker.process.spawn(broker.stop())
                await asyncio.sleep(0.5)
                left = [t for t in self.loop.tasks_of(broker.process) if not t.done()]
                if left:
                    raise ViolationError(f"{broker.name} has stopped and left {left}")
                self.kill(broker)
        await asyncio.gather(*self._keepers)
        await self._look_again()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait. Virtual time costs nothing."""
        while not holds():
            await asyncio.sleep(0.05)

    async def _look_again(self) -> None:
        self._is_over = False
        self.brokers.clear()
        keeper = self.loop.create_task(self._keep_broker(0))
        await self._until(lambda: bool(self.brokers) and self.brokers[0].is_ready)
        broker = self.brokers[0]
        named = 0
        for name, facts in self.observer.topics.items():
            topic = await broker.process.spawn(broker.topic_in_the_end(TopicName.parse(name)))
            for acks in facts.subscriptions.values():
                subscription = topic.subscriptions.get(acks.name)
                if subscription is None:
                    if acks.exists and not acks.is_vague:
                        raise ViolationError(f"subscription {acks.name} is gone")
                    continue
                if acks.open or subscription.cursor.backlog_entries:
                    raise ViolationError(
                        f"{acks.name}: {subscription.cursor.backlog_entries} of what was acked at"
                        " the end is to come again"
                    )
            named += len(topic.ledger.ledger_records)
        await asyncio.sleep(15.0)
        await self._check_ledgers(broker)
        self._is_over = True
        await broker.process.spawn(broker.stop())
        self.kill(broker)
        await keeper

    async def _check_ledgers(self, broker: SimulatedBroker) -> None:
        """Nothing is left over that nobody names."""
        if not self.plan.is_alone:
            return
        names: set[int] = set()
        for topic in broker.topics:
            names.update(record.ledger_id for record in topic.ledger.ledger_records)
            stores = [s.store for s in topic.subscriptions.values()]
            if topic._dedup is not None:
                stores.append(topic._dedup._store)
            for store in stores:
                if store is not None:
                    ledger_id = store.statistics().cursor_ledger_id
                    names.update(() if ledger_id is None else (ledger_id,))
                    names.update(snapshot_ids(store.internal_properties))
        ledger_ids = await broker.process.spawn(broker.ledger_client.ledger_ids())
        left = set(ledger_ids) - names
        if left:
            raise ViolationError(f"ledgers {sorted(left)} are left over; named are {sorted(names)}")


class _Strict(logging.Handler):
    """An error that is logged is a failure of the run: production code logs its bugs as such."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging`."""
        error = record.exc_info[1] if record.exc_info else None
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, BaseException):
                error = argument
        if isinstance(error, AckGateError | OSError | None) and not _is_bug(record):
            return
        violation = ViolationError(f"logged: {record.getMessage()}: {error!r}")
        violation.__cause__ = error
        self._world.fail(violation)


def _is_bug(record: logging.LogRecord) -> bool:
    return any(words in str(record.msg) for words in _BUGS)


_BUGS: Final = ("checkpoint failed", "commit failed", "writer failed")


def simulate(
    seed: int, *, changes: Mapping[str, Any] | None = None, keeps_all: bool = False
) -> World:
    """Run a seed. The world tells how it went; `violation` is None when nothing was broken.

    `changes`: of the seed's plan, for a test that looks for something in particular.
    """
    plan = dataclasses.replace(make_plan(seed), **(changes or {}))
    world = World(seed, plan, keeps_all=keeps_all)
    with contextlib.suppress(Exception):
        world.run()
    return world
