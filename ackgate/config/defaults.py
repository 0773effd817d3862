"""Defaults that the configuration shares with values of the core: each number stands here, once.

Pure constants, and nothing is imported: a tracker or a gate by itself does not load the configuration, which
would cost it 12 MB. What a key means, and its bounds, stands with the key.
"""

from __future__ import annotations

from typing import Final

# --- the gate, and what a write keeps

RANGES_MAX: Final = 10_000
BATCH_INDEXES_MAX: Final = 10_000
PERSIST_FAILURE_PAUSE_SECONDS: Final = 30
RECEIPT_TIMEOUT_SECONDS: Final = 30

# --- dispatch

READ_ENTRIES_MAX: Final = 100
ROUND_ROBIN_ENTRIES_MAX: Final = 20
UNACKED_MESSAGES_PER_CONSUMER_MAX: Final = 50_000
UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX: Final = 200_000
FAILOVER_DELAY_MS: Final = 1_000

# --- delayed delivery

DELAY_TICK_MS: Final = 1_000
FIXED_DELAY_LOOKAHEAD: Final = 50_000
BUCKET_ENTRIES_MIN: Final = 50_000
BUCKET_ENTRIES_MAX: Final = 200_000
BUCKET_AGE_SECONDS_MAX: Final = 600
SEGMENT_SPAN_SECONDS: Final = 300
SEGMENT_ENTRIES_MAX: Final = 5_000
BUCKETS_MAX: Final = -1
"""Any number."""

# --- ledgers, bookies and the metadata store

ENTRY_OVERHEAD_BYTES: Final = 10 * 1024
"""What an entry may take beside the message in it: BookKeeper's own allowance."""
ENTRY_BYTES_MAX: Final = 5 * 1024 * 1024 + ENTRY_OVERHEAD_BYTES
IN_FLIGHT_ADDS_MAX: Final = 50_000
SPECULATIVE_READ_MS: Final = 2_000
BOOKIE_TIMEOUT_SECONDS: Final = 10
BOOKIE_JOURNAL_BYTES_MAX: Final = 64 * 1024 * 1024
BOOKIE_WRITE_CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
BOOKIE_OPEN_FILES_MAX: Final = 256
SESSION_TIMEOUT_MS: Final = 30_000
METADATA_OPERATION_TIMEOUT_SECONDS: Final = 30
