"""`ackgate stats` and `overview` of files that are damaged, or written meanwhile."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ackgate import LATEST, Message, Shared, open_embedded
from ackgate.commands.cli import main
from ackgate.commands.stats.stored import _Storage, stored_stats
from ackgate.cursor import RecoveredStateReport
from ackgate.errors import CorruptRecordError
from ackgate.persistence import SqliteMetadataStore
from ackgate.persistence.nodes.paths import cursor_path, embedded_topic_path, topic_path
from ackgate.persistence.nodes.topic_node import TopicNode, decode_topic_node, encode_topic_node
from ackgate.persistence.offline_storage import opened_ledgers, storage_places
from ackgate.persistence.ports import NodeValue
from tests.broker.admin.conftest import InProcessBroker

ORDERS = embedded_topic_path("orders")
BILLING = cursor_path(ORDERS, "billing")
MESSAGES = 10


async def publish(directory: Path, count: int, *acked: int) -> None:
    """More messages in a ledger of their own; `billing` acks these of all that it gets then."""
    async with open_embedded(directory) as storage:
        topic = await storage.topic("orders")
        billing = await topic.subscribe("billing", kind=Shared())
        await topic.publish([b"%d" % number for number in range(count)])
        await topic.subscribe("audit", kind=Shared(), start=LATEST)
        received: list[Message] = []
        consumer = billing.attach("c", permits=1_000)
        while len(received) < billing.backlog:
            received.append(await anext(consumer))
        for number in acked:
            await consumer.ack(received[number])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two subscriptions of a topic with two ledgers; `billing` has acks out of order in both."""
    directory = tmp_path / "data"
    asyncio.run(publish(directory, MESSAGES, 1, 3, 5))
    asyncio.run(publish(directory, MESSAGES, 9, 11))
    return directory


async def put(directory: Path, path: str, value: bytes) -> None:
    store = await SqliteMetadataStore.open(directory / "metadata.sqlite")
    await store.put(path, value, expected_version=None)
    await store.close()


def damage(directory: Path, path: str) -> None:
    asyncio.run(put(directory, path, b"nonsense"))


# ------------------------------------------------------------------------------------- damaged nodes


