"""Four real bookies for a cluster run, with proxies to ZooKeeper and to the brokers, and what befalls them.

Edge: signals, proxies, and a small file system that is filled. One bookie is met at a time; the fault is over
when it is registered, and takes entries, again.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from ackgate.testing import ZooKeeperEnsemble
from ackgate.testing.proxy import ProxyMode, TcpProxy
from tests.chaos.bookie_wires import BookieWires
from tests.chaos.cluster_schedule import SESSION_SECONDS, Fault, Trouble
from tests.chaos.small_file_system import NotMountableError, SmallFileSystem
from tests.support.bookkeeper import BookKeeperFailedError, RealBookKeeper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ackgate.testing import BrokerProcess
    from tests.support.bookkeeper.cluster import Bookie

BOOKIES: Final = 4
_DISK_BYTES: Final = 256 * 1024 * 1024

_CONF: Final = {
    "zkTimeout": str(int(SESSION_SECONDS * 1000)),
    "diskCheckInterval": "300",
    "diskUsageThreshold": "0.95",
    "diskUsageWarnThreshold": "0.90",
    "logSizeLimit": str(8 * 1024 * 1024),
    "minUsableSizeForIndexFileCreation": str(1024 * 1024),
    "minUsableSizeForEntryLogCreation": str(1024 * 1024),
    "gcWaitTime": "3000",
}

_PARTITIONS: Final = {
    Trouble.PARTITION_CUT: ProxyMode.CUT,
    Trouble.PARTITION_DROP: ProxyMode.DROP,
}


class ChaosBookies:
    """See the module."""

    def __init__(self, directory: Path, ensemble: ZooKeeperEnsemble) -> None:
        self._proxies = [
            [TcpProxy(("127.0.0.1", server.port)) for server in ensemble.servers]
            for _ in range(BOOKIES)
        ]
        self._directory = directory
        self._ensemble = ensemble
        self._stack = ExitStack()
        self._disk: SmallFileSystem | None = None
        self._met: Bookie | None = None
        self._settling = asyncio.Lock()
        self.restarts = 0
        self.cluster: RealBookKeeper
        """There after `start`."""
        self.wires: BookieWires
        """As well."""

    def start(self, brokers: Sequence[BrokerProcess]) -> None:
        """Return when all are registered. `brokers` are started later, and reach them by `wires`."""
        with ExitStack() as stack:
            for proxies in self._proxies:
                for proxy in proxies:
                    stack.enter_context(proxy)
            via = [
                ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
                for proxies in self._proxies
            ]
            self.cluster = RealBookKeeper(
                self._directory, bookies=BOOKIES, zookeeper=self._ensemble, via=via, **_CONF
            )
            ledgers = self.cluster.bookies[-1].data / "ledgers"
            ledgers.mkdir()
            try:
                disk = stack.enter_context(SmallFileSystem.open(ledgers, _DISK_BYTES))
            except NotMountableError as error:
                print(f"no bookie's disk will be full: {error}")
            else:
                # One that is mounted in a namespace of its own is not where the bookie looks.
                self._disk = disk if not disk.enter() else None
            stack.enter_context(self.cluster)
            wires = BookieWires(self._directory / "wires", brokers, self.cluster.bookies)
            self.wires = stack.enter_context(wires)
            self._stack = stack.pop_all()

    def kill(self) -> None:
        """End everything. Twice is fine."""
        self._stack.close()

    async def bring(self, fault: Fault) -> None:
        """Bring it, wait, take it away, and wait until the bookie takes entries again."""
        number = int(fault.amount * BOOKIES)
        if fault.trouble is Trouble.BOOKIES_DISK_FULL:
            number = BOOKIES - 1
        bookie = self.cluster.bookies[number]
        self._met = bookie
        match fault.trouble:
            case Trouble.KILL:
                await asyncio.to_thread(bookie.kill)
                await asyncio.sleep(fault.seconds)
            case Trouble.TERM:
                await asyncio.to_thread(bookie.stop)
                await asyncio.sleep(fault.seconds)
            case Trouble.PAUSE:
                bookie.pause()
                await asyncio.sleep(fault.seconds)
                bookie.resume()
            case Trouble.BOOKIES_DISK_FULL if self._disk is not None:
                await asyncio.to_thread(self._disk.fill)
                await asyncio.sleep(fault.seconds)
                self._disk.empty()
            case Trouble.PARTITION_CUT | Trouble.PARTITION_DROP:
                for proxy in self._proxies[number]:
                    proxy.switch(_PARTITIONS[fault.trouble])
                await asyncio.sleep(fault.seconds)
                for proxy in self._proxies[number]:
                    proxy.switch(ProxyMode.PASS)
        self._met = None
        await self.settle()

    async def settle(self) -> None:
        """Return when all bookies but the one that a fault meets now take entries.

        One that lost its session, or could not write, ends by itself; an operator's supervisor starts it.
        """
        async with self._settling:
            for bookie in self.cluster.bookies:
                if bookie is not self._met:
                    await asyncio.to_thread(self._bring_back, bookie)

    def _bring_back(self, bookie: Bookie) -> None:
        while True:
            if not bookie.is_running:
                bookie.kill()
                self.cluster.wait_until_gone(bookie)
                bookie.start()
                self.restarts += 1
            try:
                self.cluster.wait_until_ready(bookie)
            except BookKeeperFailedError:
                if bookie.is_running:
                    raise
            else:
                return
