"""Changes of nodes that others change at the same time, or whose answers are lost."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.errors import (
    CallerError,
    CorruptRecordError,
    MetadataConflictError,
    MetadataStoreError,
    NodeExistsError,
    NoSuchNodeError,
)
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.nodes.changes import (
    ATTEMPTS_MAX,
    change_node,
    count_up,
    create_node,
    delete_node,
    read_or_create,
    until_answered,
)
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

PATH = "/shared"


def store_with(*rules: Rule) -> FaultyMetadataStore:
    return FaultyMetadataStore(MemoryMetadataStore(), FaultPlan(rules))


async def value_of(store: FaultyMetadataStore) -> bytes | None:
    found = await store.get(PATH)
    return found.value if found is not None else None


def slow_store() -> FaultyMetadataStore:
    """Writes take so long that everybody has read before anybody has written."""
    return store_with(Rule(Fault.DELAY, "metadata.put", times=None, seconds=1.0))


def test_nothing_of_what_others_write_at_the_same_time_is_lost() -> None:
    async def main() -> None:
        store = slow_store()
        calls = 0

        async def add(letter: bytes) -> None:
            def append(value: bytes | None) -> bytes:
                nonlocal calls
                calls += 1
                return (value or b"") + letter

            await change_node(store, PATH, append, attempts_max=100)

        await asyncio.gather(*(add(b"%c" % code) for code in range(97, 123)))
        assert sorted(await value_of(store) or b"") == list(range(97, 123))
        assert calls > 26, "they did meet"

    run_in_virtual_time(main())


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_an_unanswered_write_is_made_again_on_what_is_there(fault: Fault) -> None:
    store = store_with(Rule(fault, "metadata.put"))
    await change_node(store, PATH, lambda _: b"value")
    assert await value_of(store) == b"value"


async def test_who_is_never_answered_gives_up() -> None:
    store = store_with(Rule(Fault.DROP_ANSWER, "metadata.put", times=None))
    calls: list[bytes | None] = []

    def change(value: bytes | None) -> bytes:
        calls.append(value)
        return b"%d" % len(calls)

    with pytest.raises(MetadataStoreError, match=PATH):
        await change_node(store, PATH, change)
    assert len(calls) == ATTEMPTS_MAX


async def test_a_change_that_refuses_writes_nothing() -> None:
    store = store_with()

    def refuse(_: bytes | None) -> bytes:
        raise CallerError("no")

    with pytest.raises(CallerError):
        await change_node(store, PATH, refuse)
    assert await value_of(store) is None


def test_no_number_is_given_twice() -> None:
    async def main() -> None:
        store = slow_store()
        numbers = await asyncio.gather(
            *(count_up(store, PATH, first=5, attempts_max=100) for _ in range(20))
        )
        assert sorted(numbers) == list(range(5, 25))

    run_in_virtual_time(main())


async def test_a_number_whose_answer_was_lost_is_skipped() -> None:
    store = store_with(Rule(Fault.DROP_ANSWER, "metadata.put"))
    assert await count_up(store, PATH, first=0) == 1
    assert await count_up(store, PATH, first=0) == 2


async def test_what_is_no_number_is_refused_and_left() -> None:
    store = store_with()
    await store.create(PATH, b"seven")
    with pytest.raises(CorruptRecordError, match=PATH):
        await count_up(store, PATH, first=0)
    assert await value_of(store) == b"seven"


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE, Fault.REPEAT])
async def test_all_get_what_the_first_has_made(fault: Fault) -> None:
    store = store_with(Rule(fault, "metadata.create"))
    names = iter((b"first", b"second", b"third"))
    value = await read_or_create(store, PATH, lambda: next(names))
    assert await value_of(store) == value
    assert await read_or_create(store, PATH, lambda: next(names)) == value


async def create(store: FaultyMetadataStore) -> list[bool]:
    """Make the node, until there is an answer. Returns what the attempts knew."""
    doubts: list[bool] = []

    async def attempt(is_doubtful: bool) -> None:
        doubts.append(is_doubtful)
        try:
            await store.create(PATH, b"ours")
        except NodeExistsError:
            if not is_doubtful or await value_of(store) != b"ours":
                raise

    await until_answered(attempt, of=PATH)
    return doubts


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_an_attempt_knows_that_an_earlier_one_may_have_been_done(fault: Fault) -> None:
    store = store_with(Rule(fault, "metadata.create"))
    assert await create(store) == [False, True]
    assert await value_of(store) == b"ours"


async def test_another_writer_is_final() -> None:
    store = store_with()
    await store.create(PATH, b"theirs")
    with pytest.raises(NodeExistsError):
        await create(store)
    assert await value_of(store) == b"theirs"
    calls = 0

    async def attempt(_: bool) -> None:
        nonlocal calls
        calls += 1
        await store.put(PATH, b"ours", expected_version=99)

    with pytest.raises(MetadataConflictError):
        await until_answered(attempt, of=PATH)
    assert calls == 1


async def test_who_is_never_answered_gives_up_and_says_of_what() -> None:
    store = store_with(Rule(Fault.DROP_ANSWER, "metadata.put", times=None))
    calls = 0

    async def attempt(_: bool) -> None:
        nonlocal calls
        calls += 1
        await store.put(PATH, b"ours", expected_version=None)

    with pytest.raises(MetadataStoreError, match=f"{PATH}: 3 writes were not answered"):
        await until_answered(attempt, of=PATH, attempts_max=3)
    assert calls == 3


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
async def test_a_node_is_made_and_deleted_though_there_is_no_answer(fault: Fault) -> None:
    store = store_with(Rule(fault, "metadata.create"), Rule(fault, "metadata.delete"))
    await create_node(store, PATH, b"ours")
    assert await value_of(store) == b"ours"
    await delete_node(store, PATH)
    assert await store.get(PATH) is None


async def test_a_node_of_another_writer_is_not_made_by_us() -> None:
    store = store_with(Rule(Fault.LANDS_LATE, "metadata.create", nth=2))
    await store.create(PATH, b"theirs")
    with pytest.raises(NodeExistsError):
        await create_node(store, PATH, b"ours")
    assert await value_of(store) == b"theirs"


async def test_a_node_that_was_not_there_or_has_children_is_not_deleted_by_us() -> None:
    store = store_with()
    with pytest.raises(NoSuchNodeError):
        await delete_node(store, PATH)
    await store.create(f"{PATH}/child", b"")
    with pytest.raises(CallerError, match="children"):
        await delete_node(store, PATH)
