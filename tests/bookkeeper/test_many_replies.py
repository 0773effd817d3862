"""Replies to adds as they come from bookies, in any order and by the thousand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ackgate.errors import StorageError
from ackgate.persistence.bookkeeper.connection import BookieConnection
from ackgate.persistence.bookkeeper.protocol import ADD_HEADER, ADD_REPLY, ADD_REPLY_SIZE
from ackgate.persistence.bookkeeper.writer import _Place
from ackgate.persistence.ledgers.quorum import held_count, holds


class Collected:
    """Implements `AddReplies`: what came, in order."""

    def __init__(self):
        self.events = []

    def added(self, entry_ids):
        self.events += [(int(entry_id), 0) for entry_id in entry_ids]

    def refused(self, entry_id, code):
        self.events.append((entry_id, code))

    def lost(self, error: StorageError):
        raise error


@given(
    st.lists(
        st.tuples(
            st.sampled_from([7, 7, 7, 8]), st.integers(1, 90), st.sampled_from([0, 0, 0, 106])
        ),
        max_size=8,
    )
)
async def test_runs_of_replies_reach_their_ledgers_in_order(runs):
    connection = BookieConnection("bookie-1", 5.0)
    sinks = {7: Collected(), 8: Collected()}
    for ledger_id, sink in sinks.items():
        connection.begin(ledger_id, sink)
    replies = [(ledger, i, code) for ledger, count, code in runs for i in range(count)]
    data = b"".join(
        ADD_REPLY.pack(ADD_REPLY_SIZE, ADD_HEADER, code, ledger, entry)
        for ledger, entry, code in replies
    )
    connection.data_received(data)
    for ledger_id, sink in sinks.items():
        assert sink.events == [(i, code) for ledger, i, code in replies if ledger == ledger_id]


class Striped:
    """As much of a writer as a place of its ensemble asks for."""

    ledger_id = 7

    def __init__(self, size, quorum):
        self._quorums = size, quorum
        self.is_everywhere = size == quorum
        self.synced = -1

    def next_held(self, place, entry_id):
        while not holds(place, entry_id, *self._quorums):
            entry_id += 1
        return entry_id

    def held_count(self, place, first, last):
        return held_count(place, first, last, *self._quorums)

    def place_synced(self, _, last_entry_id):
        self.synced = last_entry_id


@given(
    st.sampled_from([(1, 1), (3, 3), (3, 2), (5, 2)]),
    st.integers(0, 4),
    st.integers(1, 60),
    st.data(),
)
def test_a_place_has_synced_all_before_the_first_unanswered_entry(quorums, place, count, data):
    """Answers come mostly in order, some late, some twice; in pieces of any size."""
    place %= quorums[0]
    writer = Striped(*quorums)
    asked = _Place(writer, place, None, 0)
    sent = [i for i in range(count) if holds(place, i, *quorums)]
    order = sorted(sent, key=lambda i: i + data.draw(st.sampled_from([0, 0, 0, 3, 7])))
    order += data.draw(st.lists(st.sampled_from(sent), max_size=4)) if sent else []
    answered = set()
    while order:
        size = data.draw(st.integers(1, len(order)))
        piece, order = order[:size], order[size:]
        asked.added(np.array(piece) if data.draw(st.booleans()) else piece)
        answered.update(piece)
        missing = next(
            i for i in range(count + 10) if holds(place, i, *quorums) and i not in answered
        )
        if writer.synced >= 0 or missing > min(sent):
            assert writer.synced == missing - 1
