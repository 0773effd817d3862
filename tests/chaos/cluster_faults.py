"""Faults brought upon a cluster, and taken away again.

Edge: signals, proxies, limits, renames, and the admin interface. Blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ackgate.testing import BrokerFailedError, BrokerProcess, ZooKeeperEnsemble
from ackgate.testing.proxy import ProxyMode
from tests.chaos.cluster_schedule import Fault, Role, Trouble
from tests.chaos.facts import ViolationError
from tests.chaos.real_bookies import BOOKIES
from tests.corruption.damages import flip

if TYPE_CHECKING:
    from pathlib import Path

    from ackgate.testing import BrokerCluster
    from tests.chaos.real_bookies import ChaosBookies

SLOW_WIRE_MS_MAX: Final = 200.0
STARTING_SECONDS_MAX: Final = 1.0
STOPPING_SECONDS_MAX: Final = 0.1
ZOMBIE_SECONDS_MAX: Final = 2.0
FULL_AT_BYTES_MAX: Final = 64 * 1024
UNLOADS: Final = 4
ADMIN_SECONDS: Final = 10.0
REPAIR_SECONDS: Final = 60.0
DAMAGED_FILES: Final = 3

_ZOOKEEPER_ROLES: Final = frozenset({Role.LEADER, Role.FOLLOWER, Role.ALL})

PARTITIONS: Final = {
    Trouble.PARTITION_DROP: (ProxyMode.DROP, False),
    Trouble.PARTITION_ANSWERS: (ProxyMode.DROP, True),
    Trouble.PARTITION_HOLD: (ProxyMode.HOLD, False),
    Trouble.PARTITION_CUT: (ProxyMode.CUT, False),
}

BOOKIE_PARTITIONS: Final = {
    Trouble.ONE_BOOKIE_CUT: (ProxyMode.CUT, False),
    Trouble.ONE_BOOKIE_DROP: (ProxyMode.DROP, False),
    Trouble.ALL_BOOKIES_CUT: (ProxyMode.CUT, True),
    Trouble.ALL_BOOKIES_DROP: (ProxyMode.DROP, True),
    Trouble.ALL_BOOKIES_HOLD: (ProxyMode.HOLD, True),
}
"""Mode, and whether from all of them."""


class Faults:
    """Brings faults upon one cluster."""

    def __init__(
        self,
        cluster: BrokerCluster,
        ensemble: ZooKeeperEnsemble,
        bookies: ChaosBookies | None = None,
    ) -> None:
        """`bookies`: real ones, in the place of directories."""
        self._real_bookies = bookies
        self._cluster = cluster
        self._ensemble = ensemble
        self._older = cluster.directory / "older-metadata"
        """ZooKeeper's data as they were before the brokers started the last time but one."""

    async def bring(self, fault: Fault, met: int) -> None:
        """Bring it, wait, take it away.

        `met`: the broker that is the owner, for faults that meet it or the other one.
        """
        if fault.role is Role.TOPICS:
            await self._unload(fault)
        elif fault.role is Role.BOOKIE and self._real_bookies is not None:
            await self._real_bookies.bring(fault)
        elif fault.role is Role.BOOKIE:
            await self._take_directory(fault)
        elif fault.trouble is Trouble.OLDER_METADATA:
            await asyncio.to_thread(self._put_back_older_metadata)
        elif fault.role in _ZOOKEEPER_ROLES:
            await self._stop_zookeeper(fault)
        else:
            brokers = {Role.OWNER: [met], Role.OTHER: [1 - met], Role.BOTH: [0, 1]}[fault.role]
            await asyncio.gather(*(self._meet_broker(fault, number) for number in brokers))
        if self._real_bookies is not None:
            await self._real_bookies.settle()

    # ---------------------------------------------------------------- brokers

    async def _meet_broker(self, fault: Fault, number: int) -> None:
        broker = self._cluster.brokers[number]
        match fault.trouble:
            case (
                Trouble.KILL
                | Trouble.TERM
                | Trouble.KILL_WHILE_STARTING
                | Trouble.KILL_WHILE_STOPPING
            ):
                await self._restart(fault, broker)
            case Trouble.PAUSE:
                broker.pause()
                await asyncio.sleep(fault.seconds)
                broker.resume()
            case Trouble.ZOMBIE:
                self._cluster.partition(number, ProxyMode.HOLD)
                broker.pause()
                await asyncio.sleep(fault.seconds)
                broker.resume()
                await asyncio.sleep(fault.amount * ZOMBIE_SECONDS_MAX)
                self._cluster.heal(number)
            case Trouble.DISK_FULL:
                broker.limit_files(int(max(0.0, fault.amount - 0.5) * FULL_AT_BYTES_MAX))
                await asyncio.sleep(fault.seconds)
                broker.limit_files(None)
            case Trouble.SLOW_WIRE:
                delay_ms = fault.amount * SLOW_WIRE_MS_MAX
                self._cluster.partition(number, ProxyMode.DELAY, delay_ms=delay_ms)
                await asyncio.sleep(fault.seconds)
                self._cluster.heal(number)
            case trouble if trouble in BOOKIE_PARTITIONS and self._real_bookies is not None:
                mode, is_all = BOOKIE_PARTITIONS[trouble]
                bookie = None if is_all else int(fault.amount * BOOKIES)
                self._real_bookies.wires.switch(number, mode, bookie=bookie)
                await asyncio.sleep(fault.seconds)
                self._real_bookies.wires.heal(number)
            case _:
                mode, drops_answers_only = PARTITIONS[fault.trouble]
                self._cluster.partition(number, mode, drops_answers_only=drops_answers_only)
                await asyncio.sleep(fault.seconds)
                self._cluster.heal(number)

    async def _restart(self, fault: Fault, broker: BrokerProcess) -> None:
        match fault.trouble:
            case Trouble.KILL:
                await asyncio.to_thread(broker.kill)
            case Trouble.KILL_WHILE_STARTING:
                await asyncio.to_thread(broker.kill)
                broker.launch()
                await asyncio.sleep(fault.amount * STARTING_SECONDS_MAX)
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

    # ---------------------------------------------------------------- ZooKeeper

    async def _stop_zookeeper(self, fault: Fault) -> None:
        if fault.role is Role.ALL:
            servers = self._ensemble.servers
        else:
            leader = await asyncio.to_thread(self._ensemble.leader)
            servers = (leader,)
            if fault.role is Role.FOLLOWER:
                servers = tuple(each for each in self._ensemble.servers if each is not leader)[:1]
        if fault.trouble is Trouble.PAUSE:
            for server in servers:
                server.pause()
            await asyncio.sleep(fault.seconds)
            for server in servers:
                server.resume()
            return
        for server in servers:
            await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.seconds)
        for server in servers:
            await asyncio.to_thread(server.start)

    def _put_back_older_metadata(self) -> None:
        """What the last fault of this kind has kept: a broker has to refuse it, and the newest are put back.

        The first one only keeps a copy.
        """
        for broker in self._cluster.brokers:
            broker.kill()
        self._ensemble.kill()
        newest = self._cluster.directory / "newest-metadata"
        self._copy_metadata(to=newest)
        if self._older.exists():
            self._copy_metadata(back_from=self._older)
            self._ensemble.start()
            self._be_refused(self._cluster.brokers[0])
            self._ensemble.kill()
            self._copy_metadata(back_from=newest)
        shutil.rmtree(self._older, ignore_errors=True)
        newest.rename(self._older)
        self._ensemble.start()
        for broker in self._cluster.brokers:
            broker.launch()
        for broker in self._cluster.brokers:
            broker.wait_until_ready()

    def _copy_metadata(self, *, to: Path | None = None, back_from: Path | None = None) -> None:
        for server in self._ensemble.servers:
            data = server.directory / "data"
            if to is not None:
                shutil.copytree(data, to / str(server.number))
            if back_from is not None:
                shutil.rmtree(data)
                shutil.copytree(back_from / str(server.number), data)

    @staticmethod
    def _be_refused(broker: BrokerProcess) -> None:
        try:
            broker.start()
        except BrokerFailedError:
            line = broker.log.splitlines()[-1]
            if "is older than bookie" not in line or "ackgate ledgers adopt" not in line:
                raise ViolationError(f"older metadata are refused without a word: {line}") from None
        else:
            raise ViolationError("older metadata were believed")

    # ---------------------------------------------------------------- storage and topics

    async def _take_directory(self, fault: Fault) -> None:
        directories = self._cluster.bookie_directories
        directory = directories[int(fault.amount * len(directories))]
        if fault.trouble in {Trouble.DISK_LOST, Trouble.BITS_FLIPPED}:
            await self._damage_disk(fault, directory)
            return
        away = directory.with_suffix(".away")
        directory.rename(away)
        directory.write_bytes(b"")  # something else in its place, as when a disk is not mounted
        await asyncio.sleep(fault.seconds)
        directory.unlink()
        away.rename(directory)

    async def _damage_disk(self, fault: Fault, directory: Path) -> None:
        """A power cut, and a disk less or a bad one; the other copies have what it has lost.

        What an earlier fault has left with one copy only gets a second one before.
        """
        await asyncio.to_thread(self._bookies, "repair", "--replace-lost")
        for broker in self._cluster.brokers:
            await asyncio.to_thread(broker.kill)
        if fault.trouble is Trouble.DISK_LOST:
            await asyncio.to_thread(shutil.rmtree, directory)
        else:
            rng = random.Random(fault.amount)
            files = sorted(directory.rglob("*.avro"))
            for path in rng.sample(files, min(DAMAGED_FILES, len(files))):
                flip(path, rng)
        await asyncio.sleep(fault.seconds)
        for broker in self._cluster.brokers:
            broker.launch()
        for broker in self._cluster.brokers:
            await asyncio.to_thread(broker.wait_until_ready)
        await asyncio.to_thread(self._bookies, "repair", "--replace-lost")

    def _bookies(self, *arguments: str) -> None:
        """`ackgate bookies`, beside the brokers. Raises `ViolationError` for copies still missing."""
        command = [
            *(sys.executable, "-m", "ackgate", "bookies", *arguments, "--json"),
            *("--metadata-url", f"zk:{self._ensemble.connection_string}{self._cluster.root}"),
            *("--bookies", ",".join(map(str, self._cluster.bookie_directories))),
        ]
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=REPAIR_SECONDS,
            env=BrokerProcess.environment(),
        )
        what = f"{' '.join(arguments)}: exit code {done.returncode}"
        try:
            told = json.loads(done.stdout)
        except ValueError:
            raise ViolationError(f"{what}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}") from None
        # It may still be 1: copies on the lost disk that are not looked at, because of a writer.
        if told["totals"]["unmended_ledgers"] or any(each["error"] for each in told["ledgers"]):
            raise ViolationError(f"{what}\n{done.stdout[:4000]}")

    async def _unload(self, fault: Fault) -> None:
        for number in range(UNLOADS):
            broker = self._cluster.brokers[number // 2 % 2]
            with contextlib.suppress(OSError, http.client.HTTPException, BrokerFailedError):
                what = ("namespaces/public/default", "persistent/public/default/single")[number % 2]
                await asyncio.to_thread(put, broker.admin_url, f"/admin/v2/{what}/unload")
            await asyncio.sleep(fault.seconds / UNLOADS)


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
