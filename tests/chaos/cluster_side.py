"""One topic of a cluster run: its wire clients find the owner, hold it to the facts, and work.

Edge::

    look up -> connect -> cursor states against the facts -> deliveries against the facts -> work
       ^                                                                                      |
       '---- the connection ends, the broker lets go of the topic, or is silent while another owns it

What is given up while it is open (a paused owner) is kept until the end of the cycle: answers that
come late are held against the facts, too, and no new round of messages may begin there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.chaos import inspection
from tests.chaos.facts import ViolationError
from tests.support.wire_client import DisconnectedError, RefusedError
from tests.support.wire_lookup import NoOwnerError, ask_for_owner, find_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from ackgate.testing import BrokerCluster
    from tests.chaos.side import Side
    from tests.chaos.wire_load import Publisher, Subscriber, UnderWay
    from tests.support.wire_client import WireClient

MESSAGES_PER_OWNER_MAX: Final = 1_500
BURST_PAUSE_SECONDS_MAX: Final = 0.06
"""So that there is work in all of a cycle."""

ACK_PAUSE_SECONDS_MAX: Final = 0.03
"""Some hundred acts a second: enough is under way whenever something happens."""

LOOKUP_SECONDS: Final = 30.0
ATTACH_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 0.3
LOOK_AROUND_SECONDS: Final = 0.1
LATE_ANSWER_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 20.0
ROUND_MESSAGES_MAX: Final = 100
"""A process may be stopped between asking for its lease and sending what it has asked for: one
round of deliveries, and nothing can be done about that. The next round asks again."""

PAUSE_SECONDS: Final = 0.05

_CLOSES: Final = frozenset({pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER})


class MovedError(Exception):
    """The topic is somewhere else now, or nowhere."""


class SilentError(MovedError):
    """The broker says nothing, and others say that it is theirs."""


class LetGoError(MovedError):
    """The broker has said that it lets go of it."""


TROUBLES: Final = (MovedError, DisconnectedError, RefusedError, NoOwnerError, OSError)
"""After these one looks up the owner again. `TimeoutError` and HTTP errors are `OSError`."""


class ClusterSide:
    """See the module."""

    def __init__(
        self, side: Side, cluster: BrokerCluster, log_path: Path, note: Callable[[str], None]
    ) -> None:
        self.side = side
        self.owner = 0
        """The broker that is, or was last, known to serve it."""
        self.verified_at = -math.inf
        """When the present owner was held to the facts; infinitely long ago while there is none."""
        self.first_delivery_at = -math.inf
        """From the present owner."""
        self.hand_overs: list[float] = []
        """Seconds from being let go by one owner to the first delivery by the next."""
        self.verified_messages = 0
        self.is_idle = False
        """Whether it only holds the topic to the facts, and leaves the work to others."""
        self._cluster = cluster
        self._log_path = log_path
        self._note = note
        self._served: tuple[int, int] | None = None
        self._let_go_at = math.inf
        self._late: list[tuple[WireClient, UnderWay]] = []
        self._late_had: dict[WireClient, int] = {}
        """Messages that a former owner had delivered when its successor was found in order."""

    # ---------------------------------------------------------------- one cycle

    async def serve(self, cycle: int, stop: asyncio.Event) -> None:
        """Work until told to stop, wherever the topic goes. Raises `ViolationError`."""
        while not stop.is_set():
            try:
                await self._attach(cycle)
                await self._watched(self._verify())
            except TROUBLES as error:
                self._tell("could not be served", error)
                self._discard()
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                await self._watched(self._work(stop))
                await self._watched(self._detach())
                await self._close()
            except TROUBLES as error:
                self._tell("has moved", error)
                self._let_go_at = time.monotonic() if isinstance(error, LetGoError) else math.inf
                if not isinstance(error, SilentError):
                    await self._leave()
                self._give_up()

    async def probe(self) -> None:
        """Return when a message has been published since the call."""
        while True:
            if self.verified_at > -math.inf:
                try:
                    async with asyncio.timeout(1):
                        await self.side.publisher.publish(1)
                    return
                except TROUBLES as error:
                    self._tell("does not take a message", error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def settle_late(self) -> None:
        """Hear what former owners have to say, and close. Raises `ViolationError`."""
        waiting = [task for _, under_way in self._late for task in under_way.tasks]
        if waiting:
            await asyncio.wait(waiting, timeout=LATE_ANSWER_SECONDS)
        for client, under_way in self._late:
            client.abort()
            await under_way.settle(may_be_refused=True)
            more = _messages(client) - self._late_had.get(client, math.inf)
            if more > ROUND_MESSAGES_MAX:
                raise ViolationError(f"{more} messages came from one that owned the topic no more")
        self._late.clear()
        self._late_had.clear()

    # ---------------------------------------------------------------- finding it, holding it to the facts

    async def _attach(self, cycle: int) -> None:
        side = self.side
        brokers = [f"127.0.0.1:{broker.port}" for broker in self._cluster.brokers]
        owner = await find_owner(brokers, side.topic.name, LOOKUP_SECONDS)
        [self.owner] = [
            number for number, each in enumerate(self._cluster.brokers) if each.port == owner.port
        ]
        async with asyncio.timeout(ATTACH_SECONDS):
            for subscriber in side.subscribers:
                await subscriber.attach(owner.port, cycle)
            await side.publisher.attach(owner.port)
        await side.start_client(self._cluster.service_url, self._log_path)

    async def _verify(self) -> None:
        side, broker = self.side, self._cluster.brokers[self.owner]
        served = (self.owner, broker.starts)
        has_changed_hands = served != self._served
        await inspection.check_recovery(
            broker.admin_url, side.topic.name, inspection.NEW | inspection.STORED
        )
        states = await inspection.cursor_states(broker.admin_url, side.topic.name)
        side.verify_states(states)
        if has_changed_hands:  # what is told is what was durable
            for facts in side.wire_facts:
                facts.verify_mark_delete(states[facts.name].mark_delete)
        applied_at = None if has_changed_hands else time.monotonic()
        marker = await side.publisher.publish(1)
        await side.subscribers[0].first_delivery()
        self.first_delivery_at = time.monotonic()
        if self._let_go_at < math.inf:
            self.hand_overs.append(self.first_delivery_at - self._let_go_at)
            self._let_go_at = math.inf
        for subscriber in side.subscribers:
            self.verified_messages += await subscriber.verify(
                marker, applied_at=applied_at, patience_seconds=PATIENCE_SECONDS
            )
        for client, _ in self._late:
            self._late_had.setdefault(client, _messages(client))
        self._served, self.verified_at = served, time.monotonic()
        self._note(f"{side.topic.name} is as it should be, at broker {self.owner}")

    # ---------------------------------------------------------------- work, and its ends

    async def _work(self, stop: asyncio.Event) -> None:
        side = self.side
        if self.is_idle:
            await stop.wait()
            return
        jobs = [
            asyncio.create_task(job)
            for job in (
                side.publisher.work(
                    MESSAGES_PER_OWNER_MAX,
                    pause_seconds_max=BURST_PAUSE_SECONDS_MAX,
                    may_be_refused=True,
                ),
                *(
                    subscriber.work(pause_seconds_max=ACK_PAUSE_SECONDS_MAX)
                    for subscriber in side.subscribers
                ),
            )
        ]
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                running = [job for job in jobs if not job.done()]
                await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
                for job in jobs:
                    if job.done():
                        job.result()
        finally:
            await _cancel(stopping, *jobs)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, unless the topic goes away meanwhile. Raises what `TROUBLES` names."""
        working = asyncio.create_task(work)
        watchers = [asyncio.create_task(_until_let_go(each.client)) for each in self._everybody()]
        watchers.append(asyncio.create_task(self._until_elsewhere()))
        try:
            await asyncio.wait([working, *watchers], return_when=asyncio.FIRST_COMPLETED)
            for task in (working, *watchers):  # a violation counts before anything else
                if task.done():
                    task.result()
        finally:
            await _cancel(working, *watchers)

    async def _until_elsewhere(self) -> None:
        """A paused broker does not close its connections: notice that others own the topic."""
        port = self._cluster.brokers[self.owner].port
        while True:
            await asyncio.sleep(LOOK_AROUND_SECONDS)
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    await self.side.subscribers[0].round_trip()
                continue
            except RefusedError:  # an answer, too: its consumer has been closed
                continue
            except TimeoutError:
                pass
            for broker in self._cluster.brokers:
                if broker.port == port:
                    continue
                try:
                    owner = await ask_for_owner(f"127.0.0.1:{broker.port}", self.side.topic.name)
                except NoOwnerError:
                    continue
                if owner.port != port:
                    raise SilentError(f"{port} is silent, and {owner} owns the topic")

    def _everybody(self) -> list[Publisher | Subscriber]:
        return [self.side.publisher, *self.side.subscribers]

    def _discard(self) -> None:
        """Nothing was acked yet."""
        self.verified_at = -math.inf
        for each in self._everybody():
            if hasattr(each, "client"):
                each.client.abort()

    async def _leave(self) -> None:
        """A broker whose disk is full closes the producers only.

        It lives, and is told to forget the consumers: what they hold would not come to others.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_SECONDS):
                leaving = (each.leave() for each in self._everybody())
                await asyncio.gather(*leaving, return_exceptions=True)

    def _give_up(self) -> None:
        """Go elsewhere; `settle_late` closes what is still open."""
        self.verified_at = -math.inf
        self._late += [(each.client, each.under_way) for each in self._everybody()]
        for facts in self.side.wire_facts:
            facts.broker_ended()

    async def _detach(self) -> None:
        """Everything that was sent is answered; then all clients go."""
        self.verified_at = -math.inf
        for each in self._everybody():
            await each.finish()
        refused = sum(each.under_way.refused for each in self._everybody())
        if refused:
            self._note(f"{self.side.topic.name}: {refused} requests were refused")

    async def _close(self) -> None:
        for each in self._everybody():
            await each.client.close()
            await each.under_way.settle(may_be_refused=True)
        for facts in self.side.wire_facts:
            facts.broker_ended()

    def _tell(self, what: str, error: BaseException) -> None:
        text = str(error).replace("\n", " ")[:200]
        self._note(f"{self.side.topic.name} {what} ({type(error).__name__}: {text})")


def _messages(client: WireClient) -> int:
    return sum(len(consumer.received) for consumer in client.consumers.values())


async def _until_let_go(client: WireClient) -> None:
    """Until the broker closes a producer, a consumer or the connection. Raises then."""
    while True:
        try:
            await client.until(lambda: any(each.type in _CLOSES for each in client.events))
        except TimeoutError:
            continue
        raise LetGoError("the broker has let go of the topic")


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def agree(cluster: BrokerCluster, topic: str) -> bool:
    """Whether every broker names the same owner. Raises `ViolationError` if one has ended."""
    owners = set()
    for broker in cluster.brokers:
        if not broker.is_running:
            raise ViolationError(f"a broker has ended by itself:\n{broker.log[-2000:]}")
        try:
            owners.add(await ask_for_owner(f"127.0.0.1:{broker.port}", topic))
        except NoOwnerError:
            return False
    return len(owners) == 1
