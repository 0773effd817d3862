"""The faces: the names that users may rely on. Taking one away, or adding one, is a decision."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ackgate

FACES: dict[str, str] = {
    "ackgate": """
        BucketStorage EARLIEST EmbeddedConsumer EmbeddedStorage EmbeddedSubscription
        EmbeddedTopic Exclusive Failover GateSettings KeyShared LATEST Message MessageLedgers
        PersistOutcome PersistenceSettings Position Retention Shared StorageLanes
        SubscriptionRuntime SubscriptionSettings __version__ open_embedded until_durable
    """,
    "ackgate.bookkeeper": """
        AppendTicket BookKeeperClient BookKeeperSettings BookKeeperStatistics BookieDiskSpace
        BookieEndpoint BookieLogin BookieService BookieState BookieTls BookieTraffic
        CopyFinding DigestType EntryRanges Fragment FragmentFinding KnownBookie
        LATENCY_BOUNDS_MS LatencyCounts LedgerAudit LedgerEntry LedgerMetadata LedgerOptions
        LedgerReader LedgerState LedgerWriter UnrecoveredReader
    """,
    "ackgate.client": """
        MultiplierRedeliveryBackoff NackSettings NackingConsumer
    """,
    "ackgate.config": """
        BrokerSettings CursorSettings DispatcherSettings PersistenceSettings Settings
    """,
    "ackgate.cursor": """
        ARRAY_PATH_POSITIONS_MIN BucketRecord Cleared CursorGrowth CursorMove CursorSnapshot
        CursorStatistics EARLIEST ENTRY_ID_MAX Expired LATEST LEDGER_ID_MAX LeftOut
        ManagedCursor MessageLedgers NO_NACKS NackImage NackedLedger POSITIONS_AS_TEXT
        PendingNacks Position
        PositionSet RecoveredStateReport SegmentMetadata Skipped SnapshotSegment Sought Span
        StoredSnapshot WrittenCounts bitmap_of check_position checked_integers earliest_nacks
        entry_ids_below existing_nacks members positions_of run_bounds run_count
        run_of_positions stored_form unacked_nacks
    """,
    "ackgate.dispatcher": """
        ActiveConsumerChanged Assignment ConsumerSpec ConsumerStatistics DispatchLimits
        Dispatcher DispatcherStatistics Effect EntriesRead Exclusive Failover Gate GateSettings
        GateStatistics KeyShared KeySharedDispatcher KeySharedMode KeySharedPolicy MessageChunk
        NOTHING_READ PauseReason Read ReadFrom ReadKind Rewind Shared SharedDispatcher
        SingleActiveDispatcher SubscriptionKind gate_settings resolve_key
    """,
    "ackgate.dispatcher.buckets": """
        AGE_SEAL_SHARE BucketSettings BucketStatistics BucketTracker ChangeRegistry
        CreateSnapshot DeleteSnapshot Done Draft Failed LATENCY_BOUNDS_MS LoadMetadata
        LoadSegments MetadataLoaded OperationStatistics OperationType Outcome Plan
        SegmentsLoaded Unreadable bucket_settings in_order metadata_of
    """,
    "ackgate.dispatcher.delayed": """
        DelayKeys DelaySettings DelayedTracker HeldSource SharedIndex SharedView
        TimeBucketTracker offered_columns refuse_position time_ms times_ms
    """,
    "ackgate.dispatcher.nacks": """
        DueNacks MultiplierRedeliveryBackoff NackSettings NackTracker WHOLE deadline_ms
    """,
    "ackgate.dispatcher.timing": """
        BatchWheel DelayedOperation PURGE_INTERVAL Purgatory PurgatoryStatistics SLOTS_PER_LEVEL
        TIMERS_MAX_PER_ADVANCE Timer TimingWheel
    """,
    "ackgate.persistence": """
        AppendTicket BookieLedgerClient BucketSnapshots CursorStore CursorStoreStats DigestType
        Fragment LedgerClient LedgerEntry LedgerMetadata LedgerOptions LedgerReader LedgerState
        LedgerWriter MemoryMetadataStore MetadataStore NodeValue PersistOutcome PersistWhere
        PersistenceSettings RecoveryReport RecoverySource SessionState SqliteMetadataStore
        StoredCursorView UnrecoveredReader WatchEvent WatchKind ZooKeeperMetadataStore
        cursor_path find_orphan_cursor_ledgers find_orphan_snapshots open_bookies
        open_metadata_store read_cursor topic_path
    """,
    "ackgate.pipeline": """
        register run_pipeline
    """,
    "ackgate.pulsar": """
        AckForm BrokerKeys BucketPlace BucketView CursorView DelayedRows FOREVER GateOutlook Kept
        LedgerView LiveCursor LiveTopic PersistCaps PersistedAcks PulsarCluster PulsarLedgerOwner
        PulsarPolicies PulsarPolicy PulsarRetention PulsarTopic StoredLedger StoredSegment
        StoredSubscription StoredTopic SubscriptionReport TopicLedger TopicLook TopicReport TopicSchema
        TopicView ValueDecoder
        decode_bucket_head decode_bucket_segment decode_cursor_entry decode_cursor_node
        decode_managed_ledger decode_schema gate_outlook kept_by live_keys live_topic
        missing_on_disk policies_in_force report_topic topic_ledgers
    """,
    "ackgate.subscription": """
        Acked AckedMixed AckedThrough ActiveChange Attached Awaited ConsumerCounts DelayedOfLedger
        Delivery Detached Dispatched EntryFacts EntryRead GateEdge GivenBack HeldNacks
        HeldStatistics Moved Note PartialAck ReadRequest Ready Receipt ReceiptSent Subscription
        SubscriptionSettings SubscriptionStatistics Write WrittenCounts delayed_by_ledger
    """,
    "ackgate.testing": """
        AdminRefusedError BrokerAdmin BrokerCluster BrokerFailedError BrokerProcess CertificateMaker
        MemoryLedgerClient MemoryLedgers StatsAnswer SubscriptionAnswer TokenMaker
        ZooKeeperEnsemble ZooKeeperFailedError ZooKeeperProcess free_ports query_stats
    """,
}


ROOT = Path(ackgate.__file__).parent

ROOMS = sorted(
    f"ackgate.broker.{path.parent.name}" for path in (ROOT / "broker").glob("*/__init__.py")
)
"""Faces for the rest of the broker; the import contracts let nobody past them."""


@pytest.mark.parametrize("face", FACES)
def test_face_has_exactly_these_names(face: str) -> None:
    module = importlib.import_module(face)
    assert sorted(module.__all__) == sorted(FACES[face].split())
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_broker_has_a_face(room: str) -> None:
    module = importlib.import_module(room)
    assert len(set(module.__all__)) == len(module.__all__) > 0
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("face", [*FACES, *ROOMS])
def test_type_checkers_see_the_same_names_in_the_same_homes(face: str) -> None:
    tree = ast.parse(Path(importlib.import_module(face).__file__ or "").read_text())
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {
        name: home
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "lazy_face"
        for home, names in ast.literal_eval(call.args[1]).items()
        for name in names
    }
    if homes:
        assert seen == homes
        assert set(homes) | {"__version__"} >= set(importlib.import_module(face).__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ackgate' has no attribute 'Shraed'"):
        _ = ackgate.Shraed  # type: ignore[attr-defined]


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert ackgate.__version__ == version("ackgate")


EMBEDDING = "import ackgate; ackgate.open_embedded, ackgate.Shared, ackgate.GateSettings"


def loaded_by(code: str) -> set[str]:
    """Modules in a fresh interpreter that has run this."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(told.stdout.split())


