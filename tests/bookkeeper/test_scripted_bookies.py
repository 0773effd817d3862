"""A writer beside bookies that refuse, hold back or answer half: each answer is in the test's hand."""

import asyncio

from ackgate.persistence import LedgerOptions
from tests.support.bookkeeper.scripted import scripted_bookies


async def add_all(writer, count):
    await asyncio.gather(*(writer.append([b"%d" % i]).durable for i in range(count)))


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
