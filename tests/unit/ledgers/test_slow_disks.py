"""Disks that take their time, or all the time there is. Virtual time: nothing here waits for real."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ackgate.errors import ConfigurationError, LedgerWriteError, NotEnoughBookiesError, StorageError
from ackgate.persistence import BookieLedgerClient, LedgerOptions, MemoryMetadataStore, open_bookies
from ackgate.persistence.bookies.patience import LanePatience, NoAnswerError
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.ledgers.opening import (
    OPEN_SECONDS_MAX,
    RETRY_SECONDS,
    BookieOpener,
    open_usable_bookies,
)
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.faulty_disk import FaultyDisk, disk_error
from tests.support.virtual_time import run_in_virtual_time

T = TypeVar("T")

TIMEOUT = 10.0
SPECULATIVE = 2.0
SETTINGS = BookieSettings(checkpoint_idle_seconds=None, timeout_seconds=TIMEOUT)


class Lanes:
    """Lanes that run their work at once, or not before they are let go on."""

    def __init__(self) -> None:
        self.held: dict[str, asyncio.Event] = {}
        self.seconds: dict[str, float] = {}
        """What each piece of work takes."""

    def hold(self, *names: str) -> None:
        for name in names:
            self.held[name] = asyncio.Event()

    def let_go(self) -> None:
        for event in self.held.values():
            event.set()
        self.held.clear()

    def lane(self, name: str) -> _Lane:
        return _Lane(self, name)


class _Lane:
    def __init__(self, lanes: Lanes, name: str) -> None:
        self._lanes = lanes
        self._name = name
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        # Like a thread: the work is done in the end, whether or not somebody still waits for it.
        return await asyncio.shield(asyncio.ensure_future(self._run(work)))

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turn:
            if (event := self._lanes.held.get(self._name)) is not None:
                await event.wait()
            await asyncio.sleep(self._lanes.seconds.get(self._name, 0))
            return work()

    def close(self) -> None:
        assert self._name not in self._lanes.held, "this would wait for ever"


class Slow:
    """Bookies 0, 1, ... whose lanes can be held."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directories = [directory / str(i) for i in range(count)]
        self.lanes = Lanes()
        self.disk = FaultyDisk()
        self.tree = MemoryTree()

    async def start(self) -> BookieLedgerClient:
        bookies = await open_bookies(
            self.directories, settings=SETTINGS, disk=self.disk, lane=self.lanes.lane
        )
        return BookieLedgerClient(bookies, MemoryMetadataStore(self.tree))


def elapsed() -> float:
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(main)


def here(client: BookieLedgerClient) -> int:
    return len(client.bookies)


def place_of(client: BookieLedgerClient, bookie_id: str) -> int:
    return [bookie.bookie_id for bookie in client.bookies].index(bookie_id)


def test_an_add_does_not_wait_for_a_disk_that_the_ack_quorum_can_do_without(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 3)
        client = await slow.start()
        writer = await client.create(LedgerOptions(3, 3, 2))
        slow.lanes.hold("bookie-journal-1")
        await writer.append([b"x"] * 5).durable
        assert elapsed() == 0
        await asyncio.sleep(TIMEOUT)
        # By now it has been given up: the ledger goes on with two.
        await writer.append([b"y"]).durable
        slow.lanes.let_go()
        await asyncio.sleep(1)
        await client.create(LedgerOptions(3, 3, 3))  # what answers again is used again
        await client.close()

    run(main())


def test_a_disk_that_never_answers_has_failed_after_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 3)
        client = await slow.start()
        writer = await client.create(LedgerOptions(2, 2, 2))
        await writer.add_entry(b"before")
        ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
        slow.lanes.hold(f"bookie-journal-{place_of(client, ensemble[0])}")
        tickets = [writer.append([b"%d" % i]) for i in range(3)]
        for ticket in tickets:
            await ticket.durable
        assert elapsed() == TIMEOUT
        fragments = (await client.metadata(writer.ledger_id)).fragments
        assert fragments[-1].first_entry_id == 1
        assert ensemble[0] not in fragments[-1].ensemble
        # Nobody waits for it a second time.
        other = await client.create(LedgerOptions(2, 2, 2))
        await other.add_entry(b"z")
        with pytest.raises(NotEnoughBookiesError, match="has not answered"):
            await client.create(LedgerOptions(3, 3, 3))
        assert elapsed() == TIMEOUT
        slow.lanes.let_go()
        await asyncio.sleep(1)
        # What it wrote after all is a copy too many, and harms nothing.
        assert [e.payload for e in await writer.read(0, 3)] == [b"before", b"0", b"1", b"2"]
        await client.close()

    run(main())


