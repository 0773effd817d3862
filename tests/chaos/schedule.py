"""What happens in which cycle: everything random about a chaos run, from its seed alone.

Pure. A cycle starts the broker (perhaps killing it a few times before it listens), holds it against
the facts, lets clients work, and ends it at a random moment. Settings change from cycle to cycle,
within what an operator may do between two starts: small ledgers roll over and are trimmed, small
records are cut into chunks, small journals are replaced, in every order.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WORK_SECONDS_MAX: Final = 0.6
STARTUP_SECONDS_MAX: Final = 0.5
SHUTDOWN_SECONDS_MAX: Final = 0.06
FULL_DISK_SHARE: Final = 0.4

_ALWAYS: Final[Mapping[str, Any]] = {
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "brokerDeleteInactiveTopicsEnabled": False,
    "activeConsumerFailoverDelayTimeMillis": 10,
    # What the audit reads (`journals.py`). The pause is what a crash may cost of it.
    "deliveryJournalEnabled": True,
    "deliveryJournalLingerMs": 50,
}

CHOICES: Final[Mapping[str, tuple[Any, ...]]] = {
    "ackPersistLingerMs": (0, 2, 2, 20),
    "managedLedgerMaxEntriesPerLedger": (150, 1_000, 50_000),
    "managedLedgerCursorMaxEntriesPerLedger": (20, 200, 50_000),
    "cursorDeltasPerSnapshotMax": (1, 10, 1_000),
    "cursorRecordChunkBytes": (4_096, 1_048_576),
    "managedCursorInfoCompressionType": ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"),
    "brokerDeduplicationEnabled": (False, False, True),
    "bookieJournalBytesMax": (1_048_576, 67_108_864),
    "bookieWriteCacheBytesMax": (1_048_576, 67_108_864),
}


class Ending(enum.Enum):
    """How a life of the broker ends."""

    KILL = "kill -9"
    TERM = "SIGTERM"
    KILL_WHILE_STOPPING = "SIGTERM, and kill -9 while it stops"


def _bookies(ensemble_size: int, write_quorum: int, ack_quorum: int) -> Mapping[str, int]:
    return {
        "managedLedgerDefaultEnsembleSize": ensemble_size,
        "managedLedgerDefaultWriteQuorum": write_quorum,
        "managedLedgerDefaultAckQuorum": ack_quorum,
    }


_STORAGES: Final = (_bookies(1, 1, 1), _bookies(3, 2, 2), _bookies(3, 3, 2))
"""One of these holds for a whole run."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One life of the broker."""

    number: int
    settings: Mapping[str, Any]
    startup_kill_seconds: tuple[float, ...]
    """The broker is launched and killed after these times before it is started for real."""
    work_seconds: float
    ending: Ending
    shutdown_seconds: float
    """How long it may stop before it is killed all the same."""
    is_disk_full: bool = False
    """Its disk is filled up before it ends, and the next one starts on it; if it has one of its own."""
    damaged_files: int = 0
    """A bit is flipped in so many files of one bookie when it has ended; where others have copies."""

    def __str__(self) -> str:
        startups = "".join(
            f"kill -9 after {s * 1000:.0f} ms of start; " for s in self.startup_kill_seconds
        )
        full = " (full disk)" if self.is_disk_full else ""
        full += f" ({self.damaged_files} files damaged)" if self.damaged_files else ""
        work = f"work {self.work_seconds * 1000:.0f} ms"
        return f"cycle {self.number}: {startups}{work}, {self.ending.value}{full}"


def _damaged_files(rng: random.Random, storage: Mapping[str, int]) -> int:
    if storage["managedLedgerDefaultAckQuorum"] < 2:
        return 0  # a single copy may be the one that is damaged: reported, and lost
    return rng.choices((0, 1, 5), (50, 25, 25))[0]


def plan_cycle(seed: int, number: int, extra: Mapping[str, Any]) -> Cycle:
    """The cycle of this number. `extra` settings win."""
    storage = random.Random(f"{seed}/storage").choice(_STORAGES)
    rng = random.Random(f"{seed}/{number}")
    settings = {key: rng.choice(values) for key, values in CHOICES.items()}
    kills = rng.choices((0, 1, 2), (80, 15, 5))[0]
    return Cycle(
        number,
        {**_ALWAYS, **storage, **settings, **extra},
        tuple(rng.uniform(0.0, STARTUP_SECONDS_MAX) for _ in range(kills)),
        rng.uniform(0.02, WORK_SECONDS_MAX),
        rng.choices(tuple(Ending), (80, 10, 10))[0],
        rng.uniform(0.0, SHUTDOWN_SECONDS_MAX),
        # Of its own, so that all else is as it was without it.
        random.Random(f"{seed}/{number}/disk").random() < FULL_DISK_SHARE,
        _damaged_files(random.Random(f"{seed}/{number}/bits"), storage),
    )
