"""What happens in which cycle of a cluster run: everything random about it, from its seed alone.

Pure. A cycle lets everybody work, brings one or two faults, ends them, and lets everybody work on.
Whom a fault meets is told by role (the topic's owner, ZooKeeper's leader), because who has the role
depends on what went before. A run has one storage, and only faults under which its promises hold:
a bookie goes only where every confirmed entry is on two of them.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.chaos.schedule import CHOICES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SESSION_SECONDS: Final = 2.5

_ALWAYS: Final[Mapping[str, Any]] = {
    "metadataStoreSessionTimeoutMillis": int(SESSION_SECONDS * 1000),
    "metadataStoreOperationTimeoutSeconds": 10,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "brokerDeleteInactiveTopicsEnabled": False,
    "activeConsumerFailoverDelayTimeMillis": 10,
    # What the audit reads (`journals.py`). The pause is what a crash may cost of it.
    "deliveryJournalEnabled": True,
    "deliveryJournalLingerMs": 50,
    # A fallback to the metadata store keeps everything: nothing that a receipt covers is dropped.
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": 100_000,
    "fallbackRateLimit": 50,
}


class Role(enum.Enum):
    """Whom a fault meets."""

    OWNER = "the owner"
    OTHER = "the other broker"
    BOTH = "both brokers"
    LEADER = "ZooKeeper's leader"
    FOLLOWER = "a ZooKeeper follower"
    ALL = "ZooKeeper"
    BOOKIE = "a bookie"
    TOPICS = "the topics"


class Trouble(enum.Enum):
    """What it does."""

    KILL = "kill -9"
    TERM = "SIGTERM"
    KILL_WHILE_STARTING = "kill -9, and again while it starts"
    KILL_WHILE_STOPPING = "SIGTERM and kill -9"
    PAUSE = "SIGSTOP"
    ZOMBIE = "SIGSTOP, and cut off from ZooKeeper when it goes on"
    PARTITION_DROP = "partition (drop)"
    PARTITION_HOLD = "partition (hold)"
    PARTITION_CUT = "partition (cut)"
    PARTITION_ANSWERS = "partition (answers dropped)"
    SLOW_WIRE = "slow wire to ZooKeeper"
    DISK_FULL = "disk full"
    DIRECTORY_GONE = "directory gone"
    DISK_LOST = "replaced by an empty one, all brokers down"
    BOOKIES_DISK_FULL = "disk full, and read-only for it"
    BITS_FLIPPED = "bits flipped in some files, all brokers down"
    OLDER_METADATA = "an older copy put back, all brokers down"
    UNLOAD = "unload"
    ONE_BOOKIE_CUT = "cut off from one bookie (cut)"
    ONE_BOOKIE_DROP = "cut off from one bookie (drop)"
    ALL_BOOKIES_CUT = "cut off from all bookies (cut)"
    ALL_BOOKIES_DROP = "cut off from all bookies (drop)"
    ALL_BOOKIES_HOLD = "cut off from all bookies (hold)"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a cycle."""

    trouble: Trouble
    role: Role
    after_seconds: float
    """Of work."""
    seconds: float
    """Until it ends."""
    amount: float
    """Between 0 and 1: how much of it, where there is a how much."""

    def __str__(self) -> str:
        return f"{self.role.value}: {self.trouble.value} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class ClusterCycle:
    """Work with faults in it."""

    number: int
    settings: Mapping[str, Any]
    """Of brokers that are started in this cycle."""
    faults: tuple[Fault, ...]
    work_seconds: float
    """Before the first fault, and after the last has ended."""

    def __str__(self) -> str:
        return f"cycle {self.number}: " + "; ".join(map(str, self.faults))


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault that may be, and how often it is among others."""

    weight: int
    trouble: Trouble
    role: Role
    shortest: float
    longest: float


_LONG: Final = SESSION_SECONDS + 0.5

KINDS: Sequence[Kind] = (
    Kind(6, Trouble.KILL, Role.OWNER, 0.0, SESSION_SECONDS + 1.0),
    Kind(2, Trouble.KILL, Role.OTHER, 0.0, 1.0),
    Kind(3, Trouble.TERM, Role.OWNER, 0.0, 1.0),
    Kind(1, Trouble.TERM, Role.OTHER, 0.0, 1.0),
    Kind(2, Trouble.KILL_WHILE_STARTING, Role.OWNER, 0.0, 1.0),
    Kind(2, Trouble.KILL_WHILE_STOPPING, Role.OWNER, 0.0, 1.0),
    Kind(4, Trouble.PAUSE, Role.OWNER, _LONG, _LONG + 2.0),
    Kind(4, Trouble.ZOMBIE, Role.OWNER, _LONG, _LONG + 1.5),
    Kind(2, Trouble.PAUSE, Role.OWNER, 0.1, 1.5),
    Kind(1, Trouble.PAUSE, Role.OTHER, 0.1, _LONG),
    Kind(3, Trouble.PARTITION_DROP, Role.OWNER, 0.3, _LONG + 1.0),
    Kind(2, Trouble.PARTITION_HOLD, Role.OWNER, 0.3, _LONG + 1.0),
    Kind(3, Trouble.PARTITION_CUT, Role.OWNER, 0.1, _LONG + 1.0),
    Kind(2, Trouble.PARTITION_ANSWERS, Role.OWNER, 0.3, _LONG + 1.0),
    Kind(2, Trouble.SLOW_WIRE, Role.OWNER, 0.5, 2.0),
    Kind(2, Trouble.KILL, Role.LEADER, 0.2, 2.0),
    Kind(1, Trouble.KILL, Role.FOLLOWER, 0.2, 2.0),
    Kind(2, Trouble.PAUSE, Role.LEADER, 0.2, _LONG),
    Kind(2, Trouble.PAUSE, Role.ALL, 0.2, 1.5),
    Kind(1, Trouble.PAUSE, Role.ALL, _LONG, _LONG + 0.5),
    Kind(4, Trouble.DISK_FULL, Role.OWNER, 0.3, 1.5),
    Kind(2, Trouble.KILL, Role.BOTH, 0.0, 1.0),
    Kind(1, Trouble.PAUSE, Role.BOTH, 0.1, _LONG + 0.5),
    Kind(1, Trouble.PARTITION_CUT, Role.BOTH, 0.3, _LONG + 0.5),
    Kind(2, Trouble.DISK_FULL, Role.BOTH, 0.3, 1.5),
    Kind(4, Trouble.UNLOAD, Role.TOPICS, 0.2, 1.0),
    Kind(1, Trouble.OLDER_METADATA, Role.ALL, 0.0, 0.1),
)
_BOOKIE_KINDS: Final = (
    Kind(3, Trouble.DIRECTORY_GONE, Role.BOOKIE, 0.3, 1.5),
    Kind(1, Trouble.DISK_LOST, Role.BOOKIE, 0.0, 0.5),
    Kind(1, Trouble.BITS_FLIPPED, Role.BOOKIE, 0.0, 0.5),
)

_NOT_ON_REAL_BOOKIES: Final = frozenset({Trouble.DISK_FULL, Trouble.OLDER_METADATA})
"""A broker there writes no files; and bookies do not know how old ZooKeeper's data may be."""