@pytest.mark.parametrize("end", ["close", "release"])
def test_a_close_waits_for_an_add_whose_caller_has_given_up(tmp_path: Path, end: str) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 1)
        client = await slow.start()
        writer = await client.create(LedgerOptions())
        slow.lanes.hold("bookie-journal-0")
        writer.append([b"x"]).durable.cancel()
        closing = asyncio.ensure_future(getattr(writer, end)())
        await asyncio.sleep(1)  # time goes on: the close does not keep the loop busy
        assert not closing.done()
        slow.lanes.let_go()
        await closing
        assert writer.last_add_confirmed == 0
        await client.close()

    run(main())


def test_without_a_spare_the_ledgers_on_it_fail_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 2)
        client = await slow.start()
        both = await client.create(LedgerOptions(2, 2, 2))
        alone = await client.create(LedgerOptions())
        ensemble = (await client.metadata(alone.ledger_id)).fragments[0].ensemble
        slow.lanes.hold(f"bookie-journal-{1 - place_of(client, ensemble[0])}")
        ticket = both.append([b"x"])
        await alone.add_entry(b"y")
        with pytest.raises(LedgerWriteError, match="has not answered for 10"):
            await ticket.durable
        assert elapsed() == TIMEOUT
        await alone.add_entry(b"z")
        slow.lanes.let_go()
        await asyncio.sleep(0)
        await client.close()

    run(main())


def test_fragment_files_that_cannot_be_written_hold_nobody_up_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 1)
        bookies = await open_bookies(
            slow.directories,
            settings=BookieSettings(
                checkpoint_idle_seconds=None, timeout_seconds=TIMEOUT, write_cache_bytes_max=4096
            ),
            disk=slow.disk,
            lane=slow.lanes.lane,
        )
        client = BookieLedgerClient(bookies, MemoryMetadataStore(slow.tree))
        writer = await client.create(LedgerOptions())
        slow.lanes.hold("bookie-storage-0")
        with pytest.raises(LedgerWriteError, match="has not answered"):
            for _ in range(20):
                await writer.append([bytes(1000)] * 3).durable
        assert elapsed() == TIMEOUT
        slow.lanes.let_go()
        await bookies[0].checkpoint()
        assert await (await client.create(LedgerOptions())).add_entry(b"room") == 0
        await client.close()

    run(main())


async def start_with(slow: Slow, **settings: Any) -> BookieLedgerClient:
    """A client whose bookies have these settings."""
    bookies = await open_bookies(
        slow.directories,
        settings=BookieSettings(**{"checkpoint_idle_seconds": None, **settings}),
        disk=slow.disk,
        lane=slow.lanes.lane,
    )
    return BookieLedgerClient(bookies, MemoryMetadataStore(slow.tree))


def test_a_disk_that_falls_behind_is_waited_for_and_not_given_up(tmp_path: Path) -> None:
    """The ack quorum does without it, so nothing else would bound what waits for it."""

    async def main() -> None:
        slow = Slow(tmp_path, 4)
        client = await start_with(slow, timeout_seconds=None, behind_bytes=20_000)
        writer = await client.create(LedgerOptions(3, 3, 2))
        ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
        name = f"bookie-journal-{place_of(client, ensemble[1])}"
        slow.lanes.hold(name)
        tickets = []
        for _ in range(40):
            tickets.append(writer.append([bytes(1000)]))
            await asyncio.sleep(100)
        # About as much as it may be behind was confirmed without it, and no more.
        assert 15 <= sum(ticket.durable.done() for ticket in tickets) <= 25
        slow.lanes.let_go()
        await asyncio.gather(*(ticket.durable for ticket in tickets))
        await writer.append([b"and nobody waits any more"]).durable
        assert len((await client.metadata(writer.ledger_id)).fragments) == 1
        assert len(await writer.read(0, 40)) == 41
        await client.close()

    run(main())


def test_a_disk_that_is_behind_and_silent_is_replaced_after_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 4)
        client = await start_with(slow, timeout_seconds=TIMEOUT, behind_bytes=20_000)
        writer = await client.create(LedgerOptions(3, 3, 2))
        ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
        slow.lanes.hold(f"bookie-journal-{place_of(client, ensemble[1])}")
        for _ in range(40):
            await writer.append([bytes(1000)]).durable
        assert elapsed() == TIMEOUT
        fragments = (await client.metadata(writer.ledger_id)).fragments
        assert ensemble[1] not in fragments[-1].ensemble
        slow.lanes.let_go()
        await asyncio.sleep(1)
        assert all(bookie.last_error is None for bookie in client.bookies)
        assert len(await writer.read(0, 39)) == 40
        await client.close()

    run(main())


