"""What the audit must find on one topic, worked out event by event. Slow, and plain to read."""

from dataclasses import dataclass, field


@dataclass
class Sent:
    """One delivery of an entry."""

    epoch: int
    number: int
    nack: str | None = None
    acked: tuple[int, int] | None = None
    """Epoch and version of the first whole ack behind it."""
    is_reset: bool = False


@dataclass
class Entry:
    """One published entry at one subscription."""

    sent: list[Sent] = field(default_factory=list)
    is_acked: bool = False
    causes: list[str | None] = field(default_factory=list)


class AuditModel:
    """Plays the rows of a story. One subscription, there from the beginning."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], Entry] = {}
        self.persisted: dict[int, tuple[int, bool]] = {}
        self.told: dict[int, int] = {}
        """Epoch -> the last version that it tells of."""
        self.durable: dict[int, int] = {}
        """Epoch -> the last version that it tells of as durable."""
        self.untold: set[int] = set()
        """Epochs that began with a state that the one before does not tell of."""

    def play(self, rows):
        for number, row in enumerate(rows):
            handler = getattr(self, f"_{row['event']}", None)
            if handler is not None:
                handler(number, row, (row["ledger_id"], row["entry_id"]))
        return self

    def _published(self, _number, _row, position):
        self.entries[position] = Entry()

    def _dispatched(self, number, row, position):
        entry = self.entries[position]
        entry.causes.append(self._cause(entry, row["owner_epoch"]) if entry.sent else None)
        entry.sent.append(Sent(row["owner_epoch"], number))
        entry.is_acked = False

    def _cause(self, entry, epoch):
        last = entry.sent[-1]
        if last.is_reset:
            return "reset"
        if last.epoch == epoch:
            names = {"asked": "nack_or_timeout", "consumer_closed": "consumer_closed"}
            return names.get(last.nack, "unexplained")
        if last.acked is None or last.acked[0] == epoch:
            return "restart"
        acked_in, version = last.acked
        durable = self.persisted.get(acked_in, (-1, True))[0]
        if version > durable:
            return "ack_not_persisted"
        later = range(acked_in, epoch)
        if not all(self.persisted.get(each, (-1, True))[1] for each in later):
            return "outcome_dropped"
        is_sure = self.untold.isdisjoint(range(acked_in + 1, epoch + 1))
        return "ack_lost" if is_sure else "unrecorded"

    def _nacked(self, _number, row, position):
        entry = self.entries[position]
        if entry.sent:
            entry.sent[-1].nack = row["reason"]

    def _subscribed(self, _number, row, _position):
        self.told[row["owner_epoch"]] = self.durable[row["owner_epoch"]] = 0

    def _recovered(self, _number, row, _position):
        epoch, version = row["owner_epoch"], row["version"]
        if version > min(self.told.get(epoch - 1, -1), self.durable.get(epoch - 1, -1)):
            self.untold.add(epoch)
        self.told[epoch] = self.durable[epoch] = version

    def _acked(self, _number, row, position):
        self.told[row["owner_epoch"]] = row["version"]
        for each, entry in self.entries.items():
            is_covered = each <= position if row["is_cumulative"] else each == position
            if is_covered and row["unacked_indexes"] is None and entry.sent:
                entry.is_acked = True
                # The last one of its own counts, as the cursor's version grew again with it.
                last = entry.sent[-1]
                last.acked = last.acked or (row["owner_epoch"], row["version"])

    def _reset(self, _number, row, _position):
        self.told[row["owner_epoch"]] = row["version"]
        for entry in self.entries.values():
            if entry.sent:
                entry.sent[-1].is_reset = True

    def _persisted(self, _number, row, _position):
        self.durable[row["owner_epoch"]] = row["version"]
        self.persisted[row["owner_epoch"]] = (
            row["version"],
            '"entries_dropped": 0' in row["detail"],
        )