_REAL_BOOKIE_KINDS: Final = (
    Kind(6, Trouble.KILL, Role.BOOKIE, 0.0, 2.0),
    Kind(2, Trouble.TERM, Role.BOOKIE, 0.0, 1.0),
    Kind(6, Trouble.PAUSE, Role.BOOKIE, 0.3, _LONG + 3.0),
    Kind(3, Trouble.PARTITION_CUT, Role.BOOKIE, 0.3, _LONG + 1.0),
    Kind(2, Trouble.PARTITION_DROP, Role.BOOKIE, 0.3, _LONG + 1.0),
    Kind(4, Trouble.BOOKIES_DISK_FULL, Role.BOOKIE, 1.0, 4.0),
    Kind(3, Trouble.ONE_BOOKIE_CUT, Role.OWNER, 0.3, _LONG + 3.0),
    Kind(3, Trouble.ONE_BOOKIE_DROP, Role.OWNER, 0.3, _LONG + 3.0),
    Kind(2, Trouble.ALL_BOOKIES_CUT, Role.OWNER, 0.3, _LONG + 3.0),
    Kind(2, Trouble.ALL_BOOKIES_DROP, Role.OWNER, 0.3, _LONG + 3.0),
    Kind(1, Trouble.ALL_BOOKIES_HOLD, Role.OWNER, 0.3, _LONG + 3.0),
    Kind(1, Trouble.ALL_BOOKIES_CUT, Role.BOTH, 0.3, _LONG),
    Kind(1, Trouble.ONE_BOOKIE_DROP, Role.OTHER, 0.3, _LONG),
)