def test_a_disk_that_is_slow_all_the_time_never_fails(tmp_path: Path) -> None:
    """Fragment files take longer than the time-out altogether; a part of them comes all the time."""

    async def main() -> None:
        slow = Slow(tmp_path, 1)
        client = await start_with(
            slow,
            timeout_seconds=TIMEOUT,
            write_cache_bytes_max=40_000,
            checkpoint_bytes_max=5_000,
            commit_bytes_max=10_000,
        )
        writer = await client.create(LedgerOptions())
        slow.lanes.seconds["bookie-storage-0"] = 0.6 * TIMEOUT
        tickets = [writer.append([bytes(1000)] * 10) for _ in range(20)]
        await asyncio.gather(*(ticket.durable for ticket in tickets))
        assert elapsed() > 3 * TIMEOUT
        assert len((await client.metadata(writer.ledger_id)).fragments) == 1
        slow.lanes.seconds.clear()
        await client.close()
        reader = await (await slow.start()).open(writer.ledger_id)
        assert len(await reader.read(0, 199)) == 200

    run(main())


PART_SECONDS = 0.01
PARTS = 10


async def begin_a_checkpoint(slow: Slow, **settings: Any) -> BookieLedgerClient:
    """A bookie whose cache holds ten parts, at the moment at which a timer begins its checkpoint."""
    client = await start_with(
        slow,
        checkpoint_idle_seconds=1.0,
        checkpoint_bytes_max=9_000,
        block_bytes=10_000,
        timeout_seconds=TIMEOUT,
        **settings,
    )
    writer = await client.create(LedgerOptions())
    for _ in range(PARTS):
        await writer.append([bytes(9_980)]).durable
    slow.lanes.seconds["bookie-storage-0"] = PART_SECONDS
    await asyncio.sleep(1.0)
    assert client.bookies[0].statistics().cached_bytes > 99_000
    return client


async def emptied(client: BookieLedgerClient) -> float:
    """Seconds until the write cache is empty."""
    began = elapsed()
    while client.bookies[0].statistics().cached_bytes:
        await asyncio.sleep(PART_SECONDS / 10)
    return elapsed() - began


def test_a_checkpoint_that_nobody_waits_for_leaves_the_disk_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        client = await begin_a_checkpoint(Slow(tmp_path, 1))
        assert await emptied(client) > 4 * PARTS * PART_SECONDS
        await client.close()

    run(main())


def test_a_checkpoint_that_somebody_waits_for_makes_no_pauses_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        client = await begin_a_checkpoint(Slow(tmp_path, 1))
        await asyncio.sleep(4 * PART_SECONDS)  # in one of its pauses
        assert client.bookies[0].statistics().cached_bytes > 70_000
        began = elapsed()
        await client.bookies[0].checkpoint()
        assert elapsed() - began < 1.5 * PARTS * PART_SECONDS
        assert not client.bookies[0].statistics().cached_bytes
        await client.close()

    run(main())


@pytest.mark.parametrize("bound", ["journal_bytes_max", "write_cache_bytes_max"])
def test_a_checkpoint_hurries_when_the_next_one_is_near(tmp_path: Path, bound: str) -> None:
    async def main() -> None:
        client = await begin_a_checkpoint(Slow(tmp_path, 1), **{bound: 120_000})
        await (await client.create(LedgerOptions())).append([bytes(100_000)]).durable
        began = elapsed()
        while client.bookies[0].statistics().cached_bytes > 105_000:
            await asyncio.sleep(PART_SECONDS / 10)
        assert elapsed() - began < 1.5 * PARTS * PART_SECONDS
        await client.close()

    run(main())


def test_what_is_small_does_not_wait_behind_what_is_large(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 1)
        client = await start_with(slow, timeout_seconds=TIMEOUT, commit_bytes_max=10_000)
        large = [await client.create(LedgerOptions()) for _ in range(4)]
        small = await client.create(LedgerOptions())
        slow.lanes.seconds["bookie-journal-0"] = 1.0
        large[0].append([b"is under way already"])
        await asyncio.sleep(0.5)
        tickets = [writer.append([bytes(40_000)]) for _ in range(5) for writer in large]
        three = [small.append([b"%d" % number]) for number in range(3)]
        await asyncio.gather(*(ticket.durable for ticket in three))
        # One round later, beside the oldest of the large ones.
        assert sum(ticket.durable.done() for ticket in tickets) == 1
        await asyncio.gather(*(ticket.durable for ticket in tickets))
        for writer in large:
            assert await writer.read_last_add_confirmed() == 4 + (writer is large[0])
        await client.close()

    run(main())


