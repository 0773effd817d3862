"""A real BookKeeper cluster on loopback: a ZooKeeper server and bookies, each a process of its own.

::

    with RealBookKeeper(directory, bookies=3) as cluster:    # returns when all bookies serve
        client = await BookKeeperClient.connect(cluster.uri)
        cluster.bookies[0].kill()                            # kill -9; start() brings it back

`scripts/ensure-bookkeeper.sh` has fetched the jars; `missing()` says why there are none.

Bookies take their classes from an archive (`ClassArchive`).
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ackgate.persistence.bookkeeper.protocol import read_frame
from ackgate.testing import ZooKeeperProcess, free_ports
from ackgate.testing.child_guard import CHILDREN
from ackgate.testing.zookeeper import java_program
from tests.support.class_archives import ClassArchive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.testing import ZooKeeperEnsemble

LIB = Path(__file__).parents[3] / "build/bookkeeper/lib"
READY_SECONDS = 120.0
_NO_LEDGER = 2**63 - 1

QUICK_JAVA = (
    *("-Xms160m", "-Xmx160m", "-XX:MaxDirectMemorySize=128m"),
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true"),
    *("-Dio.netty.leakDetectionLevel=disabled", "-Dio.netty.tryReflectionSetAccessible=true"),
    *(
        "--add-opens",
        "java.base/java.nio=ALL-UNNAMED",
        "--add-opens",
        "java.base/java.io=ALL-UNNAMED",
    ),
    *("--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.util.zip=ALL-UNNAMED"),
)
"""Options for a JVM that starts quickly and stays small."""

_CONF = {
    "advertisedAddress": "127.0.0.1",
    "listeningInterface": "lo",
    "allowLoopback": "true",
    "httpServerEnabled": "false",
    "enableStatistics": "false",
    "zkTimeout": "4000",
    "journalMaxSizeMB": "64",
    "journalMaxBackups": "0",
    "journalPreAllocSizeMB": "4",
    "logSizeLimit": "67108864",
    "entryLogFilePreallocationEnabled": "false",
    "minUsableSizeForIndexFileCreation": "67108864",
    "minUsableSizeForEntryLogCreation": "134217728",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "gcWaitTime": "30000",
    "skipListSizeLimit": "16777216",
    "journalMaxMemorySizeMb": "32",
    "pageLimit": "1024",
    "serverNumIOThreads": "2",
    "numReadWorkerThreads": "2",
    "numHighPriorityWorkerThreads": "2",
}
"""Small files and little memory; an add is answered when the journal was synced, as by default."""


class BookKeeperFailedError(Exception):
    """A bookie did not start, or ended when it should not. Holds the end of its log."""


def missing() -> str | None:
    """Why no real bookie can be started here, or None."""
    if not LIB.is_dir():
        return "no real bookies: scripts/ensure-bookkeeper.sh fetches them (it needs Maven)"
    return None if shutil.which("java") else "no real bookies: no Java"


def java(
    *arguments: str, directory: Path, options: tuple[str, ...] = (), shares_classes: bool = True
) -> list[str]:
    """The command line of a program of BookKeeper's."""
    log4j = f"-Dlog4j.configurationFile={directory / 'log4j2.xml'}"
    shared = _CLASSES.options if shares_classes else ()
    return [java_program(), *shared, *options, log4j, "-cp", f"{LIB}/*", *arguments]


def _run_a_bookie(option: str) -> None:
    with tempfile.TemporaryDirectory() as directory, suppress(BookKeeperFailedError, OSError):
        cluster = RealBookKeeper(
            Path(directory), bookies=1, options=(option,), shares_classes=False
        )
        with cluster:
            cluster.bookies[0].stop()


_CLASSES: Final = ClassArchive("bookkeeper", lambda: LIB, _run_a_bookie)


class Bookie:
    """One bookie, started any number of times on the same data and port."""

    def __init__(
        self,
        directory: Path,
        number: int,
        port: int,
        uri: str,
        conf: dict[str, str],
        options: tuple[str, ...],
        *,
        shares_classes: bool,
    ) -> None:
        self._shares_classes = shares_classes
        self.number = number
        self.port = port
        self.bookie_id = conf.get("bookieId", f"127.0.0.1:{port}")
        self.data = directory / f"bookie-{number}"
        self.data.mkdir()
        self._conf = self.data / "bk.conf"
        self._log = self.data / "out.log"
        own = {
            "bookiePort": port,
            "metadataServiceUri": uri,
            "journalDirectories": self.data / "journal",
            "ledgerDirectories": self.data / "ledgers",
        }
        lines = {**_CONF, **own, **conf}.items()
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in lines))
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once; `RealBookKeeper.wait_until_ready` waits."""
        (self.data / "tmp").mkdir(exist_ok=True)
        options = (*QUICK_JAVA, f"-Djava.io.tmpdir={self.data / 'tmp'}", *self._options)
        main = ("org.apache.bookkeeper.server.Main", "--conf", str(self._conf))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                java(
                    *main,
                    directory=self._directory,
                    options=options,
                    shares_classes=self._shares_classes,
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        CHILDREN.add(self._process.pid)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raises `BookKeeperFailedError` if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise BookKeeperFailedError(f"bookie {self.number} ended:\n{self.log[-3000:]}")

    def answers(self) -> bool:
        """Whether it serves: for a while after it has begun to listen it closes every connection."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.sendall(read_frame(_NO_LEDGER, 0))
                return probe.recv(1) != b""
        except OSError:
            return False

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def empty(self) -> None:
        """Delete what it has stored, as after its disks were replaced. It must not run.

        It does not start while ZooKeeper has its cookie.
        """
        assert self._process is None
        for name in ("journal", "ledgers"):
            shutil.rmtree(self.data / name)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            CHILDREN.remove(process.pid)


