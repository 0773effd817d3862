"""Rows of the table ``delivery_journal`` as events: batches from Arrow, cut where another topic begins.

Pure, but for Arrow. Rows come sorted by topic, subscription, group of settings, epoch and number.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackgate.persistence.deliveries.columns import KINDS
from ackgate.pipeline.jobs.what_if.events import NONE, NUMBERS, WORDS, Events, joined, made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.what_if.events import Events
    from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay


PIECE_EVENTS: Final = 32_768
"""Replayed at a time: bounds what a tape takes."""


class EvenFeed:
    """Events for a replay, in pieces of one size: so that how they came decides nothing."""

    def __init__(self, replay: SubscriptionReplay, *, events_max: int = PIECE_EVENTS) -> None:
        self._replay = replay
        self._events_max = events_max
        self._waiting: list[Events] = []
        self._count = 0

    def feed(self, events: Events) -> None:
        """The next ones."""
        if self._waiting and self._waiting[0].owner_epoch != events.owner_epoch:
            self._pass_on(0)
        self._waiting.append(events)
        self._count += len(events)
        if self._count >= self._events_max:
            self._pass_on(self._count % self._events_max)

    def finished(self) -> SubscriptionReplay:
        """The replay, with all of them."""
        self._pass_on(0)
        self._replay.finish()
        return self._replay

    def _pass_on(self, kept: int) -> None:
        """All but the last so many."""
        if not self._waiting:
            return
        whole = joined(self._waiting)
        stop = len(whole) - kept
        for start in range(0, stop, self._events_max):
            self._replay.feed(whole.part(start, min(start + self._events_max, stop)))
        self._waiting = [whole.part(stop, len(whole))] if kept else []
        self._count = kept


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
