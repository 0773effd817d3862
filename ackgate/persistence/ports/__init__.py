"""The two ports of persistence: ledgers and the metadata store.

Every implementation passes the conformance suite of its port (`tests/conformance`). All methods are
called from one event loop; none of them blocks it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ackgate.config.persistence import PersistenceSettings


class DigestType(enum.Enum):
    """How entries are protected. BookKeeper's names. Our own bookies have the first two."""

    CRC32C = "CRC32C"
    """Against accidents: CRC32C over ledger id, entry id, last add confirmed and payload."""

    MAC = "MAC"
    """Against forgery: an HMAC keyed by the password. Ours is HMAC-SHA-256 cut to 20 bytes; BookKeeper's,
    which it calls HMAC, is HMAC-SHA-1."""

    CRC32 = "CRC32"
    """Against accidents: zlib's CRC-32."""

    DUMMY = "DUMMY"
    """No protection."""


class LedgerState(enum.Enum):
    """Life of a ledger. Changed only by compare-and-set on its metadata."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """How a ledger is stored. ``ensemble_size >= write_quorum >= ack_quorum >= 1``."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: PersistenceSettings, custom_metadata: Mapping[str, bytes] | None = None
    ) -> Self:
        """As the settings have it (`managedLedgerDefaultEnsembleSize` and its neighbours)."""
        return cls(
            ensemble_size=settings.managed_ledger_default_ensemble_size,
            write_quorum=settings.managed_ledger_default_write_quorum,
            ack_quorum=settings.managed_ledger_default_ack_quorum,
            digest_type=DigestType(settings.managed_ledger_digest_type),
            password=settings.ledger_password,
            custom_metadata=custom_metadata or {},
        )


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from `first_entry_id` on (to the next fragment) lie on `ensemble`, in this order."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """What the metadata store knows of one ledger. No password, only a check value of it."""

    ledger_id: int
    state: LedgerState
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    fragments: tuple[Fragment, ...]
    last_entry_id: int
    """Last entry of a CLOSED ledger (-1: empty); meaningless otherwise."""
    length_bytes: int
    """Payload bytes of a CLOSED ledger."""
    created_ms: int
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)


class LedgerEntry(NamedTuple):
    """An entry as read back, its digest verified."""

    entry_id: int
    payload: bytes


class AppendTicket(NamedTuple):
    """Answer of `LedgerWriter.append`: ids are known at once, durability later."""

    first_entry_id: int
    durable: asyncio.Future[None]
    """Done when every entry of this append, and all before it, reached the ack quorum and is synced.
    Fails with `LedgerFencedError`, `LedgerWriteError` or `ClosedHandleError`."""


class LedgerReader(Protocol):
    """A ledger opened for reading."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry known to be confirmed, -1 when there is none."""

    @property
    def length_bytes(self) -> int:
        """Payload bytes up to `last_add_confirmed`, as far as known."""

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """Entries first..last, both included, in order.

        Raises `NoSuchEntryError` (beyond the last add confirmed, or no copy left),
        `DigestMismatchError` (every copy is bad) or `StorageError`.
        """

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies again; a reader that did not recover may learn of later entries."""

    async def close(self) -> None: ...


class UnrecoveredReader(LedgerReader, Protocol):
    """A ledger opened beside its writer, or after its writer's death, without recovery."""

    async def last_entry_found(self) -> int:
        """The highest entry that bookies hold without a gap: where a recovery would end now."""

    async def read_unconfirmed(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """As `read`, but up to `last_entry_found`. BookKeeper's readUnconfirmedEntries.

        What lies beyond the last add confirmed may be durable, only no later entry says so yet.
        """


class LedgerWriter(LedgerReader, Protocol):
    """The one writer of an open ledger; it can read what it has written."""

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        """Add entries; ids are given in order. Never blocks; does not copy the payloads.

        Raises `ClosedHandleError`, `LedgerFencedError`, `LedgerWriteError` at once when the handle
        is no longer writable, `CallerError` for an entry above the size limit (then nothing is
        added).
        """

    async def add_entry(self, payload: bytes) -> int:
        """BookKeeper's addEntry: wait for room, add, wait for durability. Returns the entry id."""

    @property
    def has_room(self) -> bool:
        """Whether adds in flight are below the bound.

        `append` works regardless; a polite caller waits.
        """

    async def wait_for_room(self) -> None:
        """Return when adds in flight are below the bound."""

    async def release(self) -> None:
        """Wait for adds in flight, then let go: the ledger is deleted next, and need not be closed."""


class LedgerClient(Protocol):
    """Makes, opens and deletes ledgers; the verbs are those of BookKeeper's client API."""

    async def create(self, options: LedgerOptions) -> LedgerWriter:
        """Begin a ledger with an id of its own.

        Raises `NotEnoughBookiesError`, `ConfigurationError` for impossible quorums.
        """

    async def open(self, ledger_id: int, *, password: bytes = b"") -> LedgerReader:
        """Fence, recover to the last confirmed entry, close. Raises `NoSuchLedgerError`."""

    async def open_without_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> UnrecoveredReader:
        """Read beside a writer that goes on writing. Changes nothing."""

    async def delete(self, ledger_id: int) -> None:
        """Remove metadata, then files. Raises `NoSuchLedgerError`."""

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store knows of a ledger now. Raises `NoSuchLedgerError`."""

    async def is_empty(self, ledger_id: int) -> bool:
        """Whether surely no bookie holds an entry of it. Raises `NoSuchLedgerError`, `StorageError`."""

    async def announce_deletion(self, ledger_ids: Iterable[int]) -> None:
        """Write into the ledgers' own metadata that they are about to be deleted.

        Their owner removes them from its node only after that: so the ledger itself proves that it was
        given up. Ledgers that do not exist are passed over. Raises `StorageError`.
        """

    async def ledger_ids(self) -> list[int]:
        """Ids of all ledgers, ascending; on a BookKeeper cluster only of those with this client's marks."""

    async def close(self) -> None: ...


class NodeValue(NamedTuple):
    """A metadata node as read."""

    value: bytes
    version: int
    """Compare-and-set number: 0 when created, +1 with every put."""
    created_ms: int
    modified_ms: int
    is_ephemeral: bool


class SessionState(enum.Enum):
    """State of the session to the metadata store.

    ::

        CONNECTED <----> SUSPENDED --time-out--> LOST --renew()--> CONNECTED
             `------------------set by the server-----^
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """Out of touch; the session may yet live. Wait, do not write."""
    LOST = "lost"
    """It has expired, or must be assumed to have: its ephemeral nodes and all ownership are over."""


class WatchKind(enum.Enum):
    """What happened to a watched path or below it."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class WatchEvent(NamedTuple):
    """One change. Watches are persistent and recursive: one per subtree, until cancelled."""

    kind: WatchKind
    path: str


class MetadataStore(Protocol):
    """A tree of small versioned nodes; ZooKeeper's model. Paths are absolute, no trailing slash.

    Every call may also raise `StoreSuspendedError` (out of touch, and for longer than the call was
    willing to wait: nothing was done), `SessionLostError` (until `renew`), and a call that writes
    `OutcomeUnknownError` (the connection broke while it was under way: it was done, or was not).
    """

    @property
    def node_bytes_max(self) -> int:
        """Size guard: a larger value is refused on our side with `NodeTooLargeError`."""

    @property
    def session_state(self) -> SessionState: ...

    @property
    def lease_until(self) -> float:
        """By the loop's clock: until then the session surely lives; infinite if it cannot expire.

        Nobody else can own what our ephemeral nodes name before that. It moves on by itself while
        the session is in touch; after a long stop of the process it lies in the past, until a call
        has been answered.
        """

    async def get(self, path: str) -> NodeValue | None:
        """The node, or None when it does not exist."""

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        """Write and return the new version.

        `expected_version` None = whatever is there (creates if absent, parents too); -1 = must not
        exist; else `MetadataConflictError` on any other version.
        """

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Create a node, with parents as needed. Raises `NodeExistsError`.

        An ephemeral node ends with the session.
        """

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """Delete a node. Raises `NoSuchNodeError`, `MetadataConflictError`.

        A node with children is a `CallerError`.
        """

    async def children(self, path: str) -> list[str]:
        """Names (not paths) of the children, sorted; empty when the node does not exist."""

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """Call `on_event` on the loop for every change at or below `path`. Returns the cancel.

        Changes in quick succession, or while the session was suspended, may be reported as one.
        Every change is reported that comes after the first read at or below the path made after
        this call. When the session is lost its watches end.
        """

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `on_change` on the loop at every change of session state. Returns the cancel."""

    async def renew(self) -> None:
        """Begin a new session in place of a lost one; what the lost one owned stays lost.

        Does nothing while the session lives. Raises `MetadataStoreError` when there is no new one to
        be had now; then try again.
        """

    async def close(self) -> None:
        """End the session; its ephemeral nodes go."""
