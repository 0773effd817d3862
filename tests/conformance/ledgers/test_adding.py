"""What every ledger client does when entries are added and read back."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    NoSuchEntryError,
    NotEnoughBookiesError,
)
from ackgate.persistence import LedgerClient, LedgerOptions, LedgerState
from tests.conformance.ledgers.conftest import ENTRY_BYTES_MAX, IN_FLIGHT_ADDS_MAX, Backend


async def test_entries_get_ascending_ids_and_come_back_as_they_were(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    payloads = [b"", b"a", b"\x00" * 100, b"long" * 10_000, *(b"%d" % i for i in range(100))]
    ids = [await writer.add_entry(payload) for payload in payloads]
    assert ids == list(range(len(payloads)))
    entries = await writer.read(0, len(payloads) - 1)
    assert [entry.entry_id for entry in entries] == ids
    assert [entry.payload for entry in entries] == payloads


async def test_an_append_of_many_is_one_ticket(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    first = writer.append([b"x"] * 7)
    second = writer.append([b"y"] * 5)
    assert (first.first_entry_id, second.first_entry_id) == (0, 7)
    await second.durable
    assert first.durable.done(), "all before it is durable too"
    assert writer.last_add_confirmed == 11
    assert writer.length_bytes == 12


async def test_what_is_not_confirmed_cannot_be_read(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    ticket = writer.append([b"x"])
    assert writer.last_add_confirmed == -1
    with pytest.raises(NoSuchEntryError):
        await writer.read(0, 0)
    await ticket.durable
    assert await writer.read(0, 0) == [(0, b"x")]


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (1, 0), (0, -1)])
async def test_an_impossible_range_is_the_callers_error(
    client: LedgerClient, backend: Backend, first: int, last: int
) -> None:
    writer = await client.create(backend.options)
    await writer.add_entry(b"x")
    with pytest.raises(CallerError):
        await writer.read(first, last)


async def test_parts_are_read_from_any_place(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    for start in range(0, 60, 6):
        await writer.append([b"%d" % i for i in range(start, start + 6)]).durable
    for first, last in [(0, 0), (59, 59), (17, 17), (3, 41), (0, 59)]:
        entries = await writer.read(first, last)
        assert [e.payload for e in entries] == [b"%d" % i for i in range(first, last + 1)]


async def test_too_large_an_entry_is_refused_and_nothing_is_added(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    with pytest.raises(CallerError):
        writer.append([b"fits", b"x" * (ENTRY_BYTES_MAX + 1)])
    with pytest.raises(CallerError):
        writer.append([])
    assert await writer.add_entry(b"x" * ENTRY_BYTES_MAX) == 0


async def test_an_append_far_above_one_block_is_taken(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    payloads = [b"%04d" % i * 2500 for i in range(60)]
    await writer.append(payloads).durable
    assert [entry.payload for entry in await writer.read(0, 59)] == payloads


async def test_room_is_given_when_adds_are_confirmed(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    assert writer.has_room
    ticket = writer.append([b"x"] * IN_FLIGHT_ADDS_MAX)
    assert not writer.has_room
    await writer.wait_for_room()
    assert ticket.durable.done()
    assert writer.has_room


async def test_adds_from_many_tasks_all_arrive(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    ids = await asyncio.gather(*(writer.add_entry(b"%d" % i) for i in range(100)))
    assert sorted(ids) == list(range(100))
    stored = {entry.payload for entry in await writer.read(0, 99)}
    assert stored == {b"%d" % i for i in range(100)}


async def test_a_ticket_may_be_given_up(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    writer.append([b"x"]).durable.cancel()
    assert await writer.add_entry(b"y") == 1


async def test_a_handle_released_before_its_ledger_is_deleted_has_no_adds_in_flight(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    ticket = writer.append([b"x"])
    await writer.release()
    assert ticket.durable.done()
    await writer.release()
    await writer.close()
    with pytest.raises(ClosedHandleError):
        writer.append([b"y"])
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN
    await client.delete(writer.ledger_id)
    assert writer.ledger_id not in await client.ledger_ids()


async def test_a_closed_handle_takes_and_gives_nothing(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    in_flight = writer.append([b"x"])
    await writer.close()
    assert in_flight.durable.done()
    assert in_flight.durable.exception() is None
    await writer.close()
    with pytest.raises(ClosedHandleError):
        writer.append([b"y"])
    with pytest.raises(ClosedHandleError):
        await writer.read(0, 0)
    with pytest.raises(ClosedHandleError):
        await writer.add_entry(b"y")


async def test_impossible_quorums_are_refused(client: LedgerClient) -> None:
    for ensemble, write, ack in [(1, 2, 1), (2, 1, 2), (2, 2, 0), (0, 0, 0), (65, 1, 1)]:
        with pytest.raises(ConfigurationError):
            await client.create(LedgerOptions(ensemble, write, ack))


async def test_an_ensemble_larger_than_the_number_of_bookies_is_refused(
    client: LedgerClient,
) -> None:
    with pytest.raises(NotEnoughBookiesError):
        await client.create(LedgerOptions(9, 2, 2))
