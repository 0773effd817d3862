"""Settings of persistence: what a cursor tracks, and how much of it is stored, where, how often.

Pure.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import SecretStr, model_validator

from ackgate.config import defaults
from ackgate.config.defaults import ENTRY_OVERHEAD_BYTES
from ackgate.config.field import INT_MAX, SettingsGroup, setting

_ZOOKEEPER_FRAME_BYTES: Final = 1024 * 1024

METADATA_SERVICE_URI: Final = re.compile(
    r"zk(?:\+(?:hierarchical|longhierarchical|null))?://([^/\s]+)(/[^\s]*[^/\s])/?", re.ASCII
)
"""URI of a BookKeeper cluster's metadata: ZooKeeper's servers, and the path of the ledgers root."""

SASL_PLUGIN: Final = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"

BOOKKEEPER_COPIES: Final = 2
"""Default of ensemble and quorums on a BookKeeper cluster, as in Pulsar."""

STOCK_FRAME_BYTES: Final = 5 * 1024 * 1024
"""Largest request that a bookie takes by default (`nettyMaxFrameSizeBytes`)."""

ONLY_OF_DIRECTORIES: Final = frozenset(
    {
        "auditorBytesPerSecond",
        "auditorPeriodicBookieCheckInterval",
        "auditorPeriodicCheckInterval",
        "bookieJournalBytesMax",
        "bookieOpenFilesMax",
        "bookieWriteCacheBytesMax",
        "lostBookieRecoveryDelay",
    }
)
"""Keys without effect on a BookKeeper cluster, whose bookies have settings of their own."""


class CursorSettings(SettingsGroup):
    """Settings of the ack state that a cursor tracks."""

    acknowledgment_at_batch_index_level_enabled: bool = setting(
        True,
        "Track which messages of a batch are acknowledged. When off, a partial acknowledgement of "
        "a batch is ignored, and the whole batch is redelivered.",
        pulsar=False,
        departs="Without it an acknowledgement inside a batch is forgotten. Pulsar changed its own "
        "default after 4.0.",
    )


class PersistenceSettings(SettingsGroup):
    """How ack state is written, and which ledgers and nodes hold it."""

    # --- how much is kept

    managed_ledger_max_unacked_ranges_to_persist: int = setting(
        defaults.RANGES_MAX,
        "Most ranges of acknowledged entries that one write keeps. Beyond it the lowest ranges are "
        "kept and the rest lives in memory only. Also the limit at which the gate shuts.",
        unit="ranges",
        pulsar=10_000,
        ge=0,
        le=INT_MAX,
    )
    managed_ledger_max_batch_deleted_index_to_persist: int = setting(
        defaults.BATCH_INDEXES_MAX,
        "Most partly acknowledged batches that one write keeps.",
        unit="entries",
        pulsar=10_000,
        ge=0,
        le=INT_MAX,
    )
    managed_ledger_max_unacked_ranges_to_persist_in_metadata_store: int = setting(
        1_000,
        "Most ranges kept when the state goes into a metadata node, because the cursor ledger "
        "cannot be written.",
        unit="ranges",
        pulsar=1_000,
        ge=0,
        le=INT_MAX,
    )

    pending_nacks_max_bytes_to_persist: int = setting(
        64 * 1024,
        "Most bytes that one write keeps of entries held back after a negative acknowledgement "
        "(policy `redeliveryBackoff`). The earliest are kept; the others are redelivered at once after a "
        "crash. 0: none is kept.",
        unit="bytes",
        ge=0,
        le=INT_MAX,
    )

    # --- format

    managed_cursor_info_compression_type: Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"] = (
        setting(
            "ZSTD",
            "Compression of cursor state, in ledgers and in metadata nodes alike.",
            pulsar="NONE",
            departs="Bitmaps with a pattern shrink many times for a few microseconds.",
        )
    )
    managed_cursor_info_compression_threshold_in_bytes: int = setting(
        256,
        "Cursor state smaller than this is not compressed.",
        unit="bytes",
        pulsar=16_384,
        departs="Here entries of cursor ledgers are compressed too, and most are small.",
        ge=0,
        le=INT_MAX,
    )
    max_entry_bytes: int = setting(
        defaults.ENTRY_BYTES_MAX,
        "Largest ledger entry. Follows `maxMessageSize` unless it is set.",
        unit="bytes",
        ge=64 * 1024,
        le=INT_MAX,
    )
    cursor_record_chunk_bytes: int = setting(
        1024 * 1024,
        "A cursor record larger than this is written as several entries.",
        unit="bytes",
        ge=4 * 1024,
        le=INT_MAX,
    )

    # --- intervals and sizes of writes

    managed_ledger_default_mark_delete_rate_limit: float = setting(
        0.0,
        "Most writes of one cursor in a second. 0: no limit, `ackPersistLingerMs` sets the pace.",
        unit="writes/s",
        pulsar=1.0,
        departs="One write a second leaves a second of acknowledgements to a crash; group commit "
        "makes the writes cheap.",
        ge=0,
        le=1_000_000,
    )
    ack_persist_linger_ms: int = setting(
        2,
        "How long the writer waits for more acknowledgements to share a write.",
        unit="ms",
        dynamic=True,
        ge=0,
        le=60_000,
    )
    managed_ledger_cursor_position_flush_seconds: int = setting(
        60,
        "How often cursors with unwritten state are written, whatever the rate limit says.",
        unit="s",
        pulsar=60,
        ge=1,
        le=INT_MAX,
    )
    ack_receipt_durability: Literal["persisted", "applied"] = setting(
        "persisted",
        "When an acknowledgement that asks for a receipt gets it: once a write that covers it is "
        "durable, or once it is applied in memory (Pulsar's behaviour under its rate limit).",
        dynamic=True,
    )
    ack_receipt_timeout_seconds: int = setting(
        defaults.RECEIPT_TIMEOUT_SECONDS,
        "A receipt that could not become durable in this time is answered with an error.",
        unit="s",
        dynamic=True,
        ge=1,
        le=86_400,
    )
    fallback_rate_limit: float = setting(
        1.0,
        "Most writes of one cursor in a second while it writes to the metadata store.",
        unit="writes/s",
        dynamic=True,
        ge=0.01,
        le=1_000_000,
    )

    # --- cursor ledgers

    managed_ledger_cursor_max_entries_per_ledger: int = setting(
        50_000,
        "A cursor ledger with this many entries is replaced by a new one.",
        unit="entries",
        pulsar=50_000,
        ge=1,
        le=INT_MAX,
    )
    managed_ledger_cursor_rollover_time_in_seconds: int = setting(
        14_400,
        "A cursor ledger of this age is replaced by a new one.",
        unit="s",
        pulsar=14_400,
        ge=1,
        le=INT_MAX,
    )
    cursor_deltas_per_snapshot_max: int = setting(
        1_000,
        "After this many deltas a whole snapshot is written; bounds what recovery has to read.",
        unit="records",
        ge=0,
        le=INT_MAX,
    )
    cursor_delta_bytes_per_snapshot_max: int = setting(
        1024 * 1024,
        "After this many bytes of deltas a whole snapshot is written.",
        unit="bytes",
        ge=0,
        le=INT_MAX,
    )
    cursor_recovery_scan_entries_max: int = setting(
        10_000,
        "How far recovery reads back for a snapshot; snapshots are written often enough for that. Past a "
        "damaged record it reads on to the ledger's beginning.",
        unit="entries",
        ge=1,
        le=INT_MAX,
    )

    # --- ledgers and bookies

    managed_ledger_default_ensemble_size: int = setting(
        1,
        "Bookies over which a ledger is striped. With `bookkeeperMetadataServiceUri` the default is 2.",
        unit="bookies",
        pulsar=2,
        departs="One machine with one disk gains nothing from a second copy on it.",
        ge=1,
        le=64,
    )
    managed_ledger_default_write_quorum: int = setting(
        1,
        "Copies of each entry. With `bookkeeperMetadataServiceUri` the default is 2.",
        unit="copies",
        pulsar=2,
        departs="As the ensemble size.",
        ge=1,
        le=64,
    )
    managed_ledger_default_ack_quorum: int = setting(
        1,
        "Copies that must be durable before an entry is confirmed. With `bookkeeperMetadataServiceUri` "
        "the default is 2.",
        unit="copies",
        pulsar=2,
        departs="As the ensemble size.",
        ge=1,
        le=64,
    )
    managed_ledger_digest_type: Literal["CRC32C", "MAC", "CRC32", "DUMMY"] = setting(
        "CRC32C",
        "What protects an entry: a checksum against accidents, or a keyed MAC against forgery. CRC32 and "
        "DUMMY (nothing) need `bookkeeperMetadataServiceUri`.",
        pulsar="CRC32C",
    )
    managed_ledger_password: SecretStr = setting(
        "",
        "Key of the ledgers' digests. A ledger opens only with the password it was made with.",
        pulsar="",
        is_secret=True,
    )
    bookkeeper_metadata_service_uri: str = setting(
        "",
        "The BookKeeper cluster that keeps all ledgers: `zk+hierarchical://HOST:PORT;HOST:PORT/ledgers`. "
        "Empty: bookies are directories of this broker (`bookieDirectories`), where Pulsar would take "
        "`/ledgers` in the metadata store's ZooKeeper.",
        pulsar="",
    )
    bookkeeper_tls_client_authentication: bool = setting(
        default=False,
        description="Bookies are reached by TLS, and shown the certificate named here. Of no use with "
        "directories.",
        pulsar=False,
    )
    bookkeeper_tls_trust_certs_file_path: str = setting(
        "",
        "Certificates of the authorities that signed the bookies', PEM. Empty: the system's.",
        pulsar="",
    )
    bookkeeper_tls_certificate_file_path: str = setting(
        "", "The certificate that bookies are shown, PEM. Empty: none.", pulsar=""
    )
    bookkeeper_tls_key_file_path: str = setting(
        "", "The key of that certificate, PEM. Empty: it is in the same file.", pulsar=""
    )
    bookkeeper_tls_cert_files_refresh_duration_seconds: int = setting(
        300,
        "A connection to a bookie that is made so long after the last look at these files sees whether "
        "they have changed. 0: never.",
        unit="s",
        pulsar=300,
        ge=0,
        le=INT_MAX,
    )
    bookkeeper_tls_hostname_verification_enabled: bool = setting(
        default=True,
        description="A bookie's certificate must name the host or address that it is registered with. "
        "Pulsar's client does not look.",
    )
    bookkeeper_client_authentication_plugin: Literal[
        "", "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
    ] = setting(
        "",
        "How this client proves to bookies who it is: not at all, or by SASL with DIGEST-MD5.",
        pulsar="",
    )
    bookkeeper_client_authentication_parameters: SecretStr = setting(
        "",
        "`user:password` for that plugin, where Pulsar's has them in a file of JAAS.",
        pulsar="",
        is_secret=True,
    )
    bookie_directories: str = setting(
        "",
        "Storage directories, separated by commas, one for each bookie; best on different disks. "
        "Empty: `bookies/0`, `bookies/1`, ... in the data directory, as many as the ensemble size.",
    )
    bookie_journal_bytes_max: int = setting(
        defaults.BOOKIE_JOURNAL_BYTES_MAX,
        "A bookie's journal file is replaced by a new one at this size.",
        unit="bytes",
        ge=1024 * 1024,
        le=INT_MAX,
    )
    bookie_write_cache_bytes_max: int = setting(
        defaults.BOOKIE_WRITE_CACHE_BYTES_MAX,
        "Entries that a bookie has made durable but not yet sorted into ledger files.",
        unit="bytes",
        ge=1024 * 1024,
        le=INT_MAX,
    )
    disk_reserve_bytes: int = setting(
        16 * 1024 * 1024,
        "Room that is kept on each file system for the day on which it is full (at most an eighth of it). "
        "With less than as much again free, messages are refused and the reserve is used for "
        "acknowledgements and deletions, so that consumers can free the disk; with twice as much free "
        "they are taken again. A new start and some 10,000 writes of cursors fit into the default. "
        "0: none, and a full disk stops everything.",
        unit="bytes",
        ge=0,
        le=INT_MAX,
    )
    bookie_open_files_max: int = setting(
        defaults.BOOKIE_OPEN_FILES_MAX,
        "Ledger files that one bookie keeps open.",
        unit="files",
        ge=4,
        le=65_536,
    )
    ledger_in_flight_adds_max: int = setting(
        defaults.IN_FLIGHT_ADDS_MAX,
        "Entries of one ledger on their way to the disk; more have to wait.",
        unit="entries",
        ge=1,
        le=INT_MAX,
    )
    bookkeeper_client_timeout_in_seconds: int = setting(
        defaults.BOOKIE_TIMEOUT_SECONDS,
        "A bookie whose disk does not answer a write or a read for so long has failed, until it "
        "answers: another one takes its place, or another copy is read.",
        unit="s",
        pulsar=30,
        departs="Pulsar's bookies are behind a network; a disk that is silent for so long is hardly "
        "coming back, and producers wait for it.",
        ge=1,
        le=3_600,
    )
    bookkeeper_client_speculative_read_timeout_in_millis: int = setting(
        defaults.SPECULATIVE_READ_MS,
        "After so long without an answer to a read the next copy is read as well. 0: not before the "
        "first one has failed.",
        unit="ms",
        pulsar=0,
        departs="BookKeeper's own default; a slow disk should not make readers slow.",
        ge=0,
        le=3_600_000,
    )
    lost_bookie_recovery_delay: int = setting(
        600,
        "What a bookie holds that is not there is copied to others when it has been away for so long; "
        "a directory that is mounted late does not set that off. BookKeeper's key, 0 there.",
        unit="s",
        ge=0,
        le=INT_MAX,
    )
    auditor_periodic_bookie_check_interval: int = setting(
        86_400,
        "How often the auditor looks whether every ledger's bookies are there, and copies what one "
        "that is lost was to hold. 0: never. BookKeeper's key and default.",
        unit="s",
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )
    auditor_periodic_check_interval: int = setting(
        604_800,
        "How often the auditor reads and verifies every copy of every entry, and replaces those that "
        "are missing or damaged. 0: never.",
        unit="s",
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )
    auditor_bytes_per_second: int = setting(
        4 * 1024 * 1024,
        "Most that the auditor reads and writes in a second, so that it slows nothing down.",
        unit="bytes/s",
        dynamic=True,
        ge=1024,
        le=1024 * 1024 * 1024 * 1024,
    )

    # --- metadata store

    metadata_store_url: str = setting(
        "",
        "Where metadata is kept: `sqlite:PATH`, `memory:`, or a ZooKeeper ensemble "
        "(`zk:host:2181,host:2181/root`). Empty: a SQLite file in the data directory. `unix:PATH` is "
        "what `ackgate broker --workers` gives to its workers: that file, served on a socket.",
        pulsar="",
    )
    metadata_store_max_node_bytes: int = setting(
        _ZOOKEEPER_FRAME_BYTES - ENTRY_OVERHEAD_BYTES,
        "Largest value of a metadata node; checked before it is sent, because ZooKeeper drops the "
        "connection of a client that sends more than its `jute.maxbuffer`.",
        unit="bytes",
        ge=4 * 1024,
        le=INT_MAX,
    )

    metadata_store_session_timeout_millis: int = setting(
        defaults.SESSION_TIMEOUT_MS,
        "Session timeout at ZooKeeper: a broker's topics are free so long after it was "
        "last seen. The servers have bounds of their own.",
        unit="ms",
        pulsar=30_000,
        ge=100,
        le=3_600_000,
    )
    metadata_store_operation_timeout_seconds: int = setting(
        defaults.METADATA_OPERATION_TIMEOUT_SECONDS,
        "How long a call to ZooKeeper waits for the connection or for its answer, and how long the "
        "first connection may take.",
        unit="s",
        pulsar=30,
        ge=1,
        le=86_400,
    )
    metadata_store_digest: SecretStr = setting(
        "",
        "`user:password` for ZooKeeper's digest authentication. Empty: none.",
        is_secret=True,
    )
    metadata_store_acl: Literal["open", "creator"] = setting(
        "open",
        "Who may use the nodes made in ZooKeeper: anybody who reaches it, or only the user of "
        "`metadataStoreDigest`.",
    )

    metadata_store_config_path: str = setting(
        "",
        "A file of ZooKeeper's client properties, of which those of TLS have an effect: "
        "`zookeeper.client.secure`, `zookeeper.ssl.trustStore.location` and the like, with stores in PEM "
        "form. Read with each connection. Empty: ZooKeeper is reached in clear.",
        pulsar="",
    )

    @property
    def ledger_password(self) -> bytes:
        """The password that the ledgers' digests are made with."""
        return self.managed_ledger_password.get_secret_value().encode()

    @property
    def is_on_bookkeeper(self) -> bool:
        """Whether ledgers lie on a BookKeeper cluster, and not in directories."""
        return bool(self.bookkeeper_metadata_service_uri)

    def bookie_paths(self, data_directory: Path) -> tuple[Path, ...]:
        """The storage directory of each bookie; empty on a BookKeeper cluster."""
        if self.is_on_bookkeeper:
            return ()
        if self.bookie_directories:
            return tuple(Path(part) for part in _parts(self.bookie_directories))
        count = self.managed_ledger_default_ensemble_size
        return tuple(data_directory / "bookies" / str(number) for number in range(count))

    @model_validator(mode="after")
    def _agree(self) -> Self:
        ensemble = self.managed_ledger_default_ensemble_size
        write_quorum = self.managed_ledger_default_write_quorum
        ack_quorum = self.managed_ledger_default_ack_quorum
        if not ensemble >= write_quorum >= ack_quorum:
            raise ValueError(
                "need managedLedgerDefaultEnsembleSize >= managedLedgerDefaultWriteQuorum >= "
                f"managedLedgerDefaultAckQuorum, got {ensemble}, {write_quorum} and {ack_quorum}"
            )
        if self.cursor_record_chunk_bytes > self.max_entry_bytes - ENTRY_OVERHEAD_BYTES:
            raise ValueError(
                f"need cursorRecordChunkBytes <= maxEntryBytes - {ENTRY_OVERHEAD_BYTES}, got "
                f"{self.cursor_record_chunk_bytes} and {self.max_entry_bytes}"
            )
        directories = _parts(self.bookie_directories)
        if self.is_on_bookkeeper:
            self._agree_on_bookkeeper()
        elif self.managed_ledger_digest_type in {"CRC32", "DUMMY"}:
            raise ValueError(
                f"managedLedgerDigestType={self.managed_ledger_digest_type} needs "
                "bookkeeperMetadataServiceUri: bookies that are directories have CRC32C and MAC"
            )
        elif directories and len(set(directories)) < max(ensemble, len(directories)):
            raise ValueError(
                f"need at least managedLedgerDefaultEnsembleSize ({ensemble}) different "
                f"bookieDirectories, got {self.bookie_directories}"
            )
        return self

    @model_validator(mode="after")
    def _agree_on_login(self) -> Self:
        plugin = self.bookkeeper_client_authentication_plugin
        if plugin not in {"", SASL_PLUGIN}:
            raise ValueError(
                f"bookkeeperClientAuthenticationPlugin={plugin}: only {SASL_PLUGIN} is here"
            )
        user, colon, _ = (
            self.bookkeeper_client_authentication_parameters.get_secret_value().partition(":")
        )
        if plugin and not (user and colon):
            raise ValueError(
                "bookkeeperClientAuthenticationPlugin needs bookkeeperClientAuthenticationParameters, "
                "which must read user:password"
            )
        return self

    def _agree_on_bookkeeper(self) -> None:
        uri = self.bookkeeper_metadata_service_uri
        if METADATA_SERVICE_URI.fullmatch(uri) is None:
            raise ValueError(
                f"bookkeeperMetadataServiceUri={uri} is not understood; it must read "
                "zk+hierarchical://HOST:PORT[;HOST:PORT...]/ledgers"
            )
        if self.bookie_directories:
            raise ValueError(
                "either bookieDirectories or bookkeeperMetadataServiceUri: ledgers lie in directories, or"
                " on a BookKeeper cluster"
            )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
