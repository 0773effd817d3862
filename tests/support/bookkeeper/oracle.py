"""BookKeeper's own Java client, as a program beside the tests."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ackgate.testing.child_guard import CHILDREN
from tests.support.bookkeeper.cluster import java

if TYPE_CHECKING:
    from tests.support.bookkeeper.cluster import RealBookKeeper

_PROGRAM = Path(__file__).with_name("Ledgers.java")


class Entry(NamedTuple):
    """An entry as the Java client read it."""

    entry_id: int
    length: int
    """Of the payload."""
    crc: int
    """CRC-32 of the payload."""

    @classmethod
    def of(cls, entry_id: int, payload: bytes) -> Entry:
        return cls(entry_id, len(payload), zlib.crc32(payload))


class JavaClient:
    """The Java client on one cluster: a process, asked by lines."""

    def __init__(self, cluster: RealBookKeeper, directory: Path, *options: str) -> None:
        """`options`: of its JVM; without any it starts quickly and stays small."""
        directory.mkdir(parents=True, exist_ok=True)
        options = options or ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        self._process = subprocess.Popen(
            java(str(_PROGRAM), cluster.uri, directory=directory, options=options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid
        CHILDREN.add(self.pid)

    def write(
        self, digest: str, password: str, quorums: tuple[int, int, int], count: int, *, closes: bool
    ) -> int:
        """Make a ledger of entries ``entry 0``, ``entry 1``, ... and return its id.

        If it does not close, the writer is gone without a word when this returns.
        """
        way = "close" if closes else "leave"
        [answer] = self.ask("write", digest, password, *map(str, (*quorums, count)), way)
        return int(answer)

    def read(
        self, ledger_id: int, digest: str, password: str, *, recovers: bool = True
    ) -> list[Entry]:
        """All entries, with or without recovery first."""
        way = "recover" if recovers else "look"
        answers = self.ask("read", digest, password, str(ledger_id), way)
        return [Entry(*map(int, answer.split())) for answer in answers]

    def ask(self, *words: str) -> list[str]:
        """One question of those that `Ledgers.java` names, and the lines of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        lines = [line.rstrip("\n") for line in iter(self._process.stdout.readline, ".\n")]
        wrong = [line for line in lines if line.startswith("!")]
        assert not wrong, wrong
        return [line[1:] for line in lines if line.startswith(":")]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        CHILDREN.remove(self._process.pid)
