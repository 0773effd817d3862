"""A broker whose disk is full: what it refuses, what it goes on with, and how it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

from ackgate.broker.topic.disk_space import DiskSpace
from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.wire.errors import ProducerBlockedError, ServerError
from ackgate.errors import StorageError
from ackgate.persistence.metadata.memory import MemoryMetadataStore
from ackgate.persistence.ports import LedgerClient
from ackgate.persistence.system.disk_reserve import Room
from ackgate.testing.memory_ledgers import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_services
from tests.unit.broker.test_failed_adds import NAME, Peer, attach, publish, until

T = TypeVar("T")

RESERVE = 1000


class Disks:
    """File systems by the first part of a path, without files."""

    def __init__(self, **others_bytes: int) -> None:
        self.others_bytes = others_bytes
        self.reserves: dict[Path, int] = {}

    def room(self, directory: Path) -> Room:
        taken = self.others_bytes[directory.parts[0]] + sum(
            size for path, size in self.reserves.items() if path.parts[0] == directory.parts[0]
        )
        return Room(100_000, max(0, 100_000 - taken))

    def device(self, directory: Path) -> int:
        if directory.parts[0] not in self.others_bytes:
            raise FileNotFoundError(directory)
        return list(self.others_bytes).index(directory.parts[0])

    def allocated_bytes(self, path: Path) -> int:
        return self.reserves.get(path, 0)

    def allocate(self, path: Path, size_bytes: int) -> None:
        self.reserves[path] = size_bytes


class Inline:
    """A lane that runs the work at once."""

    def __init__(self, _: str) -> None: ...

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None: ...


def space_of(disks: Disks, *bookies: str, needed: int = 0) -> DiskSpace:
    return DiskSpace(
        Path("data"),
        [Path(bookie) for bookie in bookies],
        bookies_needed=needed,
        reserve_bytes=RESERVE,
        files=disks,
        lane=Inline,
    )


async def test_a_topic_refuses_messages_and_not_acks_until_there_is_room() -> None:
    disks = Disks(data=0)
    space = space_of(disks)
    client = cast("LedgerClient", MemoryLedgerClient(MemoryLedgers()))
    services = bare_services(client, MemoryMetadataStore())
    registry = TopicRegistry(services)
    services.disk_space, services.forget_topic = space, registry.forget
    await space.make_room(is_starting=True)
    topic, peer = await registry.topic(NAME, create=True), Peer()
    producer = await attach(topic, peer, 1)
    publish(producer, 0)
    await until(peer, 1)
    disks.others_bytes["data"] = 99_000
    await space.look()
    publish(producer, 1)
    await until(peer, 2)
    assert (peer.receipts, peer.errors, peer.closed) == ([0], [1], [1])
    with pytest.raises(ProducerBlockedError, match="the disk is full: no messages are taken"):
        await attach(topic, peer, 1)
    assert ProducerBlockedError.code is ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
    disks.others_bytes["data"] = 0
    await space.look()
    publish(await attach(topic, peer, 1), 1)
    await until(peer, 3)
    assert peer.receipts == [0, 1]
    await registry.close()


async def test_a_bookie_with_a_full_disk_of_its_own_matters_when_too_few_are_left() -> None:
    disks = Disks(data=0, one=0, two=0, three=0)
    space = space_of(disks, "one", "two", "three", "absent", needed=2)
    await space.make_room(is_starting=True)
    assert set(disks.reserves) == {Path(d) / "reserve" for d in ("data", "one", "two", "three")}
    disks.others_bytes["one"] = 99_500
    await space.look()
    assert space.refusal is None
    disks.others_bytes["two"] = 99_500
    await space.look()
    # The directory that is not there yet may well have room: opening it will tell.
    assert space.refusal is None
    disks.others_bytes["three"] = 99_500
    await space.look()
    assert "one: 0 KiB free" in str(space.refusal)
    disks.others_bytes.update(one=0, two=0)
    await space.look()
    assert space.refusal is None


async def test_bookies_below_the_data_directory_share_its_reserve() -> None:
    disks = Disks(data=0)
    space = space_of(disks, "data/bookies/0", needed=1)
    await space.make_room(is_starting=True)
    assert disks.reserves == {Path("data/reserve"): RESERVE}


async def test_a_stop_has_the_reserve_but_for_the_quarter_of_the_next_start() -> None:
    disks = Disks(data=0)
    space = space_of(disks)
    await space.make_room(is_starting=True)
    disks.others_bytes["data"] = 99_000
    await space.make_room(is_starting=False)
    assert disks.reserves == {Path("data/reserve"): RESERVE // 4}
    disks.others_bytes["data"] += 750
    await space.make_room(is_starting=False)
    assert disks.reserves == {Path("data/reserve"): RESERVE // 4}


async def test_what_frees_room_is_begun_after_each_look_that_finds_little() -> None:
    disks = Disks(data=0)
    space = space_of(disks)
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)
        if name == "fails":
            raise StorageError(name)

    def mend() -> Iterator[Awaitable[object]]:
        yield work("fails")
        yield work("works")

    space.mend = mend
    await space.make_room(is_starting=True)
    await space.look()
    assert begun == []
    disks.others_bytes["data"] = 99_500
    await space.look()
    await space.look()
    disks.others_bytes["data"] = 0
    await space.look()
    assert begun == ["fails", "works"] * 3
    await space.look()
    assert len(begun) == 6


async def test_a_fast_producer_is_noticed_between_two_looks() -> None:
    disks = Disks(data=0)
    space = space_of(disks)
    await space.make_room(is_starting=True)
    disks.others_bytes["data"] = 99_000
    answers = []
    for _ in range(10):
        answers.append(space.refusal_of(RESERVE // 8))
        await asyncio.sleep(0)
    assert answers[0] is None
    assert answers[-1] is not None
    await space.close()


async def test_a_disk_that_does_not_answer_is_looked_at_once() -> None:
    looks: list[asyncio.Event] = []

    class Silent(Inline):
        async def run(self, work: Callable[[], T]) -> T:
            looks.append(asyncio.Event())
            await looks[-1].wait()
            return work()

    space = DiskSpace(Path("data"), reserve_bytes=RESERVE, files=Disks(data=99_500), lane=Silent)
    first = asyncio.ensure_future(space.look())
    second = asyncio.ensure_future(space.look())
    while not looks:
        await asyncio.sleep(0)
    looks[0].set()
    await asyncio.gather(first, second)
    assert len(looks) == 1
    assert space.refusal is not None
    await space.close()


async def test_nothing_is_looked_at_without_a_reserve() -> None:
    space = DiskSpace.unwatched()
    await space.make_room(is_starting=True)
    await space.look()
    assert (space.refusal, space.free_bytes) == (None, None)
