"""The broker's audits: one broker at a time, at intervals, with figures to show."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ackgate.broker.cluster.audit import AUDITOR_PATH, BrokerAudit
from ackgate.config.settings import Settings
from ackgate.persistence import BookieLedgerClient, LedgerOptions, MemoryMetadataStore, open_bookies
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore

OPTIONS = LedgerOptions(2, 2, 2)


class Brokers:
    """Brokers on three shared directories."""

    def __init__(self, directory: Path) -> None:
        self.directories = [directory / str(i) for i in range(3)]
        self.tree = MemoryTree()
        self.settings = Settings()
        self.clients: list[BookieLedgerClient] = []

    async def start(self, *rules: Rule) -> BrokerAudit:
        metadata = FaultyMetadataStore(MemoryMetadataStore(self.tree), FaultPlan(rules))
        client = BookieLedgerClient(await open_bookies(self.directories), metadata)
        self.clients.append(client)
        services = SimpleNamespace(
            settings=self.settings,
            ledger_client=client,
            metadata=metadata,
            ledger_options=OPTIONS,
            clock_ms=lambda: 7_000,
        )
        return BrokerAudit(cast("Any", services))

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        self.clients.clear()

    async def ledgers(self, count: int) -> None:
        """Closed ledgers in closed bookies."""
        await self.start()
        for _ in range(count):
            writer = await self.clients[0].create(OPTIONS)
            await writer.append([b"x" * 100] * 10).durable
            await writer.close()
        await self.close()


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    await made.close()


def lose_files(directory: Path) -> int:
    files = list((directory / "ledgers").iterdir())
    for file in files:
        file.unlink()
    return len(files)


async def test_what_is_missing_is_found_and_counted(brokers: Brokers) -> None:
    await brokers.ledgers(6)
    lost = lose_files(brokers.directories[1])
    audit = await brokers.start()
    await audit.check_everything()
    assert audit.last.under_replicated_ledgers == lost
    assert audit.last.unmended_ledgers == 0
    assert audit.all.repaired_bytes == lost * 1000
    assert audit.last_run_ms == 7_000
    await audit.check_everything()
    assert (audit.runs, audit.last.ledgers, audit.last.under_replicated_ledgers) == (2, 6, 0)
    assert audit.all.repaired_bytes == lost * 1000


async def test_only_one_broker_audits_at_a_time(brokers: Brokers) -> None:
    await brokers.ledgers(1)
    one, other = await brokers.start(), await brokers.start()
    async with one._alone() as is_alone:
        assert is_alone
        await other.check_everything()
        assert other.runs == 0
    await other.check_everything()
    assert other.runs == 1
    assert await MemoryMetadataStore(brokers.tree).get(AUDITOR_PATH) is None


async def test_a_lost_bookie_is_waited_for_and_then_replaced(brokers: Brokers) -> None:
    await brokers.ledgers(6)
    shutil.rmtree(brokers.directories[1])
    audit = await brokers.start()
    day = 86_400
    assert audit.bookies_interval_seconds == day
    await audit.check_bookies()
    assert audit.last.ledgers == 0
    assert audit.bookies_interval_seconds == 600
    persistence = brokers.settings.persistence.model_copy(update={"lost_bookie_recovery_delay": 0})
    audit._services.settings = brokers.settings.model_copy(update={"persistence": persistence})
    await audit.check_bookies()
    assert audit.last.moved_places > 0
    assert audit.last.unmended_ledgers == 0
    assert audit.bookies_interval_seconds == day
    await audit.check_bookies()
    assert audit.last.ledgers == 0


async def test_a_client_without_bookies_is_not_audited(brokers: Brokers) -> None:
    audit = await brokers.start()
    audit._services.ledger_client = cast("Any", SimpleNamespace())
    await audit.check_everything()
    await audit.check_bookies()
    assert audit.runs == 0


async def test_an_interval_is_one_of_all_brokers_together(brokers: Brokers) -> None:
    await brokers.ledgers(1)
    one, other = await brokers.start(), await brokers.start()
    now_ms = 1_000_000
    for audit in (one, other):
        audit._services.clock_ms = lambda: now_ms
    await one.check_everything_if_due()
    await other.check_everything_if_due()
    assert (one.runs, other.runs) == (1, 0)
    await other.check_bookies_if_due()
    assert other.runs == 1, "the other check has a time of its own"
    now_ms += 604_800_000 - 1
    await other.check_everything_if_due()
    assert other.runs == 1
    now_ms += 1
    await other.check_everything_if_due()
    await one.check_everything_if_due()
    assert (one.runs, other.runs) == (1, 2)


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
@pytest.mark.parametrize("operation", ["create", "delete"])
async def test_an_answer_that_is_lost_keeps_nobody_from_auditing(
    brokers: Brokers, operation: str, fault: Fault
) -> None:
    await brokers.ledgers(2)
    one = await brokers.start(Rule(fault, f"metadata.{operation}", AUDITOR_PATH))
    other = await brokers.start()
    for audit in (one, other, one):
        runs = audit.runs
        await audit.check_everything()
        assert audit.runs == runs + 1


async def test_a_node_that_could_not_be_deleted_is_taken_up_again(brokers: Brokers) -> None:
    await brokers.ledgers(2)
    one = await brokers.start(Rule(Fault.FAIL, "metadata.delete", AUDITOR_PATH))
    other = await brokers.start()
    for audit, runs in ((one, 1), (other, 0), (one, 2), (other, 1)):
        await audit.check_everything()
        assert audit.runs == runs
