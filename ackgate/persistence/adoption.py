"""Puts ledgers that the metadata have forgotten back under their topics and cursors.

Edge: metadata and bookies, while no broker runs. What a ledger is, its bookies know (`bookies/register`):
its metadata node as it was when the ledger was begun, with the path of the topic or cursor it was made for.

    found                                     what is done
    messages that no node names               a node for the ledger; its topic names it, in the order of ids
    a cursor's state, later than its node's   a node for the ledger; the cursor's node points at it
    an earlier state of that cursor           a node that gives the ledger up: the next broker deletes it
    an index of delayed messages              the same: it is rebuilt from the messages
    a delivery journal's events               a node for the ledger; the journal names it
    any other                                 a node for the ledger
    a closed ledger of a topic, of which      its topic stops naming it: it was consumed and deleted after
      no bookie has anything                  the metadata were copied

A topic that gets messages back gets a subscription `ackgate-adopted` at the first of them. Of the
subscriptions that it had, those whose state was in the metadata alone are forgotten with it, and messages
that no subscription waits for are deleted.

The counters of ledger ids and runs are raised last, to what the bookies have seen: until then a broker
refuses to start, so an interrupted adoption is run again. Owners' epochs are raised to the highest of any
adopted ledger, so that later writes are newer than all earlier ones.

On a BookKeeper cluster ledgers have nodes of their own, in BookKeeper's metadata, whose custom metadata say
the same. There nothing is made or given up; what is found is named again. A cursor whose node is gone is
put back, too.

What only the metadata held does not come back: policies, schemas, properties, and acks since the copy
that are in no cursor ledger. Those messages are delivered again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import ConfigurationError, CorruptRecordError, NoSuchLedgerError
from ackgate.persistence.bookies.register import Mark
from ackgate.persistence.buckets.snapshots import DELAYED_CURSOR_KEY
from ackgate.persistence.cursors.ledger import CURSOR_PATH_KEY, OWNER_EPOCH_KEY
from ackgate.persistence.cursors.node import (
    CursorNode,
    decode_cursor_node,
    encode_cursor_node,
    ledgers_of_cursor,
)
from ackgate.persistence.cursors.opening import CursorOpening
from ackgate.persistence.deliveries.node import (
    JOURNAL_PATH_KEY,
    DeliveryJournalNode,
    JournalLedgerRecord,
    decode_journal_node,
    encode_journal_node,
    ledgers_of_journal,
)
from ackgate.persistence.ledger_owner import is_given_up, owner_of
from ackgate.persistence.ledgers.catalog import LedgerCatalog, decode_metadata, encode_metadata
from ackgate.persistence.ledgers.client import wall_clock_ms
from ackgate.persistence.ledgers.metadata_check import CLUSTER_PATH, known_cluster, runs_counted
from ackgate.persistence.nodes.changes import change_node
from ackgate.persistence.nodes.owner_nodes import BROKERS
from ackgate.persistence.nodes.paths import (
    EMBEDDED_NAMESPACE,
    LEDGERS,
    MANAGED_LEDGERS,
    cursor_path,
    ledger_path,
    name_of_node,
    topic_path,
)
from ackgate.persistence.nodes.topic_node import (
    TOPIC_PATH_KEY,
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
    ledgers_of_topic,
)
from ackgate.persistence.nodes.unnamed_ledgers import (
    ADOPTED_KEY,
    BOOKKEEPER_PATH,
    CLUSTER_KEY,
    DELETION_KEY,
    MAKER_KEY,
    OPENINGS_PATH,
    RUN_COUNTER_PATH,
)
from ackgate.persistence.ports import LedgerState
from ackgate.persistence.records.limits import packing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.persistence.bookkeeper import BookKeeperClient
    from ackgate.persistence.ledgers.catalog import PasswordCheck
    from ackgate.persistence.offline_storage import OfflineStorage, OpenedStorage, StoragePlaces
    from ackgate.persistence.ports import LedgerMetadata, MetadataStore

HOLDING_SUBSCRIPTION: Final = "ackgate-adopted"
"""Keeps the messages that a topic got back, until an operator deletes it."""

_TOPIC_DEPTH: Final = 4
"""Tenant, namespace, domain, topic."""


class Forgotten(NamedTuple):
    """A ledger to put back, or to take out of its topic."""

    ledger_id: int
    kind: str
    """Kind of its owner, as in `LedgerOwner.kind`."""
    owner: str
    """Name of its topic and cursor, for messages."""
    path: str
    """Path of the metadata node that is to name the ledger; empty: no node will."""
    what: str
    """What is done with it: `adopt`, `give up`, or `drop` from its topic."""
    metadata: LedgerMetadata | None
    password: PasswordCheck | None
    is_known: bool
    """Whether the ledger has a node of its own, and only its owner's node does not name it."""
    epoch: int = 0
    """Epoch of the owner that made the ledger."""


