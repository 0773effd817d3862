"""What it costs to have ledgers on a BookKeeper cluster: beside directories, in turns of one run.

Three copies of every entry, two awaited, on three directories of one disk and on three real bookies on the
same disk. One topic, messages of 100 B as entries of their own, one producer that keeps sending; then as many
acks in random order, each with a receipt; the median of the turns. Fail-over is counted from `kill -9` to the
first message from the other broker, the session timeout included.

Bookies, ZooKeeper, brokers and clients share the machine: what bookies use of the processors, brokers lack.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from ackgate.testing import BrokerCluster, ZooKeeperFailedError
from bench.bench_acks import publish_and_ack
from bench.bench_bookkeeper import BOOKIE_JVM
from bench.bench_failover import takeovers
from bench.brokers import Ackgate, running
from tests.support.bookkeeper import RealBookKeeper, missing

if TYPE_CHECKING:
    from collections.abc import Mapping

COPIES: Final = {
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "3",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxUnackedRangesToPersist": "200000",
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
}


def run(*, smoke: bool) -> dict[str, Any]:
    """Messages and receipts a second, and seconds of a fail-over, for both kinds of bookies."""
    if why := missing():
        return {"skipped": why}
    count, turns, rounds = (2_000, 1, 1) if smoke else (50_000, 3, 2)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
            RealBookKeeper(
                Path(directory, "cluster"),
                options=() if smoke else BOOKIE_JVM,
                journalFlushWhenQueueEmpty="true",
            ) as bookies,
        ):
            return _run(Path(directory), bookies, count=count, turns=turns, rounds=rounds)
    except ZooKeeperFailedError as error:
        return {"skipped": str(error).splitlines()[0]}


def _run(
    work: Path, bookies: RealBookKeeper, *, count: int, turns: int, rounds: int
) -> dict[str, Any]:
    zookeeper = bookies.zookeeper.connection_string
    kinds: dict[str, dict[str, str]] = {
        "directories": {"metadataStoreUrl": f"zk:{zookeeper}/directories"},
        "bookkeeper": {
            "metadataStoreUrl": f"zk:{zookeeper}/bookkeeper",
            "bookkeeperMetadataServiceUri": bookies.uri,
        },
    }
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for turn in range(turns):
        for kind, settings in kinds.items():
            own = {**settings, "metadataStoreUrl": f"{settings['metadataStoreUrl']}-{turn}"}
            with running(Ackgate(work / f"{kind}-{turn}", {**COPIES, **own})) as broker:
                seconds[kind].append(asyncio.run(publish_and_ack(broker.protocol_port, count)))
    figures: dict[str, Any] = {"messages": count, "turns": turns}
    for kind in kinds:
        published, acked = zip(*seconds[kind], strict=True)
        figures[kind] = {
            "messages_per_s": round(count / median(published)),
            "receipts_per_s": round(count / median(acked)),
            "fail_over": _fail_over(work / f"{kind}-cluster", bookies, kind, rounds),
        }
    return figures


def _fail_over(work: Path, bookies: RealBookKeeper, kind: str, rounds: int) -> Mapping[str, Any]:
    cluster = BrokerCluster(
        work,
        zookeeper=bookies.zookeeper,
        root=f"/fail-over-{kind}",
        ledgers_root="/ledgers" if kind == "bookkeeper" else "",
        settings=COPIES,
    )
    with cluster:
        return asyncio.run(takeovers(cluster, rounds))
