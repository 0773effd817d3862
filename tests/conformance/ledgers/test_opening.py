"""What every ledger client does when a ledger is opened, recovered, fenced, deleted."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from ackgate.errors import (
    ClosedHandleError,
    DigestMismatchError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from ackgate.persistence import DigestType, LedgerClient, LedgerState
from ackgate.persistence.nodes.unnamed_ledgers import DELETION_KEY
from tests.conformance.ledgers.conftest import Backend


async def test_ids_ascend_and_are_listed(client: LedgerClient, backend: Backend) -> None:
    other = await backend.client()
    created = []
    for i in range(12):
        creator = other if i % 3 == 0 else client
        created.append((await creator.create(backend.options)).ledger_id)
    assert created == sorted(set(created))
    assert await client.ledger_ids() == created


async def test_metadata_says_how_the_ledger_is_stored(
    client: LedgerClient, backend: Backend
) -> None:
    options = replace(backend.options, custom_metadata={"application": b"\x00\xffpulsar"})
    writer = await client.create(options)
    found = await client.metadata(writer.ledger_id)
    assert found.state is LedgerState.OPEN
    assert found.custom_metadata.items() >= options.custom_metadata.items()
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (
        options.ensemble_size,
        options.write_quorum,
        options.ack_quorum,
    )
    await writer.append([b"abc", b"de"]).durable
    await writer.close()
    found = await client.metadata(writer.ledger_id)
    assert (found.state, found.last_entry_id, found.length_bytes) == (LedgerState.CLOSED, 1, 5)


async def test_a_closed_ledger_is_read_by_anybody(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    await writer.append([b"%d" % i for i in range(20)]).durable
    await writer.close()
    other = await backend.client()
    for reader in (
        await other.open(writer.ledger_id),
        await other.open_without_recovery(writer.ledger_id),
    ):
        assert reader.last_add_confirmed == 19
        assert reader.length_bytes == 30
        assert [e.payload for e in await reader.read(0, 19)] == [b"%d" % i for i in range(20)]
        assert await reader.read_last_add_confirmed() == 19
        await reader.close()
        await reader.close()
        with pytest.raises(ClosedHandleError):
            await reader.read(0, 0)


async def test_an_empty_ledger_is_recovered_empty(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    reader = await (await backend.client()).open(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    assert reader.length_bytes == 0
    with pytest.raises(NoSuchEntryError):
        await reader.read(0, 0)


async def test_opening_finds_everything_that_was_confirmed(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    for i in range(7):
        await writer.append([b"%d" % i] * 5).durable
    reader = await (await backend.client()).open(writer.ledger_id)
    assert reader.last_add_confirmed == 34
    assert reader.length_bytes == 35
    assert [e.payload for e in await reader.read(0, 34)] == [b"%d" % (i // 5) for i in range(35)]
    found = await client.metadata(writer.ledger_id)
    assert (found.state, found.last_entry_id, found.length_bytes) == (LedgerState.CLOSED, 34, 35)


async def test_opening_fences_the_writer(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    await writer.add_entry(b"before")
    reader = await (await backend.client()).open(writer.ledger_id)
    with pytest.raises(LedgerFencedError):
        await writer.add_entry(b"after")
    with pytest.raises(LedgerFencedError):
        writer.append([b"after"])
    assert reader.last_add_confirmed == 0
    await writer.close()
    assert (await client.metadata(writer.ledger_id)).last_entry_id == 0


async def test_adds_in_flight_while_it_is_fenced_are_in_it_or_fail(
    client: LedgerClient, backend: Backend
) -> None:
    other = await backend.client()
    for turns in range(12):
        writer = await client.create(backend.options)
        tickets = [writer.append([b"%d" % i] * 3) for i in range(4)]
        opening = asyncio.ensure_future(other.open(writer.ledger_id))
        for _ in range(turns):
            await asyncio.sleep(0)
        with contextlib.suppress(LedgerFencedError):
            tickets += [writer.append([b"late"]) for _ in range(3)]
        reader = await opening
        await asyncio.wait([ticket.durable for ticket in tickets])
        for ticket in tickets:
            error = ticket.durable.exception()
            assert error is None or isinstance(error, LedgerFencedError)
            if error is None:
                assert ticket.first_entry_id <= reader.last_add_confirmed
        with pytest.raises(LedgerFencedError):
            # At once, or with its ticket: all that came before may have been durable before the fence.
            await writer.append([b"later"]).durable
        if reader.last_add_confirmed >= 0:
            entries = await reader.read(0, reader.last_add_confirmed)
            assert [e.entry_id for e in entries] == list(range(reader.last_add_confirmed + 1))


async def test_several_who_open_at_once_agree(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    await writer.append([b"x"] * 30).durable
    others = [await backend.client() for _ in range(3)]
    readers = await asyncio.gather(*(c.open(writer.ledger_id) for c in [client, *others]))
    assert {reader.last_add_confirmed for reader in readers} == {29}
    assert {reader.length_bytes for reader in readers} == {30}


async def test_reading_beside_a_writer_changes_nothing(
    client: LedgerClient, backend: Backend
) -> None:
    writer = await client.create(backend.options)
    await writer.append([b"a"] * 4).durable
    reader = await (await backend.client()).open_without_recovery(writer.ledger_id)
    # What a reader learns lags behind by what came after the last add.
    assert reader.last_add_confirmed == -1
    await writer.append([b"b"] * 4).durable
    assert await reader.read_last_add_confirmed() == 3
    assert reader.length_bytes == 4
    assert [e.payload for e in await reader.read(0, 3)] == [b"a"] * 4
    with pytest.raises(NoSuchEntryError):
        await reader.read(4, 4)
    assert await writer.add_entry(b"c") == 8
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN
    await writer.close()
    assert await reader.read_last_add_confirmed() == 8


async def test_a_deleted_ledger_is_gone(client: LedgerClient, backend: Backend) -> None:
    kept, deleted = await client.create(backend.options), await client.create(backend.options)
    for writer in (kept, deleted):
        await writer.append([b"x"] * 10).durable
        await writer.close()
    reader = await client.open(deleted.ledger_id)
    await client.delete(deleted.ledger_id)
    assert await client.ledger_ids() == [kept.ledger_id]
    for failing in (
        client.open(deleted.ledger_id),
        client.open_without_recovery(deleted.ledger_id),
        client.metadata(deleted.ledger_id),
        client.delete(deleted.ledger_id),
    ):
        with pytest.raises(NoSuchLedgerError):
            await failing
    if backend.deletes_entries:
        with pytest.raises(NoSuchEntryError):
            await reader.read(0, 9)
    assert len(await (await client.open(kept.ledger_id)).read(0, 9)) == 10


async def test_a_deletion_is_announced_in_the_ledgers_own_metadata(
    client: LedgerClient, backend: Backend
) -> None:
    custom = {"owner": b"somebody"}
    writer = await client.create(replace(backend.options, custom_metadata=custom))
    gone = await client.create(backend.options)
    await client.delete(gone.ledger_id)
    for _ in range(2):
        await client.announce_deletion([writer.ledger_id, gone.ledger_id])
    found = (await client.metadata(writer.ledger_id)).custom_metadata
    assert found.keys() >= {"owner", DELETION_KEY}
    await writer.add_entry(b"not fenced by that")
    await writer.close()
    metadata = await client.metadata(writer.ledger_id)
    assert metadata.last_entry_id == 0
    assert DELETION_KEY in metadata.custom_metadata


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.MAC])
async def test_only_the_right_password_opens(
    client: LedgerClient, backend: Backend, digest_type: DigestType
) -> None:
    options = replace(backend.options, digest_type=digest_type, password=b"secret")
    writer = await client.create(options)
    await writer.append([b"x"] * 10).durable
    for password in (b"", b"wrong"):
        with pytest.raises(DigestMismatchError):
            await client.open(writer.ledger_id, password=password)
        with pytest.raises(DigestMismatchError):
            await client.open_without_recovery(writer.ledger_id, password=password)
    assert await writer.add_entry(b"not fenced by that") == 10
    reader = await client.open(writer.ledger_id, password=b"secret")
    assert len(await reader.read(0, 10)) == 11


async def test_a_closed_client_does_nothing(client: LedgerClient, backend: Backend) -> None:
    writer = await client.create(backend.options)
    await writer.close()
    await client.close()
    await client.close()
    for failing in (
        client.create(backend.options),
        client.open(writer.ledger_id),
        client.open_without_recovery(writer.ledger_id),
        client.delete(writer.ledger_id),
        client.ledger_ids(),
    ):
        with pytest.raises(ClosedHandleError):
            await failing