class RealBookKeeper:
    """A ZooKeeper server and its bookies."""

    def __init__(
        self,
        directory: Path,
        *,
        bookies: int = 3,
        scheme: str = "hierarchical",
        options: tuple[str, ...] = (),
        zookeeper: ZooKeeperEnsemble | None = None,
        via: Sequence[str] = (),
        shares_classes: bool = True,
        **conf: str,
    ) -> None:
        """`scheme`: of the ledgers' paths. `options`: of the bookies' JVMs. `conf`: of each bk.conf.

        `zookeeper`: runs already, and goes on afterwards. `via`: ``host:port,...`` by which each bookie
        reaches it. `shares_classes`: from the archive.
        """
        self._shares_classes = shares_classes
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.xml").write_text(
            '<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %-5p %c{1} %m%n"/>'
            '</Console></Appenders><Loggers><Root level="warn"><AppenderRef ref="out"/></Root>'
            "</Loggers></Configuration>"
        )
        self._directory = directory
        self._own = None
        if zookeeper is None:
            self._own = ZooKeeperProcess(directory / "zookeeper", force_sync=False)
        self._servers = (self._own,) if zookeeper is None else zookeeper.servers
        servers = ",".join(f"127.0.0.1:{server.port}" for server in self._servers if server)
        uris = [f"zk+{scheme}://{each.replace(',', ';')}/ledgers" for each in (servers, *via)]
        self.uri = uris[0]
        self.bookies = [
            Bookie(
                directory,
                number,
                port,
                (uris[1:] or uris * bookies)[number],
                conf,
                options,
                shares_classes=shares_classes,
            )
            for number, port in enumerate(free_ports(bookies))
        ]

    @property
    def zookeeper(self) -> ZooKeeperProcess:
        """The server of its own."""
        assert self._own is not None
        return self._own

    def start(self) -> None:
        if self._own is not None:
            self._own.start()
        conf = str(self.bookies[0].data / "bk.conf")
        shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", conf, "initnewcluster")
        formats = java(
            *shell,
            directory=self._directory,
            options=QUICK_JAVA,
            shares_classes=self._shares_classes,
        )
        subprocess.run(formats, check=True, capture_output=True)
        for bookie in self.bookies:
            bookie.start()
        self.wait_until_ready()

    def registered(self) -> set[str]:
        """Ids of the bookies that ZooKeeper knows to take entries."""
        known = "\n".join(server.ask("dump") for server in self._servers if server)
        lines = (line.strip().rpartition("/") for line in known.splitlines())
        return {
            name for path, _, name in lines if path.endswith("/available") and name != "readonly"
        }

    def wait_until_ready(self, *bookies: Bookie) -> None:
        """Until these, or all, are known to ZooKeeper and answer requests.

        One that was killed stays known until its session ends; `wait_until_gone` before it is started,
        or this may see its former self.
        """
        wanted = bookies or tuple(self.bookies)
        ids = {bookie.bookie_id for bookie in wanted}
        self._wait(lambda: ids <= self.registered() and all(b.answers() for b in wanted), *wanted)

    def wait_until_gone(self, *bookies: Bookie) -> None:
        """Until ZooKeeper has given up these, or all, that were killed."""
        ids = {bookie.bookie_id for bookie in bookies or self.bookies}
        self._wait(lambda: ids.isdisjoint(self.registered()))

    def restart(self, *bookies: Bookie) -> None:
        """Kill these if they run, and return when they serve again.

        One that was paused is known to ZooKeeper until its session ends, which may be after it goes on.
        """
        for bookie in bookies:
            bookie.kill()
        self.wait_until_gone(*bookies)
        for bookie in bookies:
            bookie.start()
        self.wait_until_ready(*bookies)

    def _wait(self, is_so: Callable[[], bool], *wanted: Bookie) -> None:
        """Ends early when one of those that are wanted has ended."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_so():
            for bookie in wanted:
                bookie.check()
            if time.monotonic() > deadline:
                raise BookKeeperFailedError(f"known to ZooKeeper: {sorted(self.registered())}")
            time.sleep(0.05)

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.kill()
        if self._own is not None:
            self._own.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