_SECOND_AFTER_SECONDS: Final = (1.5, SESSION_SECONDS + 1.5)
"""The second fault meets the first one's beginning, or the broker that takes over."""


def _bookies(ensemble_size: int, write_quorum: int, ack_quorum: int) -> Mapping[str, int]:
    return {
        "managedLedgerDefaultEnsembleSize": ensemble_size,
        "managedLedgerDefaultWriteQuorum": write_quorum,
        "managedLedgerDefaultAckQuorum": ack_quorum,
    }


_STORAGES: Final = (
    _bookies(3, 3, 2),
    _bookies(3, 2, 2),
    _bookies(2, 2, 2),
    _bookies(2, 2, 1),
    _bookies(1, 1, 1),
)


_REAL_STORAGES: Final = tuple(
    {**storage, "bookkeeperClientTimeoutInSeconds": 3} for storage in _STORAGES[:3]
)
"""Of four bookies one is away at a time: with one copy, or one that is enough, what it has waits for it."""


def plan_storage(seed: int, *, is_on_real_bookies: bool = False) -> Mapping[str, int]:
    """What holds for the whole run."""
    storages = _REAL_STORAGES if is_on_real_bookies else _STORAGES
    return random.Random(f"{seed}/cluster/storage").choice(storages)


def plan_cluster_cycle(
    seed: int,
    number: int,
    extra: Mapping[str, Any],
    only: Collection[Trouble] = (),
    *,
    is_on_real_bookies: bool = False,
) -> ClusterCycle:
    """The cycle of this number. `extra` settings win. `only`: no other troubles than these."""
    storage = plan_storage(seed, is_on_real_bookies=is_on_real_bookies)
    rng = random.Random(f"{seed}/cluster/{number}")
    settings = {key: rng.choice(values) for key, values in CHOICES.items()}
    kinds = list(KINDS)
    if is_on_real_bookies:
        kinds = [kind for kind in kinds if kind.trouble not in _NOT_ON_REAL_BOOKIES]
        kinds += _REAL_BOOKIE_KINDS
        settings = {k: v for k, v in settings.items() if not k.startswith("bookie")}
    elif storage["managedLedgerDefaultAckQuorum"] >= 2:
        kinds += _BOOKIE_KINDS
    if only:
        kinds = [kind for kind in kinds if kind.trouble in only]
    count = 1 if only else rng.choices((1, 2), (70, 30))[0]
    faults: list[Fault] = []
    while len(faults) < count:
        kind = rng.choices(kinds, [each.weight for each in kinds])[0]
        fault = Fault(
            kind.trouble,
            kind.role,
            0.0 if not faults else rng.uniform(0.0, rng.choice(_SECOND_AFTER_SECONDS)),
            rng.uniform(kind.shortest, kind.longest),
            rng.random(),
        )
        if all(_go_together(fault, other) for other in faults):
            faults.append(fault)
        if fault.trouble is Trouble.OLDER_METADATA and fault in faults:
            break  # it stops everything: there is nothing that a second one could meet
    return ClusterCycle(
        number,
        {**_ALWAYS, **storage, **settings, **extra},
        tuple(faults),
        rng.uniform(0.2, 0.8),
    )


def _go_together(one: Fault, other: Fault) -> bool:
    """Two faults of one process would be in each other's way."""
    if one.role is other.role:
        return False
    roles = {one.role, other.role}
    if Role.BOTH in roles and roles & {Role.OWNER, Role.OTHER}:
        return False
    troubles = {one.trouble, other.trouble}
    if Trouble.OLDER_METADATA in troubles:
        return False
    meets_broker = bool(roles & {Role.OWNER, Role.OTHER, Role.BOTH})
    return not (meets_broker and troubles & {Trouble.DISK_LOST, Trouble.BITS_FLIPPED})
