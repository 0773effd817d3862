"""Rows of the table ``delivery_journal`` as events: batches from Arrow, cut where another topic begins.

Pure, but for Arrow. Rows come sorted by topic, subscription, group of settings, epoch and number.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackgate.persistence.delivery_columns import KINDS
from ackgate.pipeline.jobs.what_if.events import NONE, NUMBERS, WORDS, Events, made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_KIND_NAMES: Final = pa.array([kind.value for kind in KINDS])
GROUP: Final = "settings_group"


class Key(NamedTuple):
    """Whose events they are, and for which settings."""

    topic: str
    subscription: str
    group: int


def keyed_events(batch: pa.RecordBatch) -> Iterator[tuple[Key, Events]]:
    """The events of a batch, in stretches of one key and one epoch."""
    size = batch.num_rows
    if not size:
        return
    columns = {name: batch.column(name) for name in batch.schema.names}
    topics, subscriptions = (
        columns[name].dictionary_encode() for name in ("topic", "subscription")
    )
    groups, epochs = (_numbers(columns[name]) for name in (GROUP, "owner_epoch"))
    parts = (_codes(topics), _codes(subscriptions), groups, epochs)
    is_new = np.zeros(size, dtype=np.bool_)
    for part in parts:
        is_new[1:] |= part[1:] != part[:-1]
    is_new[0] = True
    events = _events(columns)
    cuts = [*np.flatnonzero(is_new).tolist(), size]
    for start, stop in pairwise(cuts):
        key = Key(topics[start].as_py(), subscriptions[start].as_py(), int(groups[start]))
        part_of = events.part(start, stop) if len(cuts) > 2 else events
        yield key, part_of.of_epoch(int(epochs[start]))


def _events(columns: dict[str, Any]) -> Events:
    kinds = pc.index_in(columns["event"], value_set=_KIND_NAMES)
    numbers = {name: _numbers(columns[name]) for name in NUMBERS}
    words = {name: _sparse(columns[name]) for name in WORDS}
    return made(0, _numbers(columns["sequence"]), _numbers(kinds), numbers, words)


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    filled = pc.fill_null(pc.cast(column, pa.int64()), NONE)
    array: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return array


def _codes(column: pa.DictionaryArray) -> NDArray[np.int64]:
    return _numbers(column.indices)


def _sparse(column: pa.Array) -> dict[int, Any]:
    places = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    if not places.size:
        return {}
    found = column.take(pa.array(places)).dictionary_encode()
    words = found.dictionary.to_pylist()
    return {
        at: words[code] for at, code in zip(places.tolist(), found.indices.to_pylist(), strict=True)
    }
