"""The ledgers a broker runs on: bookies that are directories, or a BookKeeper cluster.

Edge. `bookkeeperMetadataServiceUri` decides it, here and nowhere else. What a broker does for its own
bookies, those of a cluster do for themselves, by BookKeeper's means:

    what                      directories                          a BookKeeper cluster
    missing, damaged copies   our auditor                          AutoRecovery
    files of deleted ledgers  deleted with the ledger              the bookies' garbage collection
    a full disk               messages are rejected (`DiskSpace`)  the bookie becomes read-only
    whose ledgers             a mark in each directory             marks in each ledger's metadata
    metadata older than they  ids and runs that bookies have seen  runs that later ledgers name
    ledgers without a name    `orphans`                            `orphans`, of our marks only

A metadata store names ledgers of one of the two, and remembers which (`BOOKKEEPER_PATH`): ledger ids of one
mean something else, or nothing, in the other.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.errors import AckGateError, ConfigurationError, NotEnoughBookiesError
from ackgate.extras import named_extras
from ackgate.persistence.bookies.settings import bookie_settings, ledger_client_settings
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.persistence.ledgers.metadata_check import (
    WAY_BACK,
    claim,
    cluster_of,
    known_cluster,
    refuse_known_ledgers,
    refuse_older_metadata,
    remember_run,
    runs_counted,
)
from ackgate.persistence.ledgers.opening import BookieOpener, open_usable_bookies
from ackgate.persistence.nodes.changes import count_up, read_or_create
from ackgate.persistence.nodes.unnamed_ledgers import (
    BOOKKEEPER_PATH,
    CLUSTER_KEY,
    MAKER_KEY,
    RUN_COUNTER_PATH,
    refuse_bookkeeper,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookkeeper import BookKeeperClient
    from ackgate.persistence.ports import LedgerClient, MetadataStore

log = logging.getLogger(__name__)

STARTS_AT_ONCE_MAX: Final = 1_000
"""Brokers that may start at the same time on one metadata store."""

BOOKIES_SECONDS_MAX: Final = 20.0
"""How long a start waits for as many bookies as a ledger needs."""

BOOKIES_LOOK_SECONDS: Final = 0.5

_APPLICATION: Final = {"application": b"ackgate"}

COUNTED_PATH: Final = "/ackgate/ledgers-counted"
"""An id: every ledger below it was made by a run that the metadata store has counted. A backup
holds it together with the counter of runs, so ledgers of runs that a restored store does not know
have this id or a later one."""

COUNTED_SECONDS: Final = 3_600.0
"""Time between two writes of `COUNTED_PATH`. A start checks only the ledgers made since the last
one."""

_STRANGERS_LOOKED_AT: Final = 1_000
"""How many of the latest ledgers a new metadata store looks at, to warn of other clusters'
ledgers."""


class LedgerStorage(Protocol):
    """What a broker needs of its ledger storage, directories or a cluster."""

    @property
    def client(self) -> LedgerClient:
        """Makes, opens and deletes ledgers. The storage closes it."""

    @property
    def run(self) -> int:
        """Number of this start, unique on the metadata store. It marks the ledgers made since."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what every broker on the metadata store must reach."""

    async def ledgers_so_far(self) -> Callable[[], Awaitable[list[int]]]:
        """Note which of our ledgers exist now.

        The returned function lists those that still exist.
        """

    def make_up(self) -> Iterator[Awaitable[object]]:
        """Carry on work that was put off while the disk was full."""

    async def mend(self) -> None:
        """Repair what a start can repair; called once after it."""

    async def upkeep(self) -> None:
        """Update the figures for the metrics, and notes for a later start. Called periodically."""


async def open_ledger_storage(
    settings: PersistenceSettings, data_directory: Path, metadata: MetadataStore
) -> LedgerStorage:
    """Open the storage that the settings ask for. Raises `ConfigurationError`, `StorageError`.

    An error is one line, and leaves nothing open.
    """
    if settings.is_on_bookkeeper:
        return await ClusterStorage.open(settings, metadata)
    return await DirectoryStorage.open(settings, data_directory, metadata)


