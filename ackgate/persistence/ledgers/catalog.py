"""Ledger metadata in the metadata store, and the ids of new ledgers.

Edge: over the `MetadataStore` port. One node per ledger (``/ledgers/<id>``), a small JSON object
that `zkCli get` shows as it is; changed by compare-and-set only. ``/ledgers/idgen`` holds the next
free id.

Ids ascend in the order in which ledgers are created, across all clients of one store, since a topic
orders its messages by ledger id, whichever broker wrote them. They are still taken in blocks: a
block's remaining ids are used only while no other block was taken since, which costs a read
instead of a write, and one read serves all who were waiting for an id when it began.

A ledger's password is never stored, only a salted check value of it. The key that protects entries
(digest type MAC) comes from the password and the same salt; the check value comes from the key, so that
the one cannot be had from the other. There is no slow key stretching: every MAC'ed entry lets a guess
be tried at the price of one HMAC anyway. The password has to be a secret worth the name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.errors import (
    CorruptRecordError,
    DigestMismatchError,
    LedgerGivenUpError,
    NoSuchLedgerError,
    NoSuchNodeError,
)
from ackgate.persistence.bookies.entry_codec import CrcDigest, MacDigest
from ackgate.persistence.nodes.changes import (
    change_node,
    delete_node,
    put_unique,
    until_won,
)
from ackgate.persistence.nodes.paths import LEDGERS, ledger_path
from ackgate.persistence.nodes.unnamed_ledgers import DELETION_KEY
from ackgate.persistence.ports import DigestType, Fragment, LedgerMetadata, LedgerState
from ackgate.persistence.ports.node_rules import MUST_NOT_EXIST
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.bookies.entry_codec import Digest
    from ackgate.persistence.ports import MetadataStore


SALT_BYTES: Final = 16
_CHECK_BYTES: Final = 16


class PasswordCheck(NamedTuple):
    """What is stored in a password's place."""

    salt: bytes
    check: bytes

    @classmethod
    def of(cls, password: bytes, random_bytes: Callable[[int], bytes]) -> PasswordCheck:
        """A check value for a new ledger."""
        salt = random_bytes(SALT_BYTES)
        return cls(salt, _check(_key(password, salt)))

    def digest(self, ledger_id: int, digest_type: DigestType, password: bytes) -> Digest:
        """The digest of the ledger's entries. Raises `DigestMismatchError` for a wrong password."""
        key = _key(password, self.salt)
        if not hmac.compare_digest(_check(key), self.check):
            raise DigestMismatchError(
                f"ledger {ledger_id}: the password is not the one it was created with"
            )
        return MacDigest(key) if digest_type is DigestType.MAC else CrcDigest()


def _key(password: bytes, salt: bytes) -> bytes:
    return hmac.digest(password, b"ackgate ledger key" + salt, "sha256")


def _check(key: bytes) -> bytes:
    return hmac.digest(key, b"ackgate ledger check", "sha256")[:_CHECK_BYTES]


_FORMAT: Final = 1
_ID_NODE: Final = f"{LEDGERS}/idgen"
_ID_BLOCK: Final = 100
_FIRST_ID: Final = 1
"""Not 0: to some clients of Pulsar's protocol a 0 means "no ledger"."""

_ATTEMPTS_MAX: Final = 100
"""Lost races for a block of ids before giving up: as many brokers, each faster than us, in a row."""

_ANNOUNCEMENTS_MAX: Final = 100
"""Races with auditors and recoveries lost in a row: more than there are."""

GIVEN_UP_KEY: Final = "ackgate/given-up"
"""Custom metadata of a ledger that was deleted, as long as some of its files may be there."""


class CatalogEntry(NamedTuple):
    """A ledger's metadata with what only this package needs of it."""

    metadata: LedgerMetadata
    password: PasswordCheck
    version: int
    """For compare-and-set."""


