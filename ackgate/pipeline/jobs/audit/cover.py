"""Which mark covers an entry: the first and the last of those at or above its place.

A cumulative ack covers all entries up to its position, a persisted record all acks up to its version.
One window over a whole topic would be one task; so places are cut into buckets (message ledgers,
versions by thousands), each a window by itself, and what lies in later buckets comes as one row:

    bucket 7        bucket 8        bucket 9
    e e M e e e     e M e e         e e e M
        <---        ----- first, last of later buckets --

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.job import DataFrame


def with_cover(
    rows: DataFrame, marks: DataFrame, keys: Sequence[str], bucket: str, place: str
) -> DataFrame:
    """`rows` with ``first_mark`` and ``last_mark``: least and greatest ``mark`` that covers each.

    Null: none does. Both frames have `keys`, `bucket` and `place`.
    """
    by = [*keys, bucket, place]
    nothing = f.lit(None)
    told = rows.select(
        *by,
        f.struct(*rows.columns).alias("row"),
        nothing.cast(marks.schema["mark"].dataType).alias("mark"),
    )
    both = told.unionByName(marks.select(*by, "mark"), allowMissingColumns=True)
    up_from_here = (
        Window.partitionBy(*keys, bucket)
        .orderBy(f.col(place).desc())
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    found = both.select(
        *keys,
        bucket,
        "row",
        f.min("mark").over(up_from_here).alias("first_here"),
        f.max("mark").over(up_from_here).alias("last_here"),
    ).where(f.col("row").isNotNull())
    later = (
        Window.partitionBy(*keys)
        .orderBy(f.col(bucket).desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    carried = (
        both.groupBy(*keys, bucket)
        .agg(f.min("mark").alias("first_of"), f.max("mark").alias("last_of"))
        .select(
            *keys,
            bucket,
            f.min("first_of").over(later).alias("first_later"),
            f.max("last_of").over(later).alias("last_later"),
        )
    )
    return found.join(carried, [*keys, bucket]).select(
        "row.*",
        f.least("first_here", "first_later").alias("first_mark"),
        f.greatest("last_here", "last_later").alias("last_mark"),
    )