class DirectoryStorage:
    """Bookies that are directories of this broker. Implements `LedgerStorage`."""

    def __init__(self, client: BookieLedgerClient, run: int) -> None:
        self.client = client
        self.run = run
        self.names = tuple(bookie.bookie_id for bookie in client.bookies)

    @classmethod
    async def open(
        cls, settings: PersistenceSettings, data_directory: Path, metadata: MetadataStore
    ) -> DirectoryStorage:
        await refuse_bookkeeper(metadata)
        opener = BookieOpener(settings=bookie_settings(settings))
        cluster = await known_cluster(metadata)
        if cluster is not None:
            opener.admit = partial(claim, cluster=cluster)
        bookies, absent = await open_usable_bookies(
            settings.bookie_paths(data_directory),
            opener,
            least=settings.managed_ledger_default_write_quorum,
        )
        try:
            await _refuse_lost_metadata(metadata, bookies)
            if cluster is None:
                cluster = await cluster_of(metadata)
                await asyncio.gather(*(claim(bookie, cluster) for bookie in bookies))
            await refuse_older_metadata(metadata, bookies, counter_path=RUN_COUNTER_PATH)

            async def admit(bookie: Bookie) -> None:
                await claim(bookie, cluster)
                await refuse_older_metadata(metadata, [bookie], counter_path=RUN_COUNTER_PATH)

            opener.admit = admit
            run = await _count_run(metadata)
            await remember_run(metadata, bookies, run)
        except BaseException:
            await BookieLedgerClient(bookies, metadata, absent=absent).close()
            raise
        client = BookieLedgerClient(
            bookies,
            metadata,
            settings=ledger_client_settings(settings),
            absent=absent,
            marks={MAKER_KEY: str(run).encode()},
            run=run,
        )
        return cls(client, run)

    async def ledgers_so_far(self) -> Callable[[], Awaitable[list[int]]]:
        ledger_ids = await self.client.ledger_ids()

        async def those() -> list[int]:
            return ledger_ids

        return those

    def make_up(self) -> Iterator[Awaitable[object]]:
        for bookie in self.client.bookies:
            yield bookie.make_up()

    async def mend(self) -> None:
        await self.client.keep_origins()

    async def upkeep(self) -> None:
        """Nothing to do: bookies of this process count, and note what they see, by themselves."""


class ClusterStorage:
    """A BookKeeper cluster. Implements `LedgerStorage`."""

    def __init__(self, client: BookKeeperClient, metadata: MetadataStore, run: int) -> None:
        self.client = client
        self.run = run
        self.names = (f"of BookKeeper cluster {client.instance_id}",)
        self.bookies_writable = 0
        self.bookies_known = 0
        self._metadata = metadata
        self._counted_at = -math.inf
        """When `COUNTED_PATH` was last written, by the loop's clock."""

    @classmethod
    async def open(cls, settings: PersistenceSettings, metadata: MetadataStore) -> ClusterStorage:
        with named_extras("bookkeeper"):
            from ackgate.persistence.bookkeeper import (  # noqa: PLC0415  only where it is wanted
                BookKeeperClient,
            )
        await _refuse_directories(metadata)
        is_new = await known_cluster(metadata) is None
        cluster = await cluster_of(metadata)
        uri = settings.bookkeeper_metadata_service_uri
        client = await BookKeeperClient.connect_with(
            settings, marks={**_APPLICATION, CLUSTER_KEY: cluster.encode()}
        )
        try:
            instance = await read_or_create(metadata, BOOKKEEPER_PATH, client.instance_id.encode)
            _check_instance(instance.decode(errors="replace"), client.instance_id, uri)
            await _check_bookies(client, uri, settings.managed_ledger_default_ensemble_size)
            if is_new:
                await _warn_of_strangers(client)
            else:
                await _refuse_older_than_ledgers(client, metadata)
            run = await _count_run(metadata)
        except BaseException:
            await client.close()
            raise
        client.stamp({MAKER_KEY: str(run).encode()})
        storage = cls(client, metadata, run)
        await storage.upkeep()
        log.info(
            "ledgers lie on the BookKeeper cluster %s at %s, %d of its %d bookies are writable; bookies look"
            " after themselves: its AutoRecovery after copies, its garbage collection after deleted ledgers,"
            " its disk thresholds after full disks",
            client.instance_id,
            uri,
            storage.bookies_writable,
            storage.bookies_known,
        )
        return storage

    async def ledgers_so_far(self) -> Callable[[], Awaitable[list[int]]]:
        bound = await self.client.new_ledger_id()  # later ledgers have a higher one

        async def those() -> list[int]:
            return [i for i in await self.client.ledger_ids() if i < bound]

        return those

    def make_up(self) -> Iterator[Awaitable[object]]:
        yield from ()

    async def mend(self) -> None:
        """Nothing to do: only a ledger's own metadata say what it is for."""

    async def upkeep(self) -> None:
        states = [bookie.state.value for bookie in await self.client.bookies()]
        self.bookies_writable, self.bookies_known = states.count("writable"), len(states)
        now = asyncio.get_running_loop().time()
        if now >= self._counted_at + COUNTED_SECONDS:
            # The id is taken first: runs that have made ledgers below it were counted before that.
            bound = await self.client.new_ledger_id()
            await self._metadata.put(COUNTED_PATH, str(bound).encode(), expected_version=None)
            self._counted_at = now