class LedgerCatalog:
    """All ledgers of one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next_id = 0
        self._stop_id = 0
        self._id_version = -1
        self._asking: list[asyncio.Future[int]] = []
        """Calls that wait for an id, first come first."""
        self._giving: asyncio.Task[None] | None = None

    async def read(self, ledger_id: int) -> CatalogEntry:
        node = await self._store.get(ledger_path(ledger_id))
        if node is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        metadata, password = decode_metadata(ledger_id, node.value)
        if GIVEN_UP_KEY in metadata.custom_metadata:
            raise LedgerGivenUpError(f"ledger {ledger_id} was deleted; its files still go")
        return CatalogEntry(metadata, password, node.version)

    async def exists(self, ledger_id: int) -> bool:
        """Whether the ledger has metadata, and was not given up."""
        try:
            await self.read(ledger_id)
        except NoSuchLedgerError:
            return False
        except CorruptRecordError:
            return True
        return True

    async def give_up(self, ledger_id: int) -> tuple[str, ...]:
        """Mark the ledger as deleted: from now on no process reads it, and its files may be removed.

        Returns the bookies that it names. Raises `NoSuchLedgerError`. Twice is fine.
        """
        bookies: set[str] = set()

        def give_up(value: bytes | None) -> bytes | None:
            bookies.clear()
            if value is None:
                raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
            try:
                metadata, password = decode_metadata(ledger_id, value)
            except CorruptRecordError:
                return None  # no process reads it in this state
            bookies.update(each for f in metadata.fragments for each in f.ensemble)
            if GIVEN_UP_KEY in metadata.custom_metadata:
                return None
            custom = {**metadata.custom_metadata, GIVEN_UP_KEY: b"1"}
            return encode_metadata(replace(metadata, custom_metadata=custom), password)

        try:
            await change_node(self._store, ledger_path(ledger_id), give_up)
        except NoSuchNodeError:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from None
        return tuple(sorted(bookies))

    async def announce_deletion(self, ledger_id: int) -> None:
        """Its owner's node will name the ledger no more. Nothing, if there is no such ledger."""

        def announce(value: bytes | None) -> bytes | None:
            if value is None:
                return None
            metadata, password = decode_metadata(ledger_id, value)
            if DELETION_KEY in metadata.custom_metadata:
                return None
            custom = {**metadata.custom_metadata, DELETION_KEY: b"1"}
            return encode_metadata(replace(metadata, custom_metadata=custom), password)

        with contextlib.suppress(NoSuchNodeError):
            await change_node(
                self._store, ledger_path(ledger_id), announce, attempts_max=_ANNOUNCEMENTS_MAX
            )

    async def create(
        self, metadata: LedgerMetadata, password: PasswordCheck, encoded: bytes | None = None
    ) -> CatalogEntry:
        """Write the metadata of a new ledger, whose id comes from `new_id`.

        `encoded`: the two by `encode_metadata`, if the caller has that. Raises `MetadataConflictError`
        if there is a ledger of this id.
        """
        value = encode_metadata(metadata, password) if encoded is None else encoded
        version = await self._write(metadata.ledger_id, value, replaces=None, version=-1)
        return CatalogEntry(metadata, password, version)

    async def replace(self, entry: CatalogEntry, metadata: LedgerMetadata) -> CatalogEntry:
        """Write changed metadata. Raises `MetadataConflictError`, `NoSuchLedgerError`."""
        value = encode_metadata(metadata, entry.password)
        replaces = encode_metadata(entry.metadata, entry.password)
        version = await self._write(
            metadata.ledger_id, value, replaces=replaces, version=entry.version
        )
        return CatalogEntry(metadata, entry.password, version)

    async def _write(
        self, ledger_id: int, value: bytes, *, replaces: bytes | None, version: int
    ) -> int:
        try:
            return await put_unique(
                self._store, ledger_path(ledger_id), value, replaces=replaces, version=version
            )
        except NoSuchNodeError:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from None

    async def remove(self, ledger_id: int) -> None:
        try:
            await delete_node(self._store, ledger_path(ledger_id))
        except NoSuchNodeError:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from None

    async def ledger_ids(self) -> list[int]:
        names = await self._store.children(LEDGERS)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    @property
    def issued_below(self) -> int:
        """Every id that this client has given out is lower."""
        return self._stop_id

    async def next_id(self) -> int:
        """The store's counter: higher than every id handed out. Raises `CorruptRecordError`."""
        node = await self._store.get(_ID_NODE)
        return _decode_id(node.value) if node is not None else _FIRST_ID

    async def new_id(self) -> int:
        """An id above every id handed out before."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[int] = loop.create_future()
        self._asking.append(waiting)
        if self._giving is None:
            self._giving = loop.create_task(self._give_ids())
        return await waiting

    async def _give_ids(self) -> None:
        """One look at the store serves all who asked before it, as far as the block goes."""
        asked: list[asyncio.Future[int]] = []
        try:
            while self._asking:
                asked, self._asking = self._asking, []
                try:
                    if not await self._owns_block():
                        await self._take_block(len(asked))
                except Exception as error:  # noqa: BLE001 - it goes to the callers
                    for waiting in asked:
                        fail(waiting, error)
                    continue
                ids = range(self._next_id, min(self._next_id + len(asked), self._stop_id))
                for waiting, ledger_id in zip(asked, ids, strict=False):
                    resolve(waiting, ledger_id)
                self._next_id = ids.stop
                self._asking[:0] = asked[len(ids) :]
        finally:
            self._giving = None
            for waiting in asked + self._asking:
                waiting.cancel()

    async def _owns_block(self) -> bool:
        if self._next_id >= self._stop_id:
            return False
        node = await self._store.get(_ID_NODE)
        return node is not None and node.version == self._id_version

    async def _take_block(self, ids_min: int) -> None:
        async def attempt() -> None:  # a block that was taken by a lost answer stays unused
            node = await self._store.get(_ID_NODE)
            start = _FIRST_ID if node is None else _decode_id(node.value)
            version = MUST_NOT_EXIST if node is None else node.version
            stop = start + max(_ID_BLOCK, ids_min)
            self._id_version = await self._store.put(
                _ID_NODE, str(stop).encode(), expected_version=version
            )
            self._next_id, self._stop_id = start, stop

        await until_won(attempt, of=_ID_NODE, attempts_max=_ATTEMPTS_MAX)


def _decode_id(value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise CorruptRecordError(f"{_ID_NODE}: not a ledger id: {value[:40]!r}")
    return int(value)


def encode_metadata(metadata: LedgerMetadata, password: PasswordCheck) -> bytes:
    """Encode metadata as the value of a ledger's node."""
    return json.dumps(
        {
            "format": _FORMAT,
            "state": metadata.state.value,
            "ensemble_size": metadata.ensemble_size,
            "write_quorum": metadata.write_quorum,
            "ack_quorum": metadata.ack_quorum,
            "digest_type": metadata.digest_type.value,
            "fragments": [[f.first_entry_id, list(f.ensemble)] for f in metadata.fragments],
            "last_entry_id": metadata.last_entry_id,
            "length_bytes": metadata.length_bytes,
            "created_ms": metadata.created_ms,
            "custom": {
                key: base64.b64encode(value).decode()
                for key, value in metadata.custom_metadata.items()
            },
            "salt": password.salt.hex(),
            "check": password.check.hex(),
        },
        separators=(",", ":"),
    ).encode()