def test_a_damaged_cursor_is_named_and_the_others_are_shown(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(data, BILLING)
    assert main(["stats", "orders", "--data-dir", str(data)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("not in it: billing: cursor node ")
    assert "audit" in lines

    assert main(["stats", "orders", "--json", "--data-dir", str(data)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["subscription"] for each in told["subscriptions"]] == ["audit"]
    [why] = told["missing"]
    assert why.startswith("billing: ")

    assert main(["overview", "--json", "--data-dir", str(data)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [row["subscription"] for row in told["rows"]] == ["audit"]
    [why] = told["missing"]
    assert why.startswith("persistent://embedded/default/orders billing: cursor node ")


def test_the_damaged_cursor_alone_is_an_error(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(data, BILLING)
    with pytest.raises(CorruptRecordError, match="cursor node"):
        stored_stats("orders", subscription="billing", data_directory=data)
    assert stored_stats("orders", subscription="audit", data_directory=data).missing == ()
    command = ["stats", "orders", "--subscription", "billing", "--data-dir", str(data)]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


def test_damage_everywhere_is_not_the_absence_of_subscriptions(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(data, BILLING)
    damage(data, cursor_path(ORDERS, "audit"))
    assert main(["stats", "orders", "--data-dir", str(data)]) == 1
    assert "no subscriptions" not in capsys.readouterr().out


def test_a_damaged_partition_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with InProcessBroker(tmp_path) as broker:
        broker.ask("PUT", "persistent/public/default/parted/partitions", 3)
        broker.ask("PUT", "persistent/public/default/parted/subscription/s")
    part = "parted-partition-{}"
    damage(tmp_path, topic_path("public", "default", part.format(0)))
    damage(tmp_path, cursor_path(topic_path("public", "default", part.format(1)), "s"))
    for subscription in (None, "s"):
        answer = stored_stats("parted", subscription=subscription, data_directory=tmp_path)
        assert [each.topic[-1] for each in answer.subscriptions] == ["2"]
        first, second = answer.missing
        assert first.startswith("persistent://public/default/parted-partition-0: topic node ")
        assert second.startswith("persistent://public/default/parted-partition-1 s: cursor node ")
    assert main(["stats", "parted", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("not in it: ") == 2


# ------------------------------------------------------------------ a writer that goes on meanwhile


class Behind:
    """A metadata store whose first answers are older than what is stored by then."""

    def __init__(self, store: Any, answers: dict[str, list[bytes]]) -> None:
        self._store = store
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, path: str) -> NodeValue | None:
        found: NodeValue | None = await self._store.get(path)
        if found is not None and self.answers.get(path):
            return found._replace(value=self.answers[path].pop(0), version=found.version - 1)
        return found


async def nodes_of(data: Path) -> tuple[TopicNode, bytes]:
    """The topic's node, and the value of the node of `billing`."""
    async with opened_ledgers(storage_places(data_directory=data)) as opened:
        topic, cursor = [await opened.metadata.get(path) for path in (ORDERS, BILLING)]
    assert topic is not None
    assert cursor is not None
    return decode_topic_node(topic.value, path=ORDERS), cursor.value


async def misfits(data: Path, behind: dict[str, list[bytes]]) -> RecoveredStateReport:
    """What does not fit of `billing`, where the store's first answers are these."""
    places = storage_places(data_directory=data)
    async with opened_ledgers(places) as opened:
        metadata: Any = Behind(opened.metadata, behind)
        storage = _Storage(metadata, opened.client, places.password)
        topic = await storage.topic("orders")
        [answer] = (await storage.subscriptions(topic, "billing", 64)).answers
    assert not any(behind.values())
    recovery = answer.ack_state.recovery
    assert recovery is not None
    assert recovery.dropped is not None
    return recovery.dropped


async def test_a_ledger_that_is_begun_meanwhile_is_no_misfit(data: Path) -> None:
    node, _ = await nodes_of(data)
    before = encode_topic_node(replace(node, ledgers=node.ledgers[:1]))
    assert (await misfits(data, {ORDERS: [before, before]})).is_clean


async def test_a_ledger_that_is_trimmed_meanwhile_is_no_misfit(data: Path) -> None:
    """The cursor was read while it had acks in the first ledger, the topic when it was gone."""
    before, cursor = await nodes_of(data)
    await publish(data, 0, *range(8))
    now, _ = await nodes_of(data)
    assert now.ledgers[0].ledger_id == before.ledgers[1].ledger_id
    topic = encode_topic_node(before)
    assert (await misfits(data, {ORDERS: [topic, topic], BILLING: [cursor]})).is_clean


async def test_a_real_misfit_is_reported_also_while_the_topic_changes(data: Path) -> None:
    node, _ = await nodes_of(data)
    first, second = node.ledgers
    alone = encode_topic_node(replace(node, ledgers=(first,)))
    await put(data, ORDERS, alone)
    before = encode_topic_node(replace(node, ledgers=(replace(first, closed_ms=None),)))
    found = await misfits(data, {ORDERS: [before, before]})
    assert found.unknown_ledger_ids == (second.ledger_id,)


# ------------------------------------------------------------------------------------ names of others


async def test_names_do_not_move_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_embedded(tmp_path) as storage:
        topic = await storage.topic("or\x1b[2Jders")
        await topic.subscribe("bill\x1b[2Jing")
    for command in (["stats", "or\x1b[2Jders"], ["overview"]):
        assert await asyncio.to_thread(main, [*command, "--data-dir", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert r"or\x1b[2Jders" in out
        assert r"bill\x1b[2Jing" in out
