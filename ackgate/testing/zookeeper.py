"""Real ZooKeeper servers: one alone, or an ensemble of three. They need Java 17 or newer.

Edge: owns child processes, each with a pipe and a thread that drains it. For test suites, chaos runs
and benchmarks; see ``pytest_plugin.py`` for the fixture::

    with ZooKeeperProcess(directory) as server:        # returns when it serves
        store = await open_metadata_store(f"zk:{server.connection_string}/my-root")

    with ZooKeeperEnsemble(directory) as ensemble:     # returns when it has a leader
        ensemble.servers[0].kill()                     # kill -9; start() brings it back
        ensemble.leader().pause()                      # SIGSTOP; resume() lets it go on

The jars come from the first of these that is there:

1. the directory in the environment's `JARS_VARIABLE`: the ``lib`` of a ZooKeeper, or any with its jars;
2. PySpark, if it is installed;
3. Maven: fetched once, some 15 MB, into the user's cache directory.

Data lies below the given directory and outlives a restart. Ports are free ones of the loopback
interface, chosen once. ``jute.maxbuffer`` is ZooKeeper's stock 1 MB. Nothing waits for a fixed time:
a server is asked until it answers, or until its process has ended. Servers never outlive the
process that started them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ackgate.testing.child_guard import CHILDREN
from ackgate.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

TICK_MS: Final = 500
"""ZooKeeper's unit of time. Sessions are forgotten in steps of it, so it decides how exact a short
session time-out is."""

SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 120_000

LOG_LINES_MAX: Final = 1_000
"""Lines of output that are kept of each server; older ones go."""

LOG_LINE_BYTES_MAX: Final = 4_096

_ERROR_LINES: Final = 30
_START_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.02
_ANSWER_SECONDS_MAX: Final = 2.0
_FIRST_ANSWER_SECONDS_MAX: Final = 0.3
"""A server that is just starting may accept a connection and forget about it."""

JARS_VARIABLE: Final = "ZOOKEEPER_JARS"
"""Environment: a directory with ZooKeeper's jars. (A broker takes ``ACKGATE_...`` for a setting.)"""

_JARS: Final = (
    *("zookeeper-*", "slf4j-api-*", "log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*"),
    *("logback-c*", "commons-io-*"),
    *("netty-*", "metrics-core-*", "snappy-java-*", "commons-cli-*", "audience-annotations-*"),
)
"""What a server needs of a directory, such as PySpark's. Java would open all of them at each start."""