def decode_metadata(ledger_id: int, value: bytes) -> tuple[LedgerMetadata, PasswordCheck]:
    """Decode the value of a ledger's node. Raises `CorruptRecordError` naming the ledger."""
    try:
        fields: dict[str, Any] = json.loads(value)
        found = fields["format"]
        if found != _FORMAT:
            raise CorruptRecordError(
                f"ledger {ledger_id}: metadata of format {found!r}; this version reads {_FORMAT}"
            )
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState(fields["state"]),
            ensemble_size=int(fields["ensemble_size"]),
            write_quorum=int(fields["write_quorum"]),
            ack_quorum=int(fields["ack_quorum"]),
            digest_type=DigestType(fields["digest_type"]),
            fragments=tuple(
                Fragment(int(first), tuple(str(bookie) for bookie in ensemble))
                for first, ensemble in fields["fragments"]
            ),
            last_entry_id=int(fields["last_entry_id"]),
            length_bytes=int(fields["length_bytes"]),
            created_ms=int(fields["created_ms"]),
            custom_metadata={
                str(key): base64.b64decode(text, validate=True)
                for key, text in fields["custom"].items()
            },
        )
        password = PasswordCheck(bytes.fromhex(fields["salt"]), bytes.fromhex(fields["check"]))
        _check_shape(metadata)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"ledger {ledger_id}: damaged metadata: {error!r}") from None
    return metadata, password


def _check_shape(metadata: LedgerMetadata) -> None:
    size = metadata.ensemble_size
    if not size >= metadata.write_quorum >= metadata.ack_quorum >= 1:
        raise ValueError("impossible quorum")
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ValueError(f"fragments begin at {firsts}")
    if any(len(fragment.ensemble) != size for fragment in metadata.fragments):
        raise ValueError("an ensemble is not of the ensemble's size")