@dataclass(slots=True)
class AdoptionPlan:
    """What an adoption would do."""

    ledgers: list[Forgotten] = field(default_factory=list)
    unexplained: list[tuple[int, str]] = field(default_factory=list)
    """Ledgers that hold entries, or may, and are left as they are, and why."""
    mark: Mark = field(default_factory=Mark)
    """What the bookies have seen."""
    next_ledger_id: int = 0
    """Current value of the metadata store's counter of ledger ids."""
    runs: int = -1
    """Current value of the metadata store's counter of runs."""
    counter_path: str = RUN_COUNTER_PATH
    cluster: str | None = None
    """Name to give to a metadata store that has none: the one its bookies keep."""
    bookkeeper: str | None = None
    """The BookKeeper cluster that a metadata store does not know yet to have its ledgers."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        counted = self.next_ledger_id >= self.mark.next_ledger_id and self.runs >= self.mark.run
        is_known = self.cluster is None and self.bookkeeper is None
        return not self.ledgers and counted and is_known


async def plan_adoption(storage: OfflineStorage) -> AdoptionPlan:
    """Compare bookies and metadata; changes nothing.

    Raises `ConfigurationError` (a bookie is away, a broker runs), `StorageError`,
    `CorruptRecordError`.
    """
    return await _Look(storage).run()


class _Look:
    """Compares the metadata with what the bookies hold."""

    def __init__(self, storage: OfflineStorage) -> None:
        self._storage = storage
        self._metadata = storage.metadata
        self._client = storage.client
        self._catalog = LedgerCatalog(storage.metadata)
        self._plan = AdoptionPlan()
        self._stored: set[int] = set()
        self._unread: set[int] = set()
        """Ledgers that have files of which nothing can be read."""
        self._origins: dict[int, tuple[LedgerMetadata, PasswordCheck]] = {}
        self._not_gone: dict[int, str] = {}
        """Ledgers of which nothing can be read here, and that may not be gone all the same, and why."""

    async def run(self) -> AdoptionPlan:
        await _refuse_running_brokers(self._metadata, self._storage.places)
        if self._storage.left_out:
            away = "; ".join(f"{path}: {why}" for path, why in self._storage.left_out.items())
            raise ConfigurationError(f"all bookies must be here: {away}")
        await self._read_bookies()
        await self._read_counters()
        known = await self._catalog.ledger_ids()
        await self._look_at_unknown(set(known))
        for ledger_id in known:
            await self._look_at_known(ledger_id)
        await _look_for_gone(self._metadata, self._plan, self._stored, self._not_gone)
        _keep_newest_states(self._plan)
        return self._plan

    async def _read_bookies(self) -> None:
        plan = self._plan
        clusters = set()
        for bookie in self._client.bookies:
            plan.mark = plan.mark.with_(bookie.mark)
            kept = await bookie.ledger_ids() - await bookie.deleted_ledger_ids()
            readable = {i for i in kept if await bookie.last_entries(i)}
            self._stored |= readable
            self._unread |= kept - readable
            clusters.add(await bookie.cluster())
            for origin in await bookie.origins():
                try:
                    found = decode_metadata(origin.ledger_id, origin.metadata)
                except CorruptRecordError:
                    continue
                other = self._origins.get(origin.ledger_id)
                if other is None or len(other[0].fragments) < len(found[0].fragments):
                    self._origins[origin.ledger_id] = found
        plan.mark = plan.mark.with_(Mark(max(self._stored, default=-1) + 1))
        if await self._metadata.get(CLUSTER_PATH) is None:
            plan.cluster = next(iter(clusters - {None}), None)

    async def _read_counters(self) -> None:
        plan = self._plan
        embedded = topic_path(*EMBEDDED_NAMESPACE, "x").rpartition("/")[0]
        paths = [b"".join(about.custom_metadata.values()) for about, _ in self._origins.values()]
        is_embedded = any(embedded.encode() in path for path in paths)
        if await self._metadata.get(OPENINGS_PATH) is not None or is_embedded:
            plan.counter_path = OPENINGS_PATH
        plan.next_ledger_id = await self._catalog.next_id()
        plan.runs = await runs_counted(self._metadata, plan.counter_path)

    async def _look_at_unknown(self, known: set[int]) -> None:
        for ledger_id in sorted(self._stored - known):
            found = self._origins.get(ledger_id)
            if found is None:
                reason = "no bookie knows what it was: an earlier version made it"
                self._plan.unexplained.append((ledger_id, reason))
            else:
                _add(self._plan, *found, is_known=False)

    async def _look_at_known(self, ledger_id: int) -> None:
        try:
            entry = await self._catalog.read(ledger_id)
        except NoSuchLedgerError:
            return
        except CorruptRecordError as error:
            self._plan.unexplained.append((ledger_id, str(error)))
            return
        if ledger_id not in self._stored:
            self._note_if_not_gone(entry.metadata)
            return
        if await _is_named(self._metadata, entry.metadata):
            return
        if not await is_given_up(self._client, self._metadata, entry.metadata):
            _add(self._plan, entry.metadata, entry.password, is_known=True)

    def _note_if_not_gone(self, about: LedgerMetadata) -> None:
        here = {bookie.bookie_id for bookie in self._client.bookies}
        absent = {bookie for each in about.fragments for bookie in each.ensemble} - here
        if about.ledger_id in self._unread:
            self._not_gone[about.ledger_id] = "nothing of its files can be read"
        elif absent:
            why = f"it may lie on bookies that are not here: {', '.join(sorted(absent))}"
            self._not_gone[about.ledger_id] = why


def _add(
    plan: AdoptionPlan, about: LedgerMetadata, password: PasswordCheck | None, *, is_known: bool
) -> None:
    owner = owner_of(about)
    custom = about.custom_metadata
    epoch = int(custom.get(OWNER_EPOCH_KEY, b"0"))
    what = "give up" if DELAYED_CURSOR_KEY in custom else "adopt"
    path = next((custom[key].decode() for key in _OWNER_KEYS if key in custom), "")
    plan.ledgers.append(
        Forgotten(
            about.ledger_id,
            owner.kind,
            owner.text,
            path,
            what,
            about,
            password,
            is_known=is_known,
            epoch=epoch,
        )
    )


async def _is_named(metadata: MetadataStore, about: LedgerMetadata) -> bool:
    for key, names in _NAMES.items():
        path = about.custom_metadata.get(key)
        if path is None:
            continue
        found = await metadata.get(path.decode())
        return found is not None and about.ledger_id in names(found.value, path.decode())
    return True  # it needs no name


async def _look_for_gone(
    metadata: MetadataStore, plan: AdoptionPlan, stored: set[int], not_gone: Mapping[int, str]
) -> None:
    """Closed ledgers that topics name, and of which nothing is left anywhere."""
    for path in await _topics(metadata):
        found = await metadata.get(path)
        if found is None or not found.value:
            continue
        for record in decode_topic_node(found.value, path=path).ledgers:
            if not record.entry_count or record.ledger_id in stored:
                continue
            if record.ledger_id in not_gone:
                plan.unexplained.append((record.ledger_id, not_gone[record.ledger_id]))
                continue
            owner = path.removeprefix(MANAGED_LEDGERS).strip("/")
            plan.ledgers.append(
                Forgotten(
                    record.ledger_id, "message", owner, path, "drop", None, None, is_known=True
                )
            )


def _keep_newest_states(plan: AdoptionPlan) -> None:
    """Keep the newest forgotten ledger of each cursor; give up the older ones."""
    newest: dict[str, int] = {}
    for each in plan.ledgers:
        if each.kind == "cursor":
            newest[each.path] = max(each.ledger_id, newest.get(each.path, 0))
    plan.ledgers = [
        each._replace(what="give up")
        if each.kind == "cursor" and each.ledger_id != newest[each.path]
        else each
        for each in plan.ledgers
    ]
    plan.ledgers.sort()


async def plan_cluster_adoption(
    metadata: MetadataStore,
    client: BookKeeperClient,
    places: StoragePlaces,
    *,
    cluster: str | None = None,
) -> AdoptionPlan:
    """As `plan_adoption`, for ledgers on a BookKeeper cluster; changes nothing.

    `cluster`: whose ledgers they are, for a metadata store that has lost its name. Raises
    `ConfigurationError` (a broker runs, another cluster, several names), `StorageError`.
    """
    await _refuse_running_brokers(metadata, places)
    plan = AdoptionPlan()
    found = await metadata.get(BOOKKEEPER_PATH)
    if found is None:
        plan.bookkeeper = client.instance_id
    elif found.value.decode(errors="replace") != client.instance_id:
        raise ConfigurationError(
            f"the ledgers of this metadata store lie on another BookKeeper cluster, not {client.instance_id}"
        )
    named = await known_cluster(metadata)
    marks = await client.marks_since(0)
    names = {custom[CLUSTER_KEY].decode() for _, custom, _ in marks if CLUSTER_KEY in custom}
    name = named or cluster or (min(names) if len(names) == 1 else None)
    if name is None:
        raise ConfigurationError(
            f"--cluster has to say whose ledgers they are; there are: {', '.join(sorted(names)) or 'none'}"
        )
    plan.cluster = name if named is None else None
    plan.runs = await runs_counted(metadata, plan.counter_path)
    stored: set[int] = set()
    for ledger_id, custom, _ in marks:
        if custom.get(CLUSTER_KEY) != name.encode():
            continue
        plan.mark = plan.mark.with_(Mark(run=int(custom.get(MAKER_KEY, b"-1"))))
        try:
            about = await client.metadata(ledger_id)
            if await client.is_empty(ledger_id):
                continue
        except NoSuchLedgerError:
            continue
        stored.add(ledger_id)
        if await _is_named(metadata, about):
            continue
        path = custom.get(CURSOR_PATH_KEY)
        is_gone = path is not None and await metadata.get(path.decode()) is None
        if is_gone or not await is_given_up(client, metadata, about):
            _add(plan, about, None, is_known=True)
    await _look_for_gone(metadata, plan, stored, {})
    _keep_newest_states(plan)
    return plan


async def carry_out(storage: OpenedStorage, plan: AdoptionPlan) -> None:
    """Carry out the plan. If it is interrupted anywhere, plan and carry out once more.

    Raises `StorageError`, `CorruptRecordError`, `DigestMismatchError` (the password is missing).
    """
    metadata = storage.metadata
    records: dict[str, list[MessageLedgerRecord]] = {}
    epochs: dict[str, int] = {}
    for each in plan.ledgers:
        if each.metadata is None:
            continue
        if not each.is_known and each.password is not None:
            await _make_node(metadata, each, each.metadata, each.password)
        if each.what == "adopt" and each.kind == "message":
            records.setdefault(each.path, []).append(await _record(storage, each, each.metadata))
        if each.kind in {"cursor", "delayed"}:
            topic = each.path.rpartition("/")[0]
            epochs[topic] = max(each.epoch, epochs.get(topic, 0))
    gone = {each.ledger_id for each in plan.ledgers if each.what == "drop"}
    dropping = {each.path for each in plan.ledgers if each.what == "drop"}
    for path in sorted({*records, *epochs, *dropping}):
        await _name_in_topic(metadata, path, records.get(path, []), gone, epochs.get(path, 0))
    for path in sorted(records):
        await _hold_messages(storage, path, min(r.ledger_id for r in records[path]))
    for each in plan.ledgers:
        if each.what == "adopt" and each.kind == "cursor":
            await _name_in_cursor(storage, each)
        elif each.what == "adopt" and each.kind == "journal" and each.metadata is not None:
            await _name_in_journal(metadata, each, each.metadata)
    if plan.cluster is not None:
        await metadata.put(CLUSTER_PATH, plan.cluster.encode(), expected_version=None)
    if plan.bookkeeper is not None:
        await metadata.put(BOOKKEEPER_PATH, plan.bookkeeper.encode(), expected_version=None)
    if plan.mark.next_ledger_id:
        await _raise(metadata, f"{LEDGERS}/idgen", plan.mark.next_ledger_id)
    await _raise(metadata, plan.counter_path, plan.mark.run)


async def _make_node(
    metadata: MetadataStore, each: Forgotten, about: LedgerMetadata, password: PasswordCheck
) -> None:
    key = ADOPTED_KEY if each.what == "adopt" else DELETION_KEY
    custom = {**about.custom_metadata, key: b"1"}
    node = replace(about, state=LedgerState.OPEN, last_entry_id=-1, custom_metadata=custom)
    path = ledger_path(each.ledger_id)
    await metadata.put(path, encode_metadata(node, password), expected_version=None)


async def _record(
    storage: OpenedStorage, each: Forgotten, about: LedgerMetadata
) -> MessageLedgerRecord:
    reader = await storage.client.open(each.ledger_id, password=storage.password)
    try:
        return MessageLedgerRecord(
            each.ledger_id,
            reader.last_add_confirmed + 1,
            reader.length_bytes,
            about.created_ms,
            about.created_ms,
        )
    finally:
        await reader.close()


async def _name_in_topic(
    metadata: MetadataStore,
    path: str,
    records: list[MessageLedgerRecord],
    gone: set[int],
    epoch: int,
) -> None:
    def named(value: bytes | None) -> bytes:
        node = decode_topic_node(value, path=path) if value else TopicNode()
        ledgers = {record.ledger_id: record for record in node.ledgers}
        ledgers.update((record.ledger_id, record) for record in records if record.entry_count)
        kept = tuple(ledgers[i] for i in sorted(ledgers) if i not in gone)
        return encode_topic_node(
            replace(node, ledgers=kept, owner_epoch=max(node.owner_epoch, epoch))
        )

    await change_node(metadata, path, named)


async def _hold_messages(storage: OpenedStorage, path: str, first: int) -> None:
    """Make the subscription that keeps a topic's messages, from ledger `first` on; it may be there."""
    found = await storage.metadata.get(path)
    if found is None:
        return
    node = decode_topic_node(found.value, path=path)
    ledgers = MessageLedgers()
    for record in node.ledgers:
        ledgers.open_ledger(record.ledger_id)
        ledgers.close_ledger(record.ledger_id, record.entry_count or 0)
    opening = CursorOpening(
        path=cursor_path(path, HOLDING_SUBSCRIPTION),
        ledgers=ledgers,
        ledger_client=storage.client,
        metadata=storage.metadata,
        settings=storage.settings,
        batch_index_acks=True,
        owner_epoch=node.owner_epoch,
        clock_ms=wall_clock_ms,
        create_at=Position(first, -1),
        cursor_properties={},
    )
    await opening.open()


