"""Faults brought upon a cluster, and taken away again.

Edge: signals, proxies, limits, renames, and the admin interface. Blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ackgate.testing.broker_process import BrokerFailedError
from ackgate.testing.proxy import ProxyMode
from ackgate.testing.zookeeper import ZooKeeperEnsemble
from tests.chaos.cluster_schedule import Fault, Role, Trouble
from tests.chaos.facts import ViolationError

if TYPE_CHECKING:
    from ackgate.testing.broker_process import BrokerProcess
    from ackgate.testing.cluster import BrokerCluster
    from ackgate.testing.zookeeper import ZooKeeperProcess

SLOW_WIRE_MS_MAX: Final = 200.0
STOPPING_SECONDS_MAX: Final = 0.1
FULL_AT_BYTES_MAX: Final = 64 * 1024
UNLOADS: Final = 3
ADMIN_SECONDS: Final = 10.0

_PARTITIONS: Final = {
    Trouble.PARTITION_DROP: (ProxyMode.DROP, False),
    Trouble.PARTITION_ANSWERS: (ProxyMode.DROP, True),
    Trouble.PARTITION_HOLD: (ProxyMode.HOLD, False),
    Trouble.PARTITION_CUT: (ProxyMode.CUT, False),
}


class Faults:
    """Brings faults upon one cluster."""

    def __init__(self, cluster: BrokerCluster, ensemble: ZooKeeperEnsemble) -> None:
        self._cluster = cluster
        self._ensemble = ensemble

    async def bring(self, fault: Fault, met: int) -> float:
        """Bring it, wait, take it away. Returns when it began.

        `met`: the broker that is the owner, for faults that meet it or the other one.
        """
        broker_index = met if fault.role is Role.OWNER else 1 - met
        broker = self._cluster.brokers[broker_index]
        match fault.trouble:
            case Trouble.UNLOAD:
                return await self._unload(fault)
            case Trouble.DIRECTORY_GONE:
                return await self._take_directory(fault)
            case Trouble.DISK_FULL:
                began = time.monotonic()
                broker.limit_files(
                    int(fault.amount * FULL_AT_BYTES_MAX) if fault.amount > 0.5 else 0
                )
                await asyncio.sleep(fault.seconds)
                broker.limit_files(None)
                return began
            case Trouble.SLOW_WIRE:
                began = time.monotonic()
                delay_ms = fault.amount * SLOW_WIRE_MS_MAX
                self._cluster.partition(broker_index, ProxyMode.DELAY, delay_ms=delay_ms)
                await asyncio.sleep(fault.seconds)
                self._cluster.heal(broker_index)
                return began
        if fault.trouble in _PARTITIONS:
            mode, drops_answers_only = _PARTITIONS[fault.trouble]
            began = time.monotonic()
            self._cluster.partition(broker_index, mode, drops_answers_only=drops_answers_only)
            await asyncio.sleep(fault.seconds)
            self._cluster.heal(broker_index)
            return began
        if fault.role in {Role.OWNER, Role.OTHER}:
            return await self._stop_broker(fault, broker)
        return await self._stop_zookeeper(fault)

    # ---------------------------------------------------------------- processes

    async def _stop_broker(self, fault: Fault, broker: BrokerProcess) -> float:
        began = time.monotonic()
        match fault.trouble:
            case Trouble.PAUSE:
                broker.pause()
                await asyncio.sleep(fault.seconds)
                broker.resume()
                return began
            case Trouble.KILL:
                await asyncio.to_thread(broker.kill)
            case Trouble.TERM:
                code = await asyncio.to_thread(broker.stop)
                if code != 0:
                    raise ViolationError(f"exit code {code} after SIGTERM")
            case _:
                broker.terminate()
                await asyncio.sleep(fault.amount * STOPPING_SECONDS_MAX)
                await asyncio.to_thread(broker.kill)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(broker.start)
        return began

    async def _stop_zookeeper(self, fault: Fault) -> float:
        if fault.role is Role.ALL:
            servers = self._ensemble.servers
        else:
            leader = await asyncio.to_thread(self._ensemble.leader)
            servers = (leader,)
            if fault.role is Role.FOLLOWER:
                servers = tuple(each for each in self._ensemble.servers if each is not leader)[:1]
        began = time.monotonic()
        if fault.trouble is Trouble.PAUSE:
            for server in servers:
                server.pause()
            await asyncio.sleep(fault.seconds)
            for server in servers:
                server.resume()
            return began
        for server in servers:
            await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.seconds)
        for server in servers:
            await asyncio.to_thread(_start_again, server)
        return began

    # ---------------------------------------------------------------- storage and topics

    async def _take_directory(self, fault: Fault) -> float:
        """Something else is there in its place, as when a disk is not mounted."""
        directories = self._cluster.bookie_directories
        directory = directories[int(fault.amount * len(directories))]
        away = directory.with_suffix(".away")
        began = time.monotonic()
        directory.rename(away)
        directory.write_bytes(b"")
        await asyncio.sleep(fault.seconds)
        directory.unlink()
        away.rename(directory)
        return began

    async def _unload(self, fault: Fault) -> float:
        began = time.monotonic()
        for number in range(UNLOADS):
            broker = self._cluster.brokers[number % 2]
            with contextlib.suppress(OSError, http.client.HTTPException, BrokerFailedError):
                path = "/admin/v2/namespaces/public/default/unload"
                await asyncio.to_thread(put, broker.admin_url, path)
            await asyncio.sleep(fault.seconds / UNLOADS)
        return began


def put(url: str, path: str) -> int:
    """PUT, following redirects, as Pulsar's admin client does. Returns the status."""
    for _ in range(5):
        where = urlsplit(url)
        connection = http.client.HTTPConnection(where.netloc, timeout=ADMIN_SECONDS)
        try:
            connection.request("PUT", path)
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        location = answer.getheader("Location")
        if answer.status != http.client.TEMPORARY_REDIRECT or location is None:
            return answer.status
        url, path = location, urlsplit(location).path
    return answer.status


def _start_again(server: ZooKeeperProcess) -> None:
    server.launch()
    server.wait_until_ready()
