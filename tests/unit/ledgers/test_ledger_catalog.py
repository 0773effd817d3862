"""Ledger metadata as it lies in the metadata store, and ids."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace

import pytest

from ackgate.errors import (
    CorruptRecordError,
    DigestMismatchError,
    MetadataConflictError,
    MetadataStoreError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from ackgate.persistence import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    MemoryMetadataStore,
)
from ackgate.persistence.ledgers.catalog import (
    LedgerCatalog,
    PasswordCheck,
    decode_metadata,
    encode_metadata,
)
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore

METADATA = LedgerMetadata(
    ledger_id=7,
    state=LedgerState.OPEN,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=1,
    digest_type=DigestType.MAC,
    fragments=(Fragment(0, ("a", "b")), Fragment(10, ("a", "c"))),
    last_entry_id=-1,
    length_bytes=0,
    created_ms=123,
    custom_metadata={"k": b"\x00\xff"},
)
LEDGER_1 = replace(METADATA, ledger_id=1)
PASSWORD = PasswordCheck.of(b"secret", lambda size: bytes(range(size)))


def test_metadata_comes_back_and_holds_no_password() -> None:
    value = encode_metadata(METADATA, PASSWORD)
    assert decode_metadata(7, value) == (METADATA, PASSWORD)
    assert b"secret" not in value


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"state": "ASLEEP"},
        {"fragments": []},
        {"fragments": [[5, ["a", "b"]]]},
        {"fragments": [[0, ["a"]]]},
        {"fragments": [[0, ["a", "b"]], [0, ["a", "b"]]]},
        {"ack_quorum": 3},
        {"custom": {"k": "not base64!"}},
        {"salt": "xyz"},
        {"length_bytes": None},
    ],
)
def test_damaged_metadata_names_the_ledger(change: dict[str, object]) -> None:
    fields = json.loads(encode_metadata(METADATA, PASSWORD))
    with pytest.raises(CorruptRecordError, match="ledger 7"):
        decode_metadata(7, json.dumps(fields | change).encode())


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_metadata_names_the_ledger(value: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="ledger 7"):
        decode_metadata(7, value)


def test_a_password_is_checked_and_makes_the_key() -> None:
    assert PASSWORD.digest(7, DigestType.CRC32C, b"secret")
    with pytest.raises(DigestMismatchError, match="ledger 7"):
        PASSWORD.digest(7, DigestType.CRC32C, b"Secret")


async def test_ids_ascend_among_all_who_create() -> None:
    tree = MemoryTree()
    catalogs = [LedgerCatalog(MemoryMetadataStore(tree)) for _ in range(3)]
    given = []
    for i in range(250):
        given.append(await catalogs[0 if i < 150 else i % 3].new_id())
    assert given == sorted(set(given))
    assert given[0] == 1
    assert given[149] == 150, "alone, nothing is skipped"


async def test_ids_are_unique_when_all_ask_at_once() -> None:
    tree = MemoryTree()
    catalogs = [LedgerCatalog(MemoryMetadataStore(tree)) for _ in range(4)]
    given = await asyncio.gather(*(catalogs[i % 4].new_id() for i in range(400)))
    assert len(set(given)) == 400


async def test_a_damaged_counter_is_named() -> None:
    store = MemoryMetadataStore(MemoryTree())
    await store.put("/ledgers/idgen", b"many", expected_version=None)
    with pytest.raises(CorruptRecordError, match="idgen"):
        await LedgerCatalog(store).new_id()


async def test_changes_are_compare_and_set() -> None:
    catalog = LedgerCatalog(MemoryMetadataStore(MemoryTree()))
    entry = await catalog.create(METADATA, PASSWORD)
    with pytest.raises(MetadataConflictError):
        await catalog.create(METADATA, PASSWORD)
    changed = await catalog.replace(entry, METADATA)
    with pytest.raises(MetadataConflictError):
        await catalog.replace(entry, METADATA)
    assert await catalog.read(7) == changed
    assert await catalog.ledger_ids() == [7]
    assert await catalog.exists(7)
    await catalog.remove(7)
    assert not await catalog.exists(7)
    for failing in (catalog.read(7), catalog.remove(7)):
        with pytest.raises(NoSuchLedgerError):
            await failing
    with pytest.raises((NoSuchLedgerError, MetadataConflictError)):
        await catalog.replace(changed, METADATA)


# ------------------------------------------------------------------- answers that are lost

UNANSWERED = [
    Rule(Fault.DROP_ANSWER, "metadata.put"),
    Rule(Fault.DROP_ANSWER, "metadata.put", times=3),
    Rule(Fault.LANDS_LATE, "metadata.put", seconds=0),
    Rule(Fault.LANDS_LATE, "metadata.put", seconds=0.01),
]


async def doubtful(rule: Rule) -> tuple[MemoryMetadataStore, LedgerCatalog]:
    store = MemoryMetadataStore()
    return store, LedgerCatalog(FaultyMetadataStore(store, FaultPlan([replace(rule)])))


@pytest.mark.parametrize("rule", UNANSWERED, ids=str)
async def test_a_ledger_made_without_an_answer_is_ours(rule: Rule) -> None:
    store, catalog = await doubtful(rule)
    entry = await catalog.create(LEDGER_1, PASSWORD)
    await asyncio.sleep(0.02)
    changed = replace(entry.metadata, state=LedgerState.CLOSED)
    entry = await catalog.replace(entry, changed)
    assert (await LedgerCatalog(store).read(1)).metadata == changed
    assert (await catalog.replace(entry, changed)).metadata == changed


@pytest.mark.parametrize("rule", UNANSWERED, ids=str)
async def test_a_change_without_an_answer_is_found_out(rule: Rule) -> None:
    store, catalog = await doubtful(rule)
    entry = await LedgerCatalog(store).create(LEDGER_1, PASSWORD)
    changed = replace(entry.metadata, state=LedgerState.IN_RECOVERY)
    entry = await catalog.replace(entry, changed)
    await asyncio.sleep(0.02)
    closed = replace(changed, state=LedgerState.CLOSED)
    await catalog.replace(entry, closed)
    assert (await LedgerCatalog(store).read(1)).metadata == closed


@pytest.mark.parametrize("rule", UNANSWERED, ids=str)
async def test_a_change_without_an_answer_is_not_made_over_another_ones(rule: Rule) -> None:
    store, catalog = await doubtful(rule)
    entry = await LedgerCatalog(store).create(LEDGER_1, PASSWORD)
    theirs = replace(entry.metadata, state=LedgerState.IN_RECOVERY)
    await LedgerCatalog(store).replace(entry, theirs)
    with pytest.raises(MetadataConflictError):
        await catalog.replace(entry, replace(entry.metadata, state=LedgerState.CLOSED))
    assert (await LedgerCatalog(store).read(1)).metadata == theirs


async def test_an_id_that_another_made_a_ledger_of_is_a_conflict() -> None:
    store, catalog = await doubtful(Rule(Fault.DROP_ANSWER, "metadata.put"))
    await LedgerCatalog(store).create(LEDGER_1, PASSWORD)
    with pytest.raises(MetadataConflictError):
        await catalog.create(LEDGER_1, PasswordCheck.of(b"", os.urandom))


async def test_a_removal_without_an_answer_is_done_and_a_second_one_finds_nothing() -> None:
    store, catalog = await doubtful(Rule(Fault.DROP_ANSWER, "metadata.delete"))
    await LedgerCatalog(store).create(LEDGER_1, PASSWORD)
    await catalog.remove(1)
    with pytest.raises(NoSuchLedgerError):
        await catalog.remove(1)


@pytest.mark.parametrize("rule", UNANSWERED, ids=str)
async def test_ids_without_an_answer_are_given_out_once_and_ascend(rule: Rule) -> None:
    store, catalog = await doubtful(rule)
    other = LedgerCatalog(store)
    given = []
    for turn in range(250):
        given.append(await (other if turn % 50 == 49 else catalog).new_id())
        await asyncio.sleep(0.001 if turn < 20 else 0)
    assert given == sorted(set(given))


async def test_a_store_that_never_answers_is_a_clear_error() -> None:
    never = Rule(Fault.FAIL, "metadata.put", times=None, error=OutcomeUnknownError)
    _, catalog = await doubtful(never)
    with pytest.raises(MetadataStoreError, match="5 writes were not answered"):
        await catalog.create(LEDGER_1, PASSWORD)
