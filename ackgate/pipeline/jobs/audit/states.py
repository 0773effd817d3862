"""What each recovered ack state held: its ranges of acked entries, as marks.

    state      mark-delete 7:3, acked 7:5 to 7:8           (one event)
    marks      7:3 upto            7:8 from 5

The snapshot is opened by the workers, in bulk. The rest is DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.journal import SUBSCRIPTION, at, events_of, mark_delete

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ackgate.pipeline.jobs.job import DataFrame

_EVENT: Final = (*SUBSCRIPTION, "owner_epoch", "sequence", "time_us")
_RANGES_SCHEMA: Final = (
    "topic string, subscription string, owner_epoch bigint, sequence bigint, time_us bigint, "
    "ledger_id bigint, entry_id bigint, from_entry_id bigint"
)
_ROWS_MAX: Final = 65_536


def state_marks(journal: DataFrame) -> DataFrame:
    """Marks by subscription, epoch, ledger and entry: each with `upto` or with `from_entry_id`.

    `upto` is when, at the mark-delete, which covers all before it; `from_entry_id` is where the
    range begins that ends at this entry.
    """
    recovered = journal.where(f.col("event") == "recovered")
    ranges = recovered.where(f.col("state").isNotNull()).select(*_EVENT, "state")
    by = (*SUBSCRIPTION, "owner_epoch", "at", "ledger_id", "entry_id")
    marks = events_of(recovered, "recovered").select(
        *SUBSCRIPTION, "owner_epoch", "at", mark_delete().alias("mark_delete")
    )
    return (
        ranges.mapInArrow(_ranges, _RANGES_SCHEMA)
        .withColumn("at", at())
        .select(*by, "from_entry_id")
        .unionByName(
            marks.select(
                *by[:-2], "mark_delete.ledger_id", "mark_delete.entry_id", f.col("at").alias("upto")
            ),
            allowMissingColumns=True,
        )
    )


def _ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - in the worker

    from ackgate.cursor import run_bounds  # noqa: PLC0415
    from ackgate.errors import CorruptRecordError  # noqa: PLC0415
    from ackgate.persistence.records.codec import decode_record  # noqa: PLC0415
    from ackgate.persistence.records.values import SnapshotRecord  # noqa: PLC0415

    for batch in batches:
        for row in range(batch.num_rows):
            event = batch.slice(row, 1)
            record = decode_record(event.column("state")[0].as_py())
            if not isinstance(record, SnapshotRecord):
                raise CorruptRecordError("the state of a recovered event is no snapshot")
            for ledger_id, bitmap in record.snapshot.acked.items():
                starts, stops = run_bounds(bitmap)
                for first in range(0, starts.size, _ROWS_MAX):
                    firsts, ends = (
                        starts[first : first + _ROWS_MAX],
                        stops[first : first + _ROWS_MAX],
                    )
                    constants = [pa.repeat(event.column(name)[0], firsts.size) for name in _EVENT]
                    yield pa.RecordBatch.from_arrays(
                        [
                            *constants,
                            pa.repeat(pa.scalar(ledger_id, pa.int64()), firsts.size),
                            pa.array(ends - 1, pa.int64()),
                            pa.array(firsts, pa.int64()),
                        ],
                        names=[*_EVENT, "ledger_id", "entry_id", "from_entry_id"],
                    )
