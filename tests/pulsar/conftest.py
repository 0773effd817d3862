"""One real Pulsar for all tests of this directory, and topics on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from ackgate.pulsar import PulsarCluster
from tests.support.real_pulsar import RealPulsar, pulsar_missing

RANGES_MAX = 30
"""The broker's cap: small enough to be passed by a test."""


@pytest.fixture(scope="session")
def real_pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPulsar]:
    if why := pulsar_missing():
        pytest.skip(why)
    trackers = "org.apache.pulsar.broker.delayed"
    with RealPulsar(
        tmp_path_factory.mktemp("pulsar"),
        acknowledgmentAtBatchIndexLevelEnabled="true",
        delayedDeliveryMinIndexCountPerBucket=20,
        delayedDeliveryTrackerFactoryClassName=f"{trackers}.BucketDelayedDeliveryTrackerFactory",
        managedLedgerDefaultMarkDeleteRateLimit=0,  # an ack is written before it is answered
        managedLedgerMaxEntriesPerLedger=50,
        managedLedgerMaxUnackedRangesToPersist=RANGES_MAX,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
    ) as pulsar:
        yield pulsar


@pytest.fixture
async def cluster(real_pulsar: RealPulsar) -> AsyncIterator[PulsarCluster]:
    async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
        yield cluster