def test_package_itself_costs_nothing() -> None:
    assert not {"numpy", "pydantic", "asyncio"} & loaded_by("import ackgate")


@pytest.mark.slow
def test_embedding_loads_no_broker_and_none_of_its_dependencies() -> None:
    loaded = loaded_by(EMBEDDING)
    foreign = {"aiohttp", "google.protobuf", "kazoo", "pulsar", "pyarrow", "pyspark", "uvloop"}
    assert not foreign & loaded
    assert not {
        name for name in loaded if name.startswith(("ackgate.broker", "ackgate.config.broker"))
    }


@pytest.mark.slow
def test_the_machine_and_its_trackers_load_no_configuration() -> None:
    loaded = loaded_by("import ackgate.subscription, ackgate.dispatcher.buckets, ackgate.client")
    assert not {"asyncio", "pydantic", "ackgate.config.settings"} & loaded


@pytest.mark.slow
def test_trackers_wheels_and_bucket_storage_need_no_broker() -> None:
    loaded = loaded_by(
        "from ackgate.dispatcher.delayed import TimeBucketTracker\n"
        "from ackgate.dispatcher.buckets import BucketTracker\n"
        "from ackgate.dispatcher.nacks import NackTracker\n"
        "from ackgate.dispatcher.timing import BatchWheel, Purgatory, TimingWheel\n"
        "from ackgate import BucketStorage\n"
        "from ackgate.persistence import BucketSnapshots"
    )
    assert "asyncio" in loaded  # the last one does I/O
    assert not {name for name in loaded if name.startswith("ackgate.broker")}