_MAVEN_VERSION: Final = "3.9.4"
_MAVEN_SECONDS_MAX: Final = 300.0
_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ackgate</groupId><artifactId>zookeeper-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>{_MAVEN_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version>
    </dependency>
    <dependency>
      <groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j2-impl</artifactId><version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"""
"""ZooKeeper, and the libraries that its own pom expects a server to have."""

_JAVA_OPTIONS: Final = (
    *("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true"),
    *("-Dzookeeper.preAllocSize=1024", "-Djava.net.preferIPv4Stack=true"),
)

_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1} - %m%n%ex{4}
"""

_LOGBACK: Final = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5p %c{1} - %m%n%ex{4}</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="console"/></root>
</configuration>
"""
"""The same for the library in the ``lib`` of a ZooKeeper."""


class ZooKeeperFailedError(Exception):
    """A server did not start, or ended when it should not. Holds the end of its log."""


class ZooKeeperProcess:
    """One server, started any number of times on the same data and ports."""

    java_options: Callable[[], Sequence[str]] = tuple
    """Asked at each start for further options of Java. Set it on the class for all servers of a test run."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        force_sync: bool = True,
        session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN,
        quorum: Sequence[str] = (),
        number: int = 0,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        """Describe a server; nothing is started.

        `tls`: a PEM file with the server's certificate and key, and one with the authorities that sign
        clients'; then `secure_port` wants a client's certificate, beside the port in clear.

        `force_sync` False leaves out the fsync of the transaction log, which no test of killed
        processes needs. `quorum` and `number` are the ensemble's: the lines ``server.N=...`` and N.
        """
        self.directory = directory
        self.number = number
        [self.port] = [port] if port else free_ports(1)
        self._tls = tls
        [self.secure_port] = free_ports(1) if tls else [0]
        self._force_sync = force_sync
        self._session_timeout_ms_min = session_timeout_ms_min
        self._quorum = tuple(quorum)
        self._process: subprocess.Popen[bytes] | None = None
        self._drain: threading.Thread | None = None
        self._log: deque[bytes] = deque(maxlen=LOG_LINES_MAX)

    @property
    def connection_string(self) -> str:
        """``host:port``, for ``zk:`` in front and a root behind."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id. Raises `ZooKeeperFailedError` when none runs."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The end of what it wrote, over all starts."""
        return b"".join(self._log).decode(errors="replace")

    # ---------------------------------------------------------------- life

    def start(self, timeout_seconds: float = _START_SECONDS_MAX) -> Self:
        """Start, and return when it serves. Raises `ZooKeeperFailedError`."""
        self.launch()
        return self.wait_until_ready(timeout_seconds)

    def launch(self) -> None:
        """Start without waiting: a member of an ensemble serves only with a majority of them."""
        if self._process is not None:
            raise ZooKeeperFailedError(f"ZooKeeper {self._process.pid} is running already")
        process = subprocess.Popen(
            [java_program(), *_JAVA_OPTIONS, *self.java_options(), *self._options(), *self._main()],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        CHILDREN.add(process.pid)
        self._process = process
        self._drain = threading.Thread(target=self._keep, args=(process.stdout,), daemon=True)
        self._drain.start()

    def wait_until_ready(self, timeout_seconds: float = _START_SECONDS_MAX) -> Self:
        """Return when it serves clients. Raises `ZooKeeperFailedError`."""
        self._until(lambda: self.mode(_FIRST_ANSWER_SECONDS_MAX) is not None, timeout_seconds)
        return self

    def mode(self, timeout_seconds: float = _ANSWER_SECONDS_MAX) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None while it serves no client."""
        for line in self.ask("srvr", timeout_seconds).splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def ask(self, word: str, timeout_seconds: float = _ANSWER_SECONDS_MAX) -> str:
        """The answer to one of ZooKeeper's four-letter words; empty when there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout_seconds) as asking:
                asking.sendall(word.encode())
                return b"".join(iter(lambda: asking.recv(65_536), b"")).decode(errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone. Fine if it is gone already, or paused."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP, and wait until it has stopped: its connections stay open, without answers."""
        self._running().send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: go on after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def restart(self) -> Self:
        """Kill it and start it again."""
        self.kill()
        return self.start()

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ---------------------------------------------------------------- configuration and start

    def _options(self) -> list[str]:
        logging = self.directory / "log4j2.properties"
        self.directory.mkdir(parents=True, exist_ok=True)
        logging.write_text(_LOGGING)
        logback = self.directory / "logback.xml"
        logback.write_text(_LOGBACK)
        return [
            f"-Dlog4j2.configurationFile={logging}",
            f"-Dlogback.configurationFile={logback}",
            f"-Dzookeeper.forceSync={'yes' if self._force_sync else 'no'}",
            *("-cp", os.pathsep.join(_jars())),
        ]

    def _main(self) -> list[str]:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        lines = [
            f"tickTime={TICK_MS}",
            f"dataDir={data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",
            f"minSessionTimeout={self._session_timeout_ms_min}",
            f"maxSessionTimeout={SESSION_TIMEOUT_MS_MAX}",
            "4lw.commands.whitelist=ruok,srvr,stat,cons,dump,mntr,wchs",
        ]
        if self._tls is not None:
            store, trust = self._tls
            lines += [
                f"secureClientPort={self.secure_port}",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                *(f"ssl.keyStore.location={store}", "ssl.keyStore.type=PEM"),
                *(f"ssl.trustStore.location={trust}", "ssl.trustStore.type=PEM"),
            ]
        name = "ZooKeeperServerMain"
        if self._quorum:
            name = "quorum.QuorumPeerMain"
            lines += ["initLimit=20", "syncLimit=10", *self._quorum]
            (data / "myid").write_text(f"{self.number}\n")
        configuration = self.directory / "zoo.cfg"
        configuration.write_text("".join(f"{line}\n" for line in lines))
        return [f"org.apache.zookeeper.server.{name}", str(configuration)]

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(number)
        process.wait()
        CHILDREN.remove(process.pid)
        if self._drain is not None:
            self._drain.join()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ZooKeeperFailedError(self._story("not running"))
        return self._process

    def _until(self, is_so: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not is_so():
            try:
                code = self._running().wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.kill()
                raise ZooKeeperFailedError(
                    self._story(f"not ready after {timeout_seconds} seconds")
                ) from None
            self.kill()
            raise ZooKeeperFailedError(self._story(f"ended with exit code {code}"))

    def _keep(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(LOG_LINE_BYTES_MAX):
            self._log.append(line)

    def _story(self, what: str) -> str:
        tail = b"".join(list(self._log)[-_ERROR_LINES:]).decode(errors="replace")
        return f"ZooKeeper on port {self.port}: {what}; the end of its log:\n{tail}"


class ZooKeeperEnsemble:
    """Servers with a quorum. A majority of them has to live for anything to be answered."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        force_sync: bool = True,
        session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN,
    ) -> None:
        ports = free_ports(3 * size)
        client_ports, peer_ports, vote_ports = (
            ports[:size],
            ports[size : 2 * size],
            ports[2 * size :],
        )
        quorum = [
            f"server.{number}=127.0.0.1:{peer}:{vote}"
            for number, (peer, vote) in enumerate(zip(peer_ports, vote_ports, strict=True), 1)
        ]
        self.servers = tuple(
            ZooKeeperProcess(
                directory / f"server-{number}",
                port=port,
                force_sync=force_sync,
                session_timeout_ms_min=session_timeout_ms_min,
                quorum=quorum,
                number=number,
            )
            for number, port in enumerate(client_ports, 1)
        )

    @property
    def connection_string(self) -> str:
        """Addresses of all servers, as ``host:port,host:port,...``."""
        return ",".join(server.connection_string for server in self.servers)

    def start(self, timeout_seconds: float = _START_SECONDS_MAX) -> Self:
        """Start those that do not run, and return when all of them serve."""
        for server in self.servers:
            if not server.is_running:
                server.kill()
                server.launch()
        for server in self.servers:
            server.wait_until_ready(timeout_seconds)
        return self

    def leader(self) -> ZooKeeperProcess:
        """The server that leads now. Raises `ZooKeeperFailedError` when none does."""
        return self._with_mode("leader")[0]

    def followers(self) -> list[ZooKeeperProcess]:
        """The servers that follow now."""
        return self._with_mode("follower")

    def pause(self) -> None:
        """Stop all servers (SIGSTOP): their connections stay open, without answers."""
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        """Let all servers go on after `pause` (SIGCONT)."""
        for server in self.servers:
            server.resume()

    def kill(self) -> None:
        """`kill -9` to all, and wait until they are gone."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _with_mode(self, mode: str) -> list[ZooKeeperProcess]:
        found = [server for server in self.servers if server.is_running and server.mode() == mode]
        if not found:
            raise ZooKeeperFailedError(f"none of {self.connection_string} is a {mode} now")
        return found


def java_program() -> str:
    """Return the ``java`` that a server runs on. Raises `ZooKeeperFailedError`."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ZooKeeperFailedError("ZooKeeper needs Java 17 or newer, and there is no `java` here")
    return java


def _jars() -> list[str]:
    directory = jar_directory()
    jars = sorted(str(jar) for pattern in _JARS for jar in directory.glob(f"{pattern}.jar"))
    if not any("zookeeper-" in jar for jar in jars):
        raise ZooKeeperFailedError(f"there is no zookeeper-*.jar in {directory}")
    return jars


def jar_directory() -> Path:
    """Return the directory whose jars a server runs from. Raises `ZooKeeperFailedError`."""
    if named := os.environ.get(JARS_VARIABLE):
        return Path(named)
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        return Path(pyspark.origin).parent / "jars"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ackgate"
    fetched = cache / f"zookeeper-{_MAVEN_VERSION}"
    if not fetched.is_dir():
        _fetch(fetched)
    return fetched


def _fetch(directory: Path) -> None:
    """Let Maven fetch the jars. Several processes may do so at once."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ZooKeeperFailedError(
            f"ZooKeeper's jars are not here: name a directory with them in {JARS_VARIABLE}, "
            "install PySpark (pip install 'ackgate[spark]'), or install Maven, which fetches them"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetching-") as scratch:
        pom, jars = Path(scratch) / "pom.xml", Path(scratch) / "jars"
        pom.write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            subprocess.run(
                [maven, "-q", "-B", "-f", str(pom), *goal, f"-DoutputDirectory={jars}"],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_MAVEN_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired:
            raise ZooKeeperFailedError(
                f"Maven did not fetch ZooKeeper's jars within {_MAVEN_SECONDS_MAX} seconds"
            ) from None
        except subprocess.CalledProcessError as error:
            lines = error.stdout.decode(errors="replace").splitlines()[-_ERROR_LINES:]
            story = "\n".join(lines)
            raise ZooKeeperFailedError(
                f"Maven could not fetch ZooKeeper's jars:\n{story}"
            ) from None
        with contextlib.suppress(OSError):  # another process was first
            jars.rename(directory)
