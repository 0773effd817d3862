"""The client in numbers, beside a model of what is under way and on real bookies."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.bookkeeper import LATENCY_BOUNDS_MS, LatencyCounts
from ackgate.errors import LedgerFencedError
from ackgate.persistence import LedgerOptions
from ackgate.persistence.bookkeeper.statistics import BookieCounters, SentAdds


@given(st.lists(st.one_of(st.tuples(st.integers(1, 9), st.integers(1, 99)), st.integers(1, 9))))
def test_what_is_outstanding_is_what_was_sent_and_not_answered(events):
    """A tuple is a piece that is sent: its adds and its bytes. A number is that many answers."""
    counters = BookieCounters()
    sent, now = SentAdds(counters), 0.0
    pieces, answers = [], 0
    for event in events:
        now += 0.001
        if isinstance(event, tuple):
            counters.queued(*event)
            sent.sent(*event, now)
            pieces.append(event)
        else:
            count = min(event, sum(adds for adds, _ in pieces) - answers)
            answers += count
            sent.answered(count, now)
    left, waiting = answers, []
    for adds, size_bytes in pieces:
        if not waiting and adds <= left:
            left -= adds
        else:
            waiting.append((adds, size_bytes))
    traffic = counters.traffic("bookie-1")
    assert traffic.outstanding_adds == sum(adds for adds, _ in waiting)
    assert traffic.outstanding_bytes == sum(size for _, size in waiting)
    assert traffic.add_latency.count == sum(adds for adds, _ in pieces) - traffic.outstanding_adds
    sent.drop()
    dropped = counters.traffic("bookie-1")
    assert (dropped.outstanding_adds, dropped.outstanding_bytes) == (0, 0)


def test_a_share_of_answers_has_a_bound():
    counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
    assert LatencyCounts(tuple(counts), 0.0).bound_ms(0.99) == 0.0
    counts[2], counts[-1] = 99, 1
    latency = LatencyCounts(tuple(counts), 0.0)
    assert latency.bound_ms(0.5) == latency.bound_ms(0.99) == LATENCY_BOUNDS_MS[2]
    assert latency.bound_ms(1.0) == float("inf")


@pytest.mark.slow
async def test_a_client_counts_what_it_does(real_bookkeeper, connect):
    client, successor = await connect(real_bookkeeper), await connect(real_bookkeeper)
    writer = await client.create(LedgerOptions(3, 3, 2))
    await writer.append([bytes(100)] * 500).durable
    async with asyncio.timeout(60):
        while any(bookie.outstanding_adds for bookie in client.statistics().bookies):
            await asyncio.sleep(0.01)  # the third copy
    reader = await successor.open(writer.ledger_id)
    await reader.read(0, 499)
    with pytest.raises(LedgerFencedError):
        await writer.add_entry(b"late")

    ours, its = client.statistics(), successor.statistics()
    assert (ours.ledgers_created, ours.ledgers_recovered, ours.ledgers_fenced) == (1, 0, 1)
    assert (its.ledgers_created, its.ledgers_recovered, its.ledgers_fenced) == (0, 1, 0)
    ids = {bookie.bookie_id for bookie in real_bookkeeper.bookies}
    for statistics in (ours, its):
        assert {bookie.bookie_id for bookie in statistics.bookies} == ids
        assert all(bookie.reads == bookie.read_latency.count > 0 for bookie in statistics.bookies)
    for bookie in ours.bookies:
        assert (bookie.adds, bookie.connections_opened, bookie.last_error) == (500, 1, None)
        assert bookie.add_latency.count >= 500
        assert bookie.add_latency.sum_ms > 0
    for bookie in its.bookies:
        assert bookie.connections_opened >= 1
        assert (bookie.adds_refused, bookie.outstanding_bytes, bookie.outstanding_reads) == (
            0,
            0,
            0,
        )
