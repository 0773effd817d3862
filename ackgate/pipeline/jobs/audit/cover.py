"""Finds for each row the marks that cover it: those at the same or a higher place.

A cumulative ack covers all entries up to its position; a persisted record covers all acks up to its
version. One window over a whole topic would be one task. Therefore places are divided into buckets
(message ledgers, or blocks of versions) with a window each. All later buckets are summed up in one
row:

    bucket 7        bucket 8        bucket 9
    e e M e e e     e M e e         e e e M
        <---        ----- first, last of later buckets --

Pure: DataFrame to DataFrame. Reads the rows once, so their sources are not computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.jobs.job import DataFrame


def with_cover(
    rows: DataFrame,
    marks: DataFrame,
    buckets: DataFrame,
    *,
    keys: Sequence[str],
    bucket: str,
    place: str,
    names: Sequence[str],
    nearest: Sequence[str] = (),
) -> DataFrame:
    """Return `rows` with ``first_X`` and ``last_X`` for each X of `names`, null without a mark.

    These are the least and greatest X of all marks that cover the row. ``nearest_X``, for each X of
    `nearest`, comes from the covering mark with the lowest place, in the same bucket only. Both
    frames have the columns `keys`, `bucket` and `place`; marks also have `names` and `nearest`.
    `buckets` must contain the `keys` and `bucket` of every row.
    """
    by = [*keys, bucket, place]
    noted = marks.select(*by, *names, *nearest)
    covered = rows.select(*by, f.struct(*rows.columns).alias("row"))
    both = covered.unionByName(noted, allowMissingColumns=True)
    up_from_here = (
        Window.partitionBy(bucket, *keys)
        .orderBy(f.col(place).desc())
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    here = [
        column
        for name in names
        for column in (
            f.min(name).over(up_from_here).alias(f"first_here_{name}"),
            f.max(name).over(up_from_here).alias(f"last_here_{name}"),
        )
    ] + [
        f.last(name, ignorenulls=True).over(up_from_here).alias(f"nearest_{name}")
        for name in nearest
    ]
    found = both.select(*keys, bucket, "row", *here).where(f.col("row").isNotNull())
    if not names:
        return found.select("row.*", *(f"nearest_{name}" for name in nearest))
    covered = found.join(_later(noted, buckets, keys, bucket, names), [bucket, *keys], "left")
    bounds = [
        column
        for name in names
        for column in (
            f.least(f"first_here_{name}", f"first_later_{name}").alias(f"first_{name}"),
            f.greatest(f"last_here_{name}", f"last_later_{name}").alias(f"last_{name}"),
        )
    ]
    return covered.select("row.*", *bounds, *(f"nearest_{name}" for name in nearest))


def _later(
    marks: DataFrame, buckets: DataFrame, keys: Sequence[str], bucket: str, names: Sequence[str]
) -> DataFrame:
    """Return for each bucket the least and greatest values of the marks in later buckets."""
    later = (
        Window.partitionBy(*keys)
        .orderBy(f.col(bucket).desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    bounds = [
        column
        for name in names
        for column in (f.min(name).alias(f"first_{name}"), f.max(name).alias(f"last_{name}"))
    ]
    by = [*keys, bucket]
    of_buckets = (
        marks.select(*by, *names)
        .unionByName(buckets.select(*by), allowMissingColumns=True)
        .groupBy(*by)
        .agg(*bounds)
    )
    return of_buckets.select(
        *by,
        *(f.min(f"first_{name}").over(later).alias(f"first_later_{name}") for name in names),
        *(f.max(f"last_{name}").over(later).alias(f"last_later_{name}") for name in names),
    )