async def _name_in_cursor(storage: OpenedStorage, each: Forgotten) -> None:
    def named(value: bytes | None) -> bytes:
        node = decode_cursor_node(value, path=each.path) if value else CursorNode(0, None, None, {})
        node = node._replace(
            cursor_ledger_id=max(each.ledger_id, node.cursor_ledger_id or 0),
            owner_epoch=max(node.owner_epoch, each.epoch),
        )
        return encode_cursor_node(node, packing(storage.settings))

    await change_node(storage.metadata, each.path, named)


async def _name_in_journal(metadata: MetadataStore, each: Forgotten, about: LedgerMetadata) -> None:
    def named(value: bytes | None) -> bytes:
        node = decode_journal_node(value, path=each.path) if value else DeliveryJournalNode()
        ledgers = {record.ledger_id: record for record in node.ledgers}
        ledgers.setdefault(each.ledger_id, JournalLedgerRecord(each.ledger_id, about.created_ms))
        return encode_journal_node(
            replace(node, ledgers=tuple(ledgers[i] for i in sorted(ledgers)))
        )

    await change_node(metadata, each.path, named)


async def _raise(metadata: MetadataStore, path: str, least: int) -> None:
    def raised(value: bytes | None) -> bytes:
        found = int(value) if value is not None and value.isdigit() else -1
        return str(max(found, least)).encode()

    if least >= 0:
        await change_node(metadata, path, raised)


async def _refuse_running_brokers(metadata: MetadataStore, places: StoragePlaces) -> None:
    running = await metadata.children(BROKERS)
    # The node of a killed one stays in a file until the next writer opens it.
    if running and places.has_writer:
        raise ConfigurationError(f"stop all brokers first: {', '.join(map(name_of_node, running))}")


async def _topics(metadata: MetadataStore) -> list[str]:
    """Paths of all topics' nodes."""
    paths = [MANAGED_LEDGERS]
    for _ in range(_TOPIC_DEPTH):
        paths = [f"{path}/{name}" for path in paths for name in await metadata.children(path)]
    return paths


_NAMES: Final[Mapping[str, Callable[[bytes, str], set[int]]]] = {
    TOPIC_PATH_KEY: ledgers_of_topic,
    CURSOR_PATH_KEY: ledgers_of_cursor,
    JOURNAL_PATH_KEY: ledgers_of_journal,
}
_OWNER_KEYS: Final = (TOPIC_PATH_KEY, CURSOR_PATH_KEY, JOURNAL_PATH_KEY, DELAYED_CURSOR_KEY)
