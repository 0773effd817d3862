"""A topic's message store while any one call to its stores goes wrong, each call in turn.

One life of a topic (open, add, roll, properties, trim, close, open, terminate, delete) is lived as
often as it makes calls, and each time another call fails, is done without an answer, lands late, or
is done twice. A step that fails is taken again, as its callers do. Then everything confirmed must
be there once and in order, and nothing may be left behind that the search for orphans does not find.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ackgate.broker.wire.entry import ENTRY_FORM
from ackgate.cursor import Position, Span
from ackgate.errors import LedgerGivenUpError, OwnershipError, StorageError
from ackgate.persistence import (
    BookieLedgerClient,
    LedgerClient,
    LedgerOptions,
    MemoryMetadataStore,
    MetadataStore,
    open_bookies,
)
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.messages.managed_ledger import TOPIC_PATH_KEY, ManagedLedger
from ackgate.persistence.messages.rules import Retention, RolloverLimits
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.nodes.paths import ledger_path
from ackgate.persistence.nodes.topic_node import TopicNode, decode_topic_node
from ackgate.persistence.nodes.unnamed_ledgers import DELETION_KEY
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.inline_lane import InlineLane
from tests.support.simulation.disk import SimulatedFiles
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.test_managed_ledger import NEVER, PATH, Sink, entry, number, stored

T = TypeVar("T")

TRIES_MAX = 6
FAULTS = [
    (Fault.FAIL, 0.0),
    (Fault.FAIL, 20.0),
    (Fault.DROP_ANSWER, 0.0),
    (Fault.LANDS_LATE, 0.0),
    (Fault.LANDS_LATE, 5.0),
    (Fault.REPEAT, 0.0),
    (Fault.SUSPEND, 3.0),
    (Fault.LATE_ANSWER, 8.0),
]


class Life:
    """A topic, its brokers one after the other, and what its producer was told."""

    def __init__(self, plan: FaultPlan, files: SimulatedFiles | None = None) -> None:
        self.plan = plan
        self.files = files
        """Of a bookie, whose client asks the faulty metadata store; None: ledgers in memory."""
        self.tree = MemoryTree()
        self.storage = MemoryLedgers()
        self.clients: list[LedgerClient] = []
        self.confirmed: list[tuple[Position, int]] = []
        self.ledger: ManagedLedger | None = None
        self.sent = itertools.count()

    async def client(self, metadata: MetadataStore, plan: FaultPlan) -> LedgerClient:
        if self.files is None:
            return FaultyLedgerClient(MemoryLedgerClient(self.storage), plan)
        bookies = await open_bookies(
            [Path("/bookie")],
            settings=BookieSettings(checkpoint_idle_seconds=None),
            disk=self.files.disk(f"broker {len(self.clients)}"),
            lane=InlineLane,
        )
        self.clients.append(BookieLedgerClient(bookies, metadata))
        return self.clients[-1]

    async def broker(self, *, is_quiet: bool = False) -> tuple[ManagedLedger, Sink]:
        plan = FaultPlan() if is_quiet else self.plan
        sink = Sink()
        metadata = FaultyMetadataStore(MemoryMetadataStore(self.tree), plan)
        ledger = ManagedLedger(
            PATH,
            await self.client(metadata, plan),
            metadata,
            form=ENTRY_FORM,
            cache=EntryCache(1 << 20),
            options=LedgerOptions(),
            limits=RolloverLimits(NEVER, NEVER, 0, NEVER),
            clock_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            sink=sink,
        )
        return ledger, sink

    async def live(self) -> None:
        await self.open(create=True)
        await self.send(3)
        await self.again(self.topic.roll)
        await self.send(3)
        await self.again(lambda: self.topic.change_properties(lambda _: {"a": "b"}))
        await self.again(self.topic.roll)
        await self.send(2)
        first = self.confirmed[0][0].ledger_id
        await self.again(lambda: self.topic.trim(Position(first, 1_000), Retention()))
        self.confirmed = [each for each in self.confirmed if each[0].ledger_id != first]
        assert self.topic.properties == {"a": "b"}
        await self.topic.close()
        await self.look()
        await self.open(create=False)
        await self.send(1)
        await self.again(self.topic.terminate)
        await self.look()
        await self.open(create=False)
        await self.again(self.topic.delete)
        await asyncio.sleep(60)
        assert await self.node() is None
        client = await self.client(MemoryMetadataStore(self.tree), FaultPlan())
        for ledger_id in await client.ledger_ids():
            try:
                found = (await client.metadata(ledger_id)).custom_metadata
            except LedgerGivenUpError:
                continue  # the next sweep finishes the deletion
            assert found[TOPIC_PATH_KEY] == PATH.encode(), "an orphan that can be found"
            has_node = await MemoryMetadataStore(self.tree).get(ledger_path(ledger_id))
            if has_node and not await client.is_empty(ledger_id):
                assert DELETION_KEY in found, "an orphan that may be deleted"
        for each in self.clients:
            await each.close()

    @property
    def topic(self) -> ManagedLedger:
        assert self.ledger is not None
        return self.ledger

    async def open(self, *, create: bool) -> None:
        async def open_it() -> None:
            ledger, sink = await self.broker()
            await ledger.open(create=create)
            self.ledger, self.sink = ledger, sink

        await self.again(open_it)

    async def again(self, step: Callable[[], Awaitable[T]]) -> T:
        """Take a step until it succeeds."""
        for _ in range(TRIES_MAX):
            try:
                return await step()
            except StorageError:
                await asyncio.sleep(1)
            except OwnershipError as error:
                raise AssertionError("there is no other owner") from error
        raise AssertionError(f"failed {TRIES_MAX} times")

    async def send(self, count: int) -> None:
        """As a producer does: what fails is sent again."""
        for _ in range(count):
            number = next(self.sent)
            for _ in range(TRIES_MAX):
                told = len(self.sink.confirmed) + len(self.sink.failed)
                self.topic.add(entry(number), 1, number)
                async with asyncio.timeout(100):
                    while len(self.sink.confirmed) + len(self.sink.failed) == told:
                        await asyncio.sleep(0.1)
                if self.sink.confirmed and self.sink.confirmed[-1][1] == number:
                    self.confirmed.append(self.sink.confirmed[-1])
                    break
            else:
                raise AssertionError("an add failed again and again")
            assert not self.sink.fenced, self.sink.fenced
        assert self.topic.pending_adds == 0
        self.topic.ledgers.check()

    async def look(self) -> None:
        """What another broker finds: everything confirmed, in its place and in order."""
        before = await self.node()
        ledger, _ = await self.broker(is_quiet=True)
        await ledger.open(create=False)
        numbers = dict.fromkeys(await stored(ledger))
        assert [n for n in numbers if n in {n for _, n in self.confirmed}] == [
            n for _, n in self.confirmed
        ]
        for position, confirmed in self.confirmed:
            span = Span(position.ledger_id, position.entry_id, position.entry_id + 1)
            (found,) = await ledger.reads.read([span])
            assert number(found.payload) == confirmed
        assert before is not None
        if not before.is_terminated:
            await ledger.close()

    async def node(self) -> TopicNode | None:
        found = await MemoryMetadataStore(self.tree).get(PATH)
        return None if found is None else decode_topic_node(found.value, path=PATH)


def live(plan: FaultPlan, files: SimulatedFiles | None = None) -> FaultPlan:
    try:
        run_in_virtual_time(Life(plan, files).live())
    except BaseException:
        print(plan.story())
        raise
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seconds"), FAULTS, ids=str)
def test_each_call_in_turn(fault: Fault, seconds: float) -> None:
    calls = live(FaultPlan()).calls
    assert calls > 20
    hit = 0
    for nth in range(1, calls + 1):
        plan = live(FaultPlan([Rule(fault, nth=nth, seconds=seconds)]))
        hit += len(plan.injected)
    assert hit > 5


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seconds"), FAULTS, ids=str)
def test_each_call_of_bookies_and_topic_in_turn(fault: Fault, seconds: float) -> None:
    """The same with the real ledger client, which asks the same metadata store."""
    calls = live(FaultPlan(), SimulatedFiles()).calls
    for nth in range(1, calls + 1):
        live(FaultPlan([Rule(fault, nth=nth, seconds=seconds)]), SimulatedFiles())


# ------------------------------------------------------------------------ one case at a time


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        run_in_virtual_time(test())

    return run


def metadata_of(ledger: ManagedLedger) -> FaultyMetadataStore:
    store = ledger._metadata
    assert isinstance(store, FaultyMetadataStore)
    return store


async def opened(*rules: Rule) -> Life:
    life = Life(FaultPlan(rules))
    await life.open(create=True)
    return life


@virtual
async def test_a_full_ledger_goes_on_while_the_metadata_store_is_out_of_touch() -> None:
    life = await opened()
    life.topic.limits = RolloverLimits(2, NEVER, 0, NEVER)
    await life.send(2)
    metadata_of(life.topic).suspend()
    await life.send(4)
    assert len(life.storage.ledgers) == 1
    metadata_of(life.topic).resume()
    await life.send(2)
    assert len(life.storage.ledgers) > 1
    await life.look()


@virtual
async def test_adds_wait_for_a_metadata_store_that_comes_back_and_none_fails() -> None:
    """The ledger fails while the store is out of touch: there is nothing to write to."""
    life = await opened(Rule(Fault.FAIL, "ledger.append"))
    metadata_of(life.topic).suspend()
    for sent in range(5):
        life.topic.add(entry(sent), 1, sent)
    await asyncio.sleep(25)
    assert (life.sink.confirmed, life.sink.failed) == ([], [])
    metadata_of(life.topic).resume()
    await asyncio.sleep(5)
    assert [number for _, number in life.sink.confirmed] == list(range(5))
    assert life.sink.failed == []


@virtual
async def test_adds_wait_within_bounds_and_then_fail_with_the_cause() -> None:
    life = await opened(Rule(Fault.FAIL, "ledger.append"))
    metadata_of(life.topic).suspend()
    life.topic.add(entry(0), 1, 0)
    await asyncio.sleep(70)
    assert life.sink.failed == [0]
    assert not life.sink.fenced
    metadata_of(life.topic).resume()
    await life.send(3)
    await life.look()


@virtual
async def test_what_a_failed_ledger_held_is_not_taken_for_what_was_sent_later() -> None:
    """Stored, answered with an error, and the ledger recovered only at the next add."""
    life = await opened(
        Rule(Fault.DROP_ANSWER, "ledger.append"),
        Rule(Fault.FAIL, "ledger.open"),
    )
    for sent in (100, 101):
        life.topic.add(entry(sent), 1, sent)
    await asyncio.sleep(1)
    assert life.sink.failed == [100, 101]
    await life.send(3)
    await asyncio.sleep(1)
    assert await stored(life.topic) == [100, 101, 0, 1, 2]
    await life.look()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.DROP_ANSWER])
def test_a_write_that_fails_while_its_ledger_is_being_closed_holds_up_nothing(
    fault: Fault,
) -> None:
    async def roll() -> None:
        life = await opened(Rule(fault, "ledger.append", seconds=1))
        for sent in range(3):
            life.topic.add(entry(sent), 1, sent)
        await asyncio.sleep(0.5)
        async with asyncio.timeout(10):
            await life.topic.roll()
            await asyncio.sleep(1)
        assert [number for _, number in life.sink.confirmed] == [0, 1, 2]
        await life.look()

    run_in_virtual_time(roll())


@virtual
async def test_an_owner_of_before_changes_nothing_any_more() -> None:
    life = await opened()
    await life.send(2)
    old, told = life.topic, life.sink
    await life.open(create=False)
    for step in (
        lambda: old.change_properties(lambda _: {"who": "the old one"}),
        old.terminate,
        old.delete,
    ):
        with pytest.raises(OwnershipError, match="epoch 2"):
            await step()
    old.add(entry(9), 1, 9)
    await asyncio.sleep(1)
    assert told.failed == [9]
    assert (await life.node()) is not None
    assert life.topic.properties == {}
    await life.send(2)
    await life.look()


@virtual
async def test_two_who_open_at_once_have_one_owner_between_them() -> None:
    """Both choose the same epoch. One is refused, unless its own answer was lost: it goes higher."""
    for rules in ([], [Rule(Fault.DROP_ANSWER, "metadata.put")]):
        life = Life(FaultPlan(rules))
        brokers = [(await life.broker())[0], (await life.broker(is_quiet=True))[0]]
        tried = await asyncio.gather(
            *(broker.open(create=True) for broker in brokers), return_exceptions=True
        )
        open_ones = [broker for broker, error in zip(brokers, tried, strict=True) if error is None]
        assert open_ones
        if not rules:
            assert len(life.storage.ledgers) == 1, "a refused owner leaves nothing behind"
        assert len({broker.owner_epoch for broker in open_ones}) == len(open_ones)
        newest = max(open_ones, key=lambda broker: broker.owner_epoch)
        node = await life.node()
        assert node is not None
        assert node.owner_epoch == newest.owner_epoch
        await newest.change_properties(lambda _: {"a": "b"})


@virtual
async def test_closing_while_the_store_hangs_is_bounded() -> None:
    life = await opened()
    await life.send(1)
    life.plan.rules = [Rule(Fault.FAIL, times=None, seconds=1000)]
    began = asyncio.get_running_loop().time()
    await life.topic.close()
    assert asyncio.get_running_loop().time() - began <= 30.1
    await life.look()
