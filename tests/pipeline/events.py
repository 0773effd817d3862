"""Rows of the table `delivery_journal` for tests, told as a story.

Pure. Epoch, sequence number, time and cursor versions are kept by the `Story` itself. Rows are dicts
in the order of ``tables.DELIVERY_JOURNAL``'s columns::

    story = Story("t").add("opened").publish(1, 0, key="k")
    story.dispatch("s", 1, 0).ack("s", 1, 0).persisted("s").restart()
    spark.createDataFrame(story.rows, spark_schema(DELIVERY_JOURNAL.columns))
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyroaring import BitMap

from ackgate.cursor import CursorSnapshot, Position
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Packing
from ackgate.persistence.records.values import SnapshotRecord
from ackgate.pipeline.schema.tables import DELIVERY_JOURNAL


class Story:
    """What happened on one topic. Every method gives the story back."""

    def __init__(self, topic: str, *, start_us: int = 1_000_000, step_us: int = 1_000) -> None:
        self.topic = topic
        self.rows: list[dict[str, Any]] = []
        self.time_us = start_us
        self.versions: Counter[str] = Counter()
        """Version of each subscription's cursor."""
        self._step_us = step_us
        self._epoch = 1
        self._sequence = 0

    def add(self, event: str, subscription: str | None = None, **columns: Any) -> Story:
        """Any event. Columns by name; those not named are null."""
        row: dict[str, Any] = {column.name: None for column in DELIVERY_JOURNAL.columns}
        known = {
            "topic": self.topic,
            "journal_ledger_id": 100 + self._epoch,
            "owner_epoch": self._epoch,
            "sequence": self._sequence,
            "time_us": self.time_us,
            "event": event,
            "subscription": subscription,
            **columns,
        }
        for name in known:
            DELIVERY_JOURNAL.column(name)
        self.rows.append(row | known)
        self._sequence += 1
        self.time_us += self._step_us
        return self

    def restart(self) -> Story:
        """Another owner: the next epoch, numbered from 0."""
        self._epoch += 1
        self._sequence = 0
        return self

    def publish(self, ledger_id: int, entry_id: int, **columns: Any) -> Story:
        """A confirmed entry of one message, unless the columns say else."""
        known = {"producer": "p", "batch_size": 1, "publish_time_ms": self.time_us // 1000}
        known |= {"ledger_id": ledger_id, "entry_id": entry_id, "entry_bytes": 100}
        return self.add("published", **(known | columns))

    def dispatch(self, subscription: str, ledger_id: int, entry_id: int, **columns: Any) -> Story:
        """An entry goes to a consumer: ``c#1``, for the first time."""
        known = {"consumer": "c#1", "batch_size": 1, "redelivery_count": 0, "reason": "normal"}
        known |= {"ledger_id": ledger_id, "entry_id": entry_id}
        return self.add("dispatched", subscription, **(known | columns))

    def ack(self, subscription: str, ledger_id: int, entry_id: int, **columns: Any) -> Story:
        """An ack of the whole entry; the cursor's version grows."""
        self.versions[subscription] += 1
        known = {"consumer": "c#1", "is_cumulative": False, "ledger_id": ledger_id}
        known |= {"entry_id": entry_id, "version": self.versions[subscription]}
        return self.add("acked", subscription, **(known | columns))

    def persisted(self, subscription: str, outcome: dict[str, Any] | None = None) -> Story:
        """All that the cursor holds so far is durable."""
        version, detail = self.versions[subscription], json.dumps(outcome or {})
        return self.add("persisted", subscription, version=version, detail=detail)

    def receipt(self, subscription: str, **columns: Any) -> Story:
        """``c#1`` is told that all it acked so far is durable."""
        known = {"consumer": "c#1", "version": self.versions[subscription]}
        return self.add("receipt", subscription, **(known | columns))

    def nack(self, subscription: str, ledger_id: int, entry_id: int, **columns: Any) -> Story:
        """Give it again: asked for by ``c#1``, unless the columns say else."""
        known = {"consumer": "c#1", "reason": "asked", "ledger_id": ledger_id, "entry_id": entry_id}
        return self.add("nacked", subscription, **(known | columns))

    def subscribe(
        self,
        subscription: str,
        ledger_id: int,
        entry_id: int,
        kind: str = "Shared",
        *,
        is_durable: bool = True,
    ) -> Story:
        """A new subscription: everything up to this position counts as acked."""
        detail = json.dumps({"position": [ledger_id, entry_id], "is_durable": is_durable})
        return self.add("subscribed", subscription, reason=kind, detail=detail)

    def reset(
        self, subscription: str, ledger_id: int, entry_id: int, reason: str = "seek"
    ) -> Story:
        """The mark-delete is put to this position, without acks above it."""
        self.versions[subscription] += 1
        detail = json.dumps({"mark_delete": [ledger_id, entry_id]})
        version = self.versions[subscription]
        return self.add("reset", subscription, reason=reason, version=version, detail=detail)

    def consumer_removed(self, subscription: str, consumer: str = "c#1") -> Story:
        """It closed, or its connection was lost."""
        return self.add("consumer_removed", subscription, consumer=consumer)

    def recovered(
        self,
        subscription: str,
        *,
        version: int | None = None,
        mark_delete: tuple[int, int] | None = None,
        acked: dict[int, list[int]] | None = None,
        **report: Any,
    ) -> Story:
        """Its state has been read back by the new owner, without any loss unless `report` says else."""
        if version is not None:
            self.versions[subscription] = version
        version = self.versions[subscription]
        if mark_delete is None:
            detail = json.dumps(report) if report else None
            return self.add("recovered", subscription, version=version, detail=detail)
        bitmaps = {ledger_id: BitMap(entries) for ledger_id, entries in (acked or {}).items()}
        snapshot = CursorSnapshot(version, Position(*mark_delete), bitmaps, len(bitmaps))
        state = encode_record(SnapshotRecord(self._epoch - 1, 0, snapshot, 1, 0, 0), Packing())
        detail = json.dumps({"mark_delete": mark_delete} | report)
        return self.add("recovered", subscription, version=version, detail=detail, state=state)

    def opened(self, ledgers: dict[int, int] | None = None, **settings: str) -> Story:
        """By an owner that finds these message ledgers, with so many entries."""
        found = [
            {"ledger_id": ledger_id, "entries": entries, "is_open": False}
            for ledger_id, entries in (ledgers or {}).items()
        ]
        return self.add("opened", detail=json.dumps({"settings": settings, "ledgers": found}))

    def gate(self, subscription: str, *, is_shut: bool, reason: str = "ranges") -> Story:
        """It shuts or opens."""
        return self.add("gate_shut" if is_shut else "gate_opened", subscription, reason=reason)

    def dropped(self, count: int) -> Story:
        """So many events are missing here."""
        return self.add("dropped", version=count)
