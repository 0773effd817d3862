"""Which snapshots a cursor has: internal properties in its metadata node.

Pure. One property for each bucket, as Pulsar names them, its value the ledger that holds the
snapshot::

    #pulsar.internal.delayed.bucket_7:0_9:4711  ->  "12"

Two buckets over the very same positions share a property, and the value names both ("12,57").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.cursor import LEDGER_ID_MAX, BucketRecord, Position
from ackgate.errors import CorruptRecordError, PositionError
from ackgate.persistence.cursors.node import INTERNAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

BUCKET_PREFIX: Final = f"{INTERNAL_PREFIX}delayed.bucket"


def bucket_key(first: Position, last: Position) -> str:
    """The property of a bucket over these positions."""
    return f"{BUCKET_PREFIX}_{first}_{last}"


def registered_buckets(properties: Mapping[str, str]) -> list[BucketRecord]:
    """The buckets that these properties name, by snapshot.

    Raises `CorruptRecordError` naming the property that makes no sense.
    """
    found = []
    for key, value in properties.items():
        if key.startswith(BUCKET_PREFIX):
            first, last = _positions(key)
            found += [BucketRecord(first, last, snapshot_id) for snapshot_id in _ids(key, value)]
    return sorted(found, key=lambda bucket: bucket.snapshot_id)


def snapshot_ids(properties: Mapping[str, str]) -> list[int]:
    """All snapshots that are named in a way that can be read: what to delete with the cursor."""
    ids: set[int] = set()
    for key, value in properties.items():
        if key.startswith(BUCKET_PREFIX):
            try:
                ids.update(_ids(key, value))
            except CorruptRecordError:
                continue
    return sorted(ids)


def changed_properties(
    properties: Mapping[str, str],
    add: Iterable[BucketRecord],
    remove: Collection[int],
) -> dict[str, str]:
    """The properties with these buckets added, and these snapshots removed.

    Properties of other kinds stay; so do buckets' that cannot be read.
    """
    changed: dict[str, str] = {}
    for key, value in properties.items():
        if key.startswith(BUCKET_PREFIX):
            try:
                ids = _ids(key, value)
            except CorruptRecordError:
                changed[key] = value
                continue
            kept = [snapshot_id for snapshot_id in ids if snapshot_id not in remove]
            if kept:
                changed[key] = ",".join(map(str, kept))
        else:
            changed[key] = value
    for bucket in add:
        key = bucket_key(bucket.first, bucket.last)
        held = changed.get(key)
        ids = [] if held is None else _ids(key, held)
        changed[key] = ",".join(map(str, sorted({*ids, bucket.snapshot_id})))
    return changed


def _positions(key: str) -> tuple[Position, Position]:
    try:
        _, first_text, last_text = key.removeprefix(BUCKET_PREFIX).split("_")
        first, last = Position.parse(first_text), Position.parse(last_text)
    except (ValueError, PositionError):
        raise CorruptRecordError(f"property {key!r} names no bucket") from None
    if first > last:
        raise CorruptRecordError(f"property {key!r}: {first} is after {last}")
    return first, last


def _ids(key: str, value: str) -> list[int]:
    try:
        ids = [int(text) for text in value.split(",")]
    except ValueError:
        raise CorruptRecordError(f"property {key!r}: {value!r} is no snapshot") from None
    if not all(0 <= snapshot_id <= LEDGER_ID_MAX for snapshot_id in ids):
        raise CorruptRecordError(f"property {key!r}: {value!r} is no snapshot")
    return ids
