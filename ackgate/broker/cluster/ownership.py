"""Which bundles this broker owns, who owns the others, and how that changes.

Edge. The owner of a bundle is the broker that holds its ephemeral node. That node only keeps
brokers from getting in each other's way. If a broker that lost a bundle still writes, the topic's
epoch and the fences of its ledgers reject the write, however late it learns of its loss. ::

    a client asks for a topic ---> free, and ours by plan ---> acquire: epoch + 1, node ---> owned
             |                       `-- another's by plan --> sent there, to have it acquired
             `--------------------> owned by another --------> sent there

    unload, SIGTERM      topics closed (persisted) -> node deleted -> clients notified
    session lost         clients notified, topics dropped unwritten -> new session -> announced again

While the session is suspended, owned bundles are served and none are acquired.

Two brokers must not announce one address. If a *later* start takes the address of a broker that
lives, the broker takes it back. If an *earlier* start takes it back, this broker is the second, and
stops. A node of an earlier run takes nothing back, so a broker may be restarted at once.

Fencing keeps a broker that was stopped (SIGSTOP, a frozen virtual machine) from *writing* once
another has taken over. It cannot keep that broker from sending what is in its memory, and some of
that may have been acked at the new owner since. So a round of deliveries asks the `Lease` first.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ackgate.broker.cluster.bundles import BundleEvent, BundleState, NamespaceBundles, after
from ackgate.broker.cluster.cluster_nodes import ClusterView, OwnerNodeStore, address_taken
from ackgate.broker.wire import NotOwnedError, ServiceNotReadyError, quoted
from ackgate.errors import (
    AckGateError,
    ClosedHandleError,
    ConfigurationError,
    MetadataStoreError,
    OwnershipError,
)
from ackgate.network import NOWHERE
from ackgate.persistence.nodes.owner_nodes import BrokerRecord, OwnerRecord, broker_path
from ackgate.persistence.ports import SessionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping

    from ackgate.broker.cluster.bundles import Bundle
    from ackgate.broker.cluster.services import BrokerServices
    from ackgate.broker.wire import NamespaceName, TopicName
    from ackgate.network import Urls
    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)

LOCATE_SECONDS_MAX: Final = 10.0
"""How long a lookup waits for a bundle that is being acquired or released."""

WITHDRAW_SECONDS_MAX: Final = 2.0
"""How long a stopping broker tries to delete its broker node. It hands over its topics in any
case."""

RELEASES_AT_ONCE_MAX: Final = 8
"""Bundles that are released at the same time when the broker stops."""

REJOIN_SECONDS_MIN: Final = 0.1
REJOIN_SECONDS_MAX: Final = 5.0
"""Longest pause between attempts to begin a new session: doubled each time, and jittered."""

SETTLED_MS: Final = 5_000
"""A worker must be there this long before owned bundles are moved to it: it may die again and
again."""

ASK_AGAIN_SECONDS: Final = 0.5
"""Pause before the metadata store is asked again whether the session lives."""


class Location(NamedTuple):
    """The broker that serves a topic, or is to serve it."""

    broker_id: str
    service: Urls
    """Its addresses for clients of the binary protocol."""
    web: Urls
    """Its admin interface."""
    is_here: bool
    is_owner: bool
    """Whether the broker owns the topic. False: it has to acquire the topic first."""


class TopicsPort(Protocol):
    """The loaded topics of this broker, as ownership needs them."""

    async def hand_over(self, is_meant: Callable[[TopicName], bool]) -> Callable[[Urls], None]:
        """Close the topics that are meant, persisting what is dirty, for another owner.

        Returns a function that disconnects their clients. It takes the new owner's address, or
        `NOWHERE`.
        """

    def abandon(self, is_meant: Callable[[TopicName], bool]) -> None:
        """Drop topics that may have another owner already: disconnect clients, write nothing."""


class Ownership:
    """The bundles of one broker. Call `join` at the start and `leave` at the end."""

    def __init__(self, services: BrokerServices, topics: TopicsPort) -> None:
        self._services = services
        self._metadata = services.metadata
        self._topics = topics
        self._nodes = OwnerNodeStore(services.metadata)
        self.view = ClusterView(
            services.metadata, on_owner=self._on_owner, on_broker=self._on_broker
        )
        self._namespaces: dict[NamespaceName, NamespaceBundles] = {}
        self._states: dict[Bundle, BundleState] = {}
        """Bundles that are ACQUIRING, OWNED or RELEASING; for all others see `state`."""
        self._settled: dict[Bundle, asyncio.Event] = {}
        self._me: BrokerRecord | None = None
        self._session = 0
        """Number of sessions so far. Work begun in one session must not finish in another."""
        self.acquired = 0
        """How many bundles this broker has acquired so far."""
        self.is_member = False
        """Whether this broker has a session in which it may own bundles."""

        self.is_leaving = False
        """Whether this broker is stopping."""

        self._rejoining: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_listening: Callable[[], None] = lambda: None
        self._on_joined: list[Callable[[], Awaitable[None]]] = []
        self.displaced: ConfigurationError | None = None
        """Why this broker can own nothing any more: another live broker has its address."""
        self.on_displaced: Callable[[], None] = lambda: None
        self.ask_to_acquire: Callable[[Urls, Bundle], Awaitable[bool]] | None = None
        """Asks the broker with this admin interface to acquire a bundle. Returns whether it did."""

    # ---------------------------------------------------------------- joining and leaving

    async def join(self, me: BrokerRecord) -> None:
        """Announce this broker. From then on it may own bundles.

        Raises what the metadata store raises, and `ConfigurationError` when a broker that started
        later has the same address.
        """
        self._me = me
        self._stop_listening = self._metadata.on_session_change(self._on_session)
        await self._announce()

    def on_joined(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Call `listener` in every new session, before anything is owned in it."""
        self._on_joined.append(listener)

    async def _announce(self) -> None:
        session = self._session
        self._me = replace(self._require_me(), instance=uuid.uuid4().hex)
        await self._nodes.announce(self._me)
        await asyncio.gather(self.view.start(), *(listener() for listener in self._on_joined))
        if session == self._session:
            self.is_member = True

    async def leave(self) -> None:
        """Acquire no more bundles, and release every owned one after its topics are persisted."""
        self.is_leaving = True
        if self._rejoining is not None:
            self._rejoining.cancel()
            await asyncio.gather(self._rejoining, return_exceptions=True)
        if self._me is not None and self.is_member:
            try:
                async with asyncio.timeout(WITHDRAW_SECONDS_MAX):
                    await self._nodes.delete(broker_path(self._me.broker_id), None)
            except (AckGateError, TimeoutError) as error:
                log.warning("broker %s is still announced: %r", self._me.broker_id, error)
            await self._release_all()
        self.is_member = False
        self._stop_listening()
        self.view.stop()
        for task in list(self._tasks):
            task.cancel()

    async def _release_all(self) -> None:
        gate = asyncio.Semaphore(RELEASES_AT_ONCE_MAX)

        async def release(bundle: Bundle) -> None:
            async with gate:
                await self.release(bundle)

        owned = [bundle for bundle, state in self._states.items() if state is BundleState.OWNED]
        results = await asyncio.gather(*map(release, owned), return_exceptions=True)
        for bundle, result in zip(owned, results, strict=True):
            if isinstance(result, BaseException):
                log.error("bundle %s was not released cleanly: %r", bundle, result)

    # ---------------------------------------------------------------- asking

    def state(self, bundle: Bundle) -> BundleState:
        """The state of a bundle, as far as this broker knows."""
        own = self._states.get(bundle)
        if own is not None:
            return own
        owner = self.view.owners.get(bundle)
        if owner is None or owner.broker_id == self._require_me().broker_id:
            return BundleState.FREE  # a node of our own earlier run: we may take it
        return BundleState.ELSEWHERE

    @property
    def sessions_lost(self) -> int:
        """How often the session was lost, and every bundle with it."""
        return self._session

    @property
    def owned(self) -> list[Bundle]:
        """The bundles that this broker owns."""
        return [b for b, state in self._states.items() if state is BundleState.OWNED]

    async def bundles(self, namespace: NamespaceName) -> NamespaceBundles:
        """The bundles of a namespace. Cuts it by the settings if that was not done yet.

        Raises `NamespaceNotFoundError`.
        """
        known = self._namespaces.get(namespace)
        if known is not None:
            return known
        await self._services.namespaces.require(namespace)
        count = self._services.settings.broker.default_number_of_namespace_bundles
        return await self.cut(NamespaceBundles.cut(namespace, count))

    async def cut(self, wanted: NamespaceBundles) -> NamespaceBundles:
        """Cut a namespace like this, unless it is cut already. Returns the bundles that it has."""
        stored = await self._nodes.bundles(wanted)
        return self._namespaces.setdefault(wanted.namespace, stored)

    def location_now(self, topic: TopicName) -> Location | None:
        """Where a topic is served, without I/O. None if that is not known or just changing."""
        bundles = self._namespaces.get(topic.namespace_name)
        if bundles is None or not self.is_member:
            return None
        bundle = bundles.of(topic)
        match self.state(bundle):
            case BundleState.OWNED:
                return self._here()
            case BundleState.ELSEWHERE:
                return _owned_by(self.view.owners[bundle])
            case _:
                return None

    async def locate(self, topic: TopicName, *, is_authoritative: bool = False) -> Location:
        """Find the broker that serves a topic.

        Acquires a free one if the plan assigns it to this broker.

        `is_authoritative`: another broker has decided that the plan assigns it to us. Raises
        `ServiceNotReadyError` if the owner is not known in time, `NamespaceNotFoundError`.
        """
        try:
            async with asyncio.timeout(LOCATE_SECONDS_MAX):
                self._check_member()
                bundles = await self.bundles(topic.namespace_name)
                return await self.locate_bundle(
                    bundles.of(topic), is_authoritative=is_authoritative
                )
        except TimeoutError:
            raise ServiceNotReadyError(f"topic {topic} is changing hands") from None
        except (MetadataStoreError, OwnershipError) as error:
            log.warning("topic %s cannot be located: %s", topic, error)
            raise ServiceNotReadyError(
                f"topic {topic} cannot be located: {type(error).__name__}"
            ) from error

    async def locate_bundle(self, bundle: Bundle, *, is_authoritative: bool = False) -> Location:
        """As `locate`, for a bundle, and without a limit in time."""
        is_news = not is_authoritative
        while True:
            self._check_member()
            match self.state(bundle):
                case BundleState.OWNED:
                    return self._here()
                case BundleState.ACQUIRING | BundleState.RELEASING:
                    await self._settled[bundle].wait()
                case BundleState.ELSEWHERE:
                    if is_news:
                        return _owned_by(self.view.owners[bundle])
                    await self.look(bundle)  # it was free: our view may be old
                    is_news = True
                case BundleState.FREE:
                    chosen = None if is_authoritative else await self._chosen(bundle)
                    if chosen is not None:
                        return chosen
                    if self.state(bundle) is BundleState.FREE:
                        await self._acquire(bundle)

    async def require(self, topic: TopicName, *, is_authoritative: bool = False) -> None:
        """Return if the topic is served here. Raises `NotOwnedError`, `ServiceNotReadyError`."""
        location = self.location_now(topic)
        if location is None or (is_authoritative and not location.is_here):
            location = await self.locate(topic, is_authoritative=is_authoritative)
        if not location.is_here:
            raise NotOwnedError(topic, location.web, is_owner=location.is_owner)

    def is_served_here(self, topic: TopicName) -> bool:
        """Whether this broker owns the topic's bundle, without I/O."""
        bundles = self._namespaces.get(topic.namespace_name)
        return bundles is not None and self._states.get(bundles.of(topic)) is BundleState.OWNED

    async def _chosen(self, bundle: Bundle) -> Location | None:
        """The other broker to which the plan assigns a free bundle; None: it is this one."""
        me = self._require_me()
        owner = self.view.owners.get(bundle)
        if owner is not None:
            return None  # our own earlier run had it
        namespace = await self.bundles(bundle.namespace)
        counts = self.view.bundles_per_broker()
        loads = {broker_id: counts[broker_id] for broker_id in self.view.brokers}
        loads.setdefault(me.broker_id, counts[me.broker_id])
        loads[me.broker_id] += sum(
            state is BundleState.ACQUIRING for state in self._states.values()
        )
        if self.is_leaving:
            del loads[me.broker_id]
        free = [str(each) for each in namespace if self.state(each) is BundleState.FREE]
        chosen = plan({*free, str(bundle)}, loads).get(str(bundle))
        if chosen is None:
            raise ServiceNotReadyError("the broker is stopping, and there is no other")
        if chosen == me.broker_id:
            return None
        broker = self.view.brokers[chosen]
        return Location(chosen, broker.service, broker.web, is_here=False, is_owner=False)

    def reached_by(self, located: Location, listener: str) -> Urls:
        """The addresses of a topic's broker for clients of a listener.

        An empty `listener`: the internal one. Raises `ServiceNotReadyError` if that broker has no
        such listener.
        """
        if not listener:
            return located.service
        record = self._me if located.is_here else self.view.brokers.get(located.broker_id)
        for each in record.listeners if record is not None else ():
            if each.name == listener:
                return each.service
        raise ServiceNotReadyError(f"broker {located.broker_id} has no listener {quoted(listener)}")

    def web_reached_by(self, web: Urls, listener: str) -> Urls:
        """Translate the internal address of an admin interface for clients of a listener.

        Returns `web` itself if `listener` is empty, or has no admin interface.
        """
        known = (*self.view.brokers.values(), *filter(None, [self._me]))
        for record in known if listener else ():
            for each in record.listeners if record.web == web else ():
                if each.name == listener and each.web.any:
                    return each.web
        return web

    def _here(self) -> Location:
        me = self._require_me()
        return Location(me.broker_id, me.service, me.web, is_here=True, is_owner=True)

    def _require_me(self) -> BrokerRecord:
        if self._me is None:
            raise ServiceNotReadyError("the broker is starting")
        return self._me

    def _check_member(self) -> None:
        if not self.is_member:
            raise ServiceNotReadyError("the broker has no session to the metadata store")

    # ---------------------------------------------------------------- acquiring

    async def _acquire(self, bundle: Bundle) -> None:
        """Become the owner of a free bundle, or learn who owns it."""
        if self.is_leaving:
            raise ServiceNotReadyError("the broker is stopping")
        session = self._session
        self._move(bundle, BundleEvent.ACQUIRE)
        try:
            epoch = await self._nodes.next_epoch(bundle)
            me = self._require_me()
            wanted = OwnerRecord.of(me, epoch)
            owner = await self._nodes.claim(bundle, wanted)
        except BaseException:
            if session == self._session:
                self._move(bundle, BundleEvent.FAILED)
            raise
        if session != self._session:
            if owner == wanted:  # made by a late call in the new session: nobody waits for it
                await self._nodes.delete(bundle.owner_path, None)
            raise ServiceNotReadyError(f"bundle {bundle}: the session was lost meanwhile")
        if owner == wanted:
            self._move(bundle, BundleEvent.WON)
            self.acquired += 1
            log.info("bundle %s acquired, epoch %d", bundle, epoch)
        else:
            self._move(bundle, BundleEvent.BEATEN)
        self.view.put_owner(bundle, owner)

    # ---------------------------------------------------------------- giving away

    async def release(self, bundle: Bundle, destination: BrokerRecord | None = None) -> None:
        """Release an owned bundle, if wanted to `destination`.

        Returns after its clients were notified. Ignores a bundle that is not owned here.
        """
        while self.state(bundle) in {BundleState.ACQUIRING, BundleState.RELEASING}:
            await self._settled[bundle].wait()
        if self.state(bundle) is not BundleState.OWNED:
            return
        self._move(bundle, BundleEvent.RELEASE)
        session, heir = self._session, NOWHERE
        send_away: Callable[[Urls], None] | None = None
        try:
            send_away = await self._topics.hand_over(self._is_in(bundle))
            if session == self._session:  # otherwise the node is gone, or belongs to another broker
                await self._remove_node(bundle)
                heir = await self._successor(bundle, destination)
        finally:
            self._move(bundle, BundleEvent.RELEASED)
            log.info("bundle %s is released to %s", bundle, heir.any or "any broker")
            if send_away is not None:
                send_away(heir)

    async def level(self) -> None:
        """Hand over one bundle, if this broker has the most, and another at least two fewer.

        The broker with the fewest gets it.
        """
        if not self.is_member or self.is_leaving:
            return
        loads = self.view.settled(self._services.clock_ms() - SETTLED_MS)
        heir = heir_of_one(self._require_me().broker_id, loads)
        if heir is not None and self.owned:
            await self.release(max(self.owned, key=str), self.view.brokers[heir])

    async def _remove_node(self, bundle: Bundle) -> None:
        """Delete our owner's node, and update the view.

        The view keeps a node that may still be there: other brokers still send their clients here.
        """
        session = self._session
        try:
            owner = await self._nodes.remove(bundle, self._require_me())
        except OwnershipError:
            return  # the session is over, and the node with it
        if session == self._session:
            self.view.put_owner(bundle, owner)

    async def _successor(self, bundle: Bundle, destination: BrokerRecord | None) -> Urls:
        """Have another broker acquire the bundle.

        Returns its addresses for our clients, or `NOWHERE`.
        """
        if self.ask_to_acquire is None or not self.is_member:
            return NOWHERE
        if destination is None:
            if not self.is_leaving:
                return NOWHERE
            try:
                chosen = await self._chosen(bundle)
            except AckGateError:
                return NOWHERE
            destination = self.view.brokers.get(chosen.broker_id) if chosen else None
        if destination is None or destination.broker_id == self._require_me().broker_id:
            return NOWHERE
        is_done = await self.ask_to_acquire(destination.web, bundle)
        # It has several addresses. A lookup decides which of them a client can reach.
        return destination.service if is_done and not destination.listeners else NOWHERE

    def _is_in(self, bundle: Bundle) -> Callable[[TopicName], bool]:
        namespace = self._namespaces[bundle.namespace]
        return lambda topic: (
            topic.namespace_name == bundle.namespace and namespace.of(topic) == bundle
        )

    # ---------------------------------------------------------------- losing

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST and not self.is_leaving and self.displaced is None:
            log.warning("the session to the metadata store is lost: every topic is released")
            self._lose_everything()
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin(self._rejoining))

    def _lose_everything(self) -> None:
        """Drop every bundle and topic, and write nothing."""
        self._session += 1
        self.is_member = False
        self.view.stop()
        lost = self.owned
        for bundle in list(self._states):
            self._move(bundle, BundleEvent.LOST)
        self._topics.abandon(lambda _: True)
        for bundle in lost:
            self._move(bundle, BundleEvent.RELEASED)

    async def _rejoin(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            previous.cancel()
            await asyncio.gather(previous, return_exceptions=True)
        session = self._session
        seconds = REJOIN_SECONDS_MIN
        while session == self._session and not self.is_leaving:
            try:
                await self._metadata.renew()
                await self._announce()
            except AckGateError as error:
                log.warning("not joined again yet: %s", error)
            else:
                log.info("joined again")
                return
            await asyncio.sleep(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - a jitter
            seconds = min(seconds * 2, REJOIN_SECONDS_MAX)

    def _on_owner(self, bundle: Bundle, owner: OwnerRecord | None) -> None:
        """Handle what was read of a bundle's owner. The read may be older than our own node."""
        if not self._is_mine(owner) and self._states.get(bundle) is BundleState.OWNED:
            self._run(self._verify(bundle))

    async def _verify(self, bundle: Bundle) -> None:
        """Release the bundle if another broker has taken its node."""
        session = self._session
        while session == self._session and self._states.get(bundle) is BundleState.OWNED:
            try:
                owner = await self._nodes.owner(bundle)
            except MetadataStoreError as error:  # no other event will come for this
                log.warning("who owns bundle %s cannot be read yet: %s", bundle, error)
                await asyncio.sleep(REJOIN_SECONDS_MIN)
            else:
                break
        else:
            return
        if owner is not None and self._is_mine(owner):
            self.view.owners[bundle] = owner
        elif session == self._session and self._states.get(bundle) is BundleState.OWNED:
            log.warning("bundle %s was taken by another broker", bundle)
            self._move(bundle, BundleEvent.LOST)
            self._topics.abandon(self._is_in(bundle))
            self._move(bundle, BundleEvent.RELEASED)

    def _is_mine(self, owner: OwnerRecord | None) -> bool:
        return owner is not None and owner.instance == self._require_me().instance

    async def look(self, bundle: Bundle) -> None:
        """Read who owns a bundle, because the view may be old."""
        owner = await self._nodes.owner(bundle)
        self.view.put_owner(bundle, owner)

    def _on_broker(self, broker: BrokerRecord) -> None:
        me = self._require_me()
        if broker.broker_id == me.broker_id and broker.run != me.run:
            self._contend(me, broker)
            return
        for who, other in ((me, broker), (broker, me)):
            missing = sorted(set(other.bookies) - set(who.bookies))
            if missing:
                log.warning(
                    "broker %s cannot reach the bookies %s of broker %s: topics that have entries "
                    "there cannot move; all brokers need the same bookieDirectories",
                    who.broker_id, ", ".join(missing), other.broker_id,
                )  # fmt: skip

    def _contend(self, me: BrokerRecord, other: BrokerRecord) -> None:
        """Handle another broker that has announced our address while we live."""
        if self.is_leaving or self.displaced is not None:
            return
        if other.run > me.run:
            log.error(
                "this broker goes on, and run %d must end: %s", other.run, address_taken(other)
            )
            self._run(self._nodes.announce(me, is_insisting=True))
            return
        self.displaced = address_taken(other)
        log.error("%s", self.displaced)
        self._lose_everything()
        self.on_displaced()

    # ---------------------------------------------------------------- inside

    def _move(self, bundle: Bundle, event: BundleEvent) -> None:
        state = after(self.state(bundle), event, bundle)
        if state in {BundleState.FREE, BundleState.ELSEWHERE}:
            self._states.pop(bundle, None)
        else:
            self._states[bundle] = state
        if state in {BundleState.ACQUIRING, BundleState.RELEASING}:
            self._settled.setdefault(bundle, asyncio.Event())
        else:
            settled = self._settled.pop(bundle, None)
            if settled is not None:
                settled.set()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("ownership: %s", error)


def _owned_by(owner: OwnerRecord) -> Location:
    return Location(owner.broker_id, owner.service, owner.web, is_here=False, is_owner=True)


# ---- The plan: which broker is to own a free bundle
#
# Every broker that sees the same owners computes the same plan without asking another, for
# each bundle of a namespace, in whatever order clients ask for them: it makes a *plan* for all of them
# at once. It assigns bundles, in the order of their names, to the broker with the fewest; among
# equals, to the one with the highest hash of bundle and broker together (rendezvous hashing).
#
# An owned bundle stays where it is: a broker that joins gets only bundles that become free. Not so among
# the workers of one machine: one that comes back would leave its core idle. The one with the most gives
# away one bundle at a time, until none has two fewer.


def plan(unowned: Iterable[str], owned_by: Mapping[str, int]) -> dict[str, str]:
    """A broker for each bundle; empty when there is no broker.

    `owned_by`: how many bundles each broker that may be chosen owns.
    """
    counts = dict(owned_by)
    chosen: dict[str, str] = {}
    for bundle in sorted(unowned) if counts else ():
        least = min(counts.values())
        broker = max(
            (broker for broker, count in counts.items() if count == least),
            key=lambda broker: (_affinity(bundle, broker), broker),
        )
        counts[broker] += 1
        chosen[bundle] = broker
    return chosen


def heir_of_one(giver: str, owned_by: Mapping[str, int]) -> str | None:
    """The broker to which the giver hands a bundle; None: it keeps all."""
    if giver not in owned_by:
        return None
    most = min(owned_by, key=lambda broker: (-owned_by[broker], broker))
    least = min(owned_by, key=lambda broker: (owned_by[broker], broker))
    is_uneven = owned_by[most] - owned_by[least] >= 2
    return least if is_uneven and giver == most else None


def _affinity(bundle: str, broker: str) -> bytes:
    return hashlib.blake2b(f"{bundle} {broker}".encode(), digest_size=8).digest()


class Lease:
    """Whether this broker surely still owns what it owns."""

    __slots__ = ("_asking", "_metadata", "_waiting")

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._waiting: dict[object, Callable[[], None]] = {}
        self._asking: asyncio.Task[None] | None = None

    def holds(self) -> bool:
        """Whether everything that was owned is surely still owned."""
        return asyncio.get_running_loop().time() < self._metadata.lease_until

    def when_held(self, waiter: object, callback: Callable[[], None]) -> None:
        """Call `callback` when the lease holds again; once for each waiter, however often it asks.

        If the session is lost, the callback is not called: the waiter's topic is closed then.
        """
        self._waiting[waiter] = callback
        if self._asking is None:
            log.warning("the session may have expired: deliveries wait until that is known")
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        try:
            while not self.holds():
                try:
                    await self._metadata.children("/")
                except (OwnershipError, ClosedHandleError):
                    self._waiting.clear()
                    return
                except AckGateError as error:
                    log.debug("the session could not be asked for: %s", error)
                if not self.holds():
                    await asyncio.sleep(ASK_AGAIN_SECONDS)
        finally:
            self._asking = None
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()