async def _count_run(metadata: MetadataStore) -> int:
    return await count_up(metadata, RUN_COUNTER_PATH, first=0, attempts_max=STARTS_AT_ONCE_MAX)


async def _refuse_lost_metadata(metadata: MetadataStore, bookies: list[Bookie]) -> None:
    if await metadata.get(RUN_COUNTER_PATH) is not None:
        return
    try:
        await refuse_known_ledgers(bookies)
    except AckGateError:
        if await metadata.get(RUN_COUNTER_PATH) is None:
            raise  # else another broker has begun at the same time as this one


async def _refuse_directories(metadata: MetadataStore) -> None:
    """Raise `ConfigurationError` if the ledgers of this metadata store lie in directories.

    A cluster's node is written before the counter of runs. So a store with a counter and no node is
    one of directories.
    """
    has_counted = await metadata.get(RUN_COUNTER_PATH) is not None
    if has_counted and await metadata.get(BOOKKEEPER_PATH) is None:
        raise ConfigurationError(
            "bookkeeperMetadataServiceUri: the ledgers of this metadata store lie in directories"
            " (bookieDirectories); a BookKeeper cluster needs a metadata store, or a root in ZooKeeper, of"
            " its own"
        )


def _check_instance(remembered: str, found: str, uri: str) -> None:
    if remembered != found:
        raise ConfigurationError(
            f"bookkeeperMetadataServiceUri={uri}: this is the cluster {found}, and the ledgers of this"
            f" metadata store lie on {remembered}"
        )


async def _check_bookies(client: BookKeeperClient, uri: str, ensemble_size: int) -> None:
    """Wait until enough bookies are writable: after a power cut everything starts at once."""
    wanted = f"managedLedgerDefaultEnsembleSize is {ensemble_size}"
    deadline = asyncio.get_running_loop().time() + BOOKIES_SECONDS_MAX
    is_logged = False
    while True:
        bookies = await client.bookies()
        if len(bookies) < ensemble_size:
            raise ConfigurationError(f"{uri}: a cluster of {len(bookies)} bookies, and {wanted}")
        missing = [each for each in bookies if each.state.value != "writable"]
        writable = len(bookies) - len(missing)
        if writable >= ensemble_size:
            return
        named = ", ".join(f"{each.bookie_id} is {each.state.value}" for each in missing)
        problem = f"{uri}: {writable} bookies are writable, and {wanted}: {named}"
        if asyncio.get_running_loop().time() >= deadline:
            raise NotEnoughBookiesError(problem)
        if not is_logged:
            log.warning("waiting for bookies, for %g s at most: %s", BOOKIES_SECONDS_MAX, problem)
            is_logged = True
        await asyncio.sleep(BOOKIES_LOOK_SECONDS)


async def _warn_of_strangers(client: BookKeeperClient) -> None:
    newest = await client.newest_marks(_STRANGERS_LOOKED_AT)
    strangers = {custom[CLUSTER_KEY] for _, custom, _ in newest if CLUSTER_KEY in custom}
    if strangers:
        log.warning(
            "this metadata store is new, and the BookKeeper cluster holds ledgers of %d other clusters of"
            " ackgate: if it is theirs and was lost, stop, and restore it from a backup",
            len(strangers),
        )


async def _refuse_older_than_ledgers(client: BookKeeperClient, metadata: MetadataStore) -> None:
    """Raise `ConfigurationError` if a ledger names a run that the metadata store has not counted.

    Then the metadata are older than the ledgers: they were restored from a backup.
    """
    stored = await metadata.get(COUNTED_PATH)
    bound = int(stored.value) if stored is not None and stored.value.isdigit() else 0
    marks = await client.marks_since(bound)
    runs = {int(custom[MAKER_KEY]): i for i, custom, is_ours in marks if is_ours}
    counted = await runs_counted(metadata, RUN_COUNTER_PATH)
    if runs and max(runs) > counted:
        raise ConfigurationError(
            f"the metadata store is older than its ledgers: it has counted runs up to {counted}, ledger"
            f" {runs[max(runs)]} on the BookKeeper cluster was made by run {max(runs)}: {WAY_BACK}"
        )