def test_a_read_asks_the_next_copy_when_the_first_takes_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 3)
        client = await slow.start()
        writer = await client.create(LedgerOptions(3, 3, 2))
        await writer.append([b"%d" % i for i in range(9)]).durable
        await writer.close()
        for bookie in client.bookies:
            await bookie.checkpoint()
        reader = await client.open(writer.ledger_id)
        first = (await client.metadata(writer.ledger_id)).fragments[0].ensemble[0]
        slow.lanes.hold(f"bookie-storage-{place_of(client, first)}")
        assert len(await reader.read(0, 8)) == 9
        assert elapsed() == SPECULATIVE
        slow.lanes.let_go()
        await asyncio.sleep(0)
        await client.close()

    run(main())


def test_the_only_copy_is_waited_for_and_then_it_is_a_storage_error(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 1)
        client = await slow.start()
        writer = await client.create(LedgerOptions())
        await writer.add_entry(b"x")
        await client.bookies[0].checkpoint()
        slow.lanes.hold("bookie-storage-0")
        with pytest.raises(StorageError, match="has not answered for 10 s"):
            await writer.read(0, 0)
        assert elapsed() == TIMEOUT
        with pytest.raises(StorageError, match="has not answered for 1 s"):
            await writer.read(0, 0)
        slow.lanes.let_go()
        assert await writer.read(0, 0) == [(0, b"x")]
        assert not client.bookies[0].is_silent
        await client.close()

    run(main())


def test_recovery_goes_on_without_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 4)
        client = await slow.start()
        writer = await client.create(LedgerOptions(3, 3, 2))
        await writer.append([b"%d" % i for i in range(9)]).durable
        ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
        name = place_of(client, ensemble[2])
        slow.lanes.hold(f"bookie-storage-{name}", f"bookie-journal-{name}")
        reader = await client.open(writer.ledger_id)
        assert reader.last_add_confirmed == 8
        assert elapsed() < 3 * TIMEOUT
        assert len(await reader.read(0, 8)) == 9
        slow.lanes.let_go()
        await asyncio.sleep(0)
        await client.close()

    run(main())


def test_closing_ends_although_a_disk_does_not_answer(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 2)
        client = await slow.start()
        writer = await client.create(LedgerOptions(2, 2, 1))
        slow.lanes.hold("bookie-journal-0", "bookie-storage-0")
        await writer.append([b"x"]).durable
        await client.close()
        assert elapsed() <= 3 * TIMEOUT
        # The other one is written in full; this one is left to the next start.
        assert not list((tmp_path / "1" / "journal").rglob("*.avro"))
        slow.lanes.let_go()
        await asyncio.sleep(0)

    run(main())


@pytest.mark.parametrize("part", ["journal", "."])
def test_a_directory_that_vanishes_takes_no_more_entries(tmp_path: Path, part: str) -> None:
    """The open descriptor would go on taking them, into nowhere."""

    async def main() -> None:
        slow = Slow(tmp_path, 2)
        client = await slow.start()
        writer = await client.create(LedgerOptions())
        await writer.add_entry(b"x")
        (ensemble,) = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
        shutil.rmtree(tmp_path / str(place_of(client, ensemble)) / part)
        await writer.add_entry(b"y")
        fragments = (await client.metadata(writer.ledger_id)).fragments
        assert [f.first_entry_id for f in fragments] == [0, 1]
        assert fragments[1].ensemble != (ensemble,)
        await client.close()

    run(main())


def test_a_lane_with_a_long_queue_is_not_silent(tmp_path: Path) -> None:
    """Everybody waits as long as somebody is answered."""

    async def main() -> None:
        patience = LanePatience(TIMEOUT)

        async def asked(seconds: float) -> float:
            await asyncio.sleep(seconds)
            patience.answered()
            return seconds

        everyone = [patience.within(asked(0.9 * TIMEOUT * i)) for i in range(1, 8)]
        assert len(await asyncio.gather(*everyone)) == 7
        began = elapsed()
        with pytest.raises(NoAnswerError):
            await patience.within(asyncio.sleep(1000))
        assert elapsed() - began == TIMEOUT
        assert patience.is_silent
        patience.close()

    run(main())


