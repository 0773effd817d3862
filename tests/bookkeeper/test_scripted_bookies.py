"""A writer beside bookies that refuse, hold back or answer half: each answer is in the test's hand."""

import asyncio
import gc
import weakref

import pytest

from ackgate.errors import LedgerFencedError, LedgerWriteError
from ackgate.persistence import LedgerOptions
from ackgate.persistence.bookkeeper.protocol import Code
from tests.support.bookkeeper.scripted import scripted_bookies


async def add_all(writer, count):
    await asyncio.gather(*(writer.append([b"%d" % i]).durable for i in range(count)))


async def test_adds_that_a_busy_bookie_refuses_are_sent_once_more_each():
    async with asyncio.timeout(20), scripted_bookies(1) as (client, _, [bookie]):
        writer = await client.create(LedgerOptions(1, 1, 1))
        bookie.code_of_add = lambda entry_id: (
            Code.TOO_MANY_REQUESTS if bookie.adds.count(entry_id) == 1 else Code.OK
        )
        await add_all(writer, 100)
        assert len(bookie.adds) == 200


async def test_what_was_confirmed_before_a_busy_bookie_took_it_holds_up_nothing():
    """It refuses an add that the others' ack quorum confirms; later it is needed for the quorum."""
    async with asyncio.timeout(20), scripted_bookies(3) as (client, _, bookies):
        writer = await client.create(LedgerOptions(3, 3, 2))
        busy = bookies[0]
        refused = asyncio.Event()

        def code(entry_id):
            if refused.is_set():
                return Code.OK
            if entry_id == 5:
                refused.set()
                return Code.TOO_MANY_REQUESTS
            return Code.OK

        busy.code_of_add = code
        await add_all(writer, 10)
        await refused.wait()
        bookies[1].code_of_add = lambda _: None  # from now on the busy one has to answer
        await add_all(writer, 10)


async def test_a_bookie_that_answers_reads_alone_fails_by_its_adds():
    """Its journal hangs. Reads that it goes on answering must not hide that."""
    async with (
        asyncio.timeout(20),
        scripted_bookies(2, timeout_seconds=0.3) as (client, _, bookies),
    ):
        writer = await client.create(LedgerOptions(1, 1, 1))
        await add_all(writer, 1)
        [hung] = [bookie for bookie in bookies if bookie.entries]
        hung.code_of_add = lambda _: None
        added = writer.append([b"late"]).durable
        while not added.done():
            await writer.read(0, 0)
        await added
        assert len(next(bookie for bookie in bookies if bookie is not hung).entries) == 1


async def test_a_ledger_whose_bookies_refuse_adds_fails_after_the_time_out():
    """All disks are full, and there is no spare: it is tried again now and then, and then given up."""
    async with (
        asyncio.timeout(20),
        scripted_bookies(1, timeout_seconds=1.2) as (
            client,
            cluster,
            [bookie],
        ),
    ):
        writer = await client.create(LedgerOptions(1, 1, 1))
        bookie.code_of_add = lambda _: Code.READ_ONLY
        cluster.writable.clear()
        with pytest.raises(LedgerWriteError, match=r"below its ack quorum.*READ_ONLY"):
            await writer.append([b"no room"]).durable
        assert len(bookie.adds) <= 3


async def test_bookies_that_refuse_do_not_take_turns_in_an_ensemble():
    async with (
        asyncio.timeout(20),
        scripted_bookies(3, timeout_seconds=0.5) as (
            client,
            cluster,
            bookies,
        ),
    ):
        writer = await client.create(LedgerOptions(1, 1, 1))
        for bookie in bookies:
            bookie.code_of_add = lambda _: Code.IO_ERROR
        with pytest.raises(LedgerWriteError, match=r"below its ack quorum.*IO_ERROR"):
            await writer.append([b"nowhere"]).durable
        assert cluster.ledgers[writer.ledger_id].version == 2  # each spare once


async def test_a_ledger_whose_bookie_hangs_fails_though_it_can_be_connected_to():
    async with (
        asyncio.timeout(20),
        scripted_bookies(1, timeout_seconds=0.2) as (
            client,
            _,
            [bookie],
        ),
    ):
        writer = await client.create(LedgerOptions(1, 1, 1))
        bookie.code_of_add = lambda _: None
        with pytest.raises(LedgerWriteError, match=r"below its ack quorum.*no answer"):
            await writer.append([b"hangs"]).durable


async def test_a_bookie_that_refuses_is_tried_again_only_now_and_then():
    """The others are an ack quorum, so the ledger goes on without it."""
    async with asyncio.timeout(20), scripted_bookies(3) as (client, cluster, bookies):
        writer = await client.create(LedgerOptions(3, 3, 2))
        cluster.writable.clear()
        bookies[0].code_of_add = lambda _: Code.READ_ONLY
        for number in range(300):
            assert await writer.add_entry(b"on two of three") == number
        assert cluster.reads < 30
        bookies[0].code_of_add = lambda _: Code.OK
        while not bookies[0].entries:
            await writer.add_entry(b"on all three")


async def test_the_slowest_bookie_bounds_what_is_added():
    """The ack quorum is ahead of it; what it has not answered stays in memory."""
    async with (
        asyncio.timeout(20),
        scripted_bookies(3, in_flight_bytes_max=100_000) as (
            client,
            _,
            bookies,
        ),
    ):
        writer = await client.create(LedgerOptions(3, 3, 2))
        bookies[0].code_of_add = lambda _: None
        added = 0
        while writer.has_room:
            await writer.add_entry(bytes(10_000))
            added += 1
        assert added <= 11
        waiting = asyncio.ensure_future(writer.wait_for_room())
        bookies[0].stop()
        await waiting


async def test_a_fenced_writer_is_kept_by_nobody():
    async with asyncio.timeout(20), scripted_bookies(1) as (client, _, [bookie]):
        writer = await client.create(LedgerOptions(1, 1, 1))
        bookie.code_of_add = lambda _: Code.FENCED
        late = writer.append([b"late"]).durable
        await asyncio.wait([late])
        assert isinstance(late.exception(), LedgerFencedError)
        forgotten = weakref.ref(writer)
        del writer
        gc.collect()
        assert forgotten() is None