def test_who_was_stopped_itself_blames_no_disk(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 1)
        client = await slow.start()
        writer = await client.create(LedgerOptions())
        await writer.add_entry(b"x")
        await client.bookies[0].checkpoint()
        slow.lanes.hold("bookie-journal-0", "bookie-storage-0")
        ticket = writer.append([b"y"])
        reading = asyncio.ensure_future(writer.read(0, 0))
        await asyncio.sleep(1)
        # A stopped process: its clock goes on, and then everything is late at once.
        asyncio.get_running_loop()._virtual.now += 5 * TIMEOUT  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        assert not ticket.durable.done()
        assert not reading.done()
        slow.lanes.let_go()
        await ticket.durable
        assert await reading == [(0, b"x")]
        await client.close()

    run(main())


# ------------------------------------------------------------------------ directories not there


def broken(disk: FaultyDisk, directory: Path) -> None:
    def before(operation: str, path: Path) -> None:
        if path.is_relative_to(directory):
            raise disk_error(errno.EIO, path)

    disk.before = before


def test_one_directory_of_three_that_cannot_be_opened_is_left_out_and_comes_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 3)
        client = await slow.start()
        writer = await client.create(LedgerOptions(3, 3, 2))
        await writer.append([b"x"] * 3).durable
        await writer.close()
        await client.close()
        broken(slow.disk, tmp_path / "1")
        opener = BookieOpener(settings=SETTINGS, disk=slow.disk, lane=slow.lanes.lane)
        bookies, absent = await open_usable_bookies(slow.directories, opener, least=2)
        client = BookieLedgerClient(bookies, MemoryMetadataStore(slow.tree), absent=absent)
        assert list(client.absent_bookies) == [tmp_path / "1"]
        assert len(await (await client.open(writer.ledger_id)).read(0, 2)) == 3
        # Striped over fewer bookies, but with as many copies as asked for.
        striped = await client.create(LedgerOptions(3, 2, 2))
        assert (await client.metadata(striped.ledger_id)).ensemble_size == 2
        await striped.add_entry(b"y")
        with pytest.raises(NotEnoughBookiesError):
            await client.create(LedgerOptions(3, 3, 2))
        await asyncio.sleep(RETRY_SECONDS + 1)
        assert here(client) == 2
        slow.disk.before = None
        await asyncio.sleep(RETRY_SECONDS)
        assert client.absent_bookies == {}
        assert here(client) == 3
        await client.create(LedgerOptions(3, 3, 2))
        await client.close()

    run(main())


def test_too_few_directories_are_an_error_that_names_them(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 3)
        broken(slow.disk, tmp_path)
        opener = BookieOpener(settings=SETTINGS, disk=slow.disk, lane=slow.lanes.lane)
        with pytest.raises(StorageError, match=r"0 of 3 bookies.*at least 2.*Input/output error"):
            await open_usable_bookies(slow.directories, opener, least=2)
        with pytest.raises(StorageError, match="Input/output error"):
            await open_usable_bookies(slow.directories[:1], opener)

    run(main())


def test_a_copy_of_a_directory_is_refused_and_nothing_stays_open(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 1)
        client = await slow.start()
        await client.close()
        shutil.copytree(tmp_path / "0", tmp_path / "1")
        opener = BookieOpener(settings=SETTINGS, disk=slow.disk, lane=slow.lanes.lane)
        with pytest.raises(ConfigurationError, match="copy"):
            await open_usable_bookies([tmp_path / "0", tmp_path / "1"], opener)
        assert list((tmp_path / "0" / "journal").iterdir()) == []
        # One that cannot be used does not keep the others from being opened.
        (tmp_path / "1" / "bookie.json").write_text("{]")
        bookies, absent = await open_usable_bookies([tmp_path / "0", tmp_path / "1"], opener)
        assert "nothing says which bookie this is" in absent.reasons[tmp_path / "1"]
        await bookies[0].close()

    run(main())


def test_a_directory_that_opens_too_late_joins_the_others_then(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(tmp_path, 2)
        slow.lanes.hold("bookie-storage-1")
        opener = BookieOpener(settings=SETTINGS, disk=slow.disk, lane=slow.lanes.lane)
        bookies, absent = await open_usable_bookies(slow.directories, opener)
        assert elapsed() == OPEN_SECONDS_MAX
        client = BookieLedgerClient(bookies, MemoryMetadataStore(slow.tree), absent=absent)
        await asyncio.sleep(3 * RETRY_SECONDS)
        assert here(client) == 1
        slow.lanes.let_go()
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert here(client) == 2
        await client.close()

    run(main())
