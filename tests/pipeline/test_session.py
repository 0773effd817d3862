"""The session runs, and functions over Arrow batches run in this interpreter."""

import sys


def test_tasks_run_in_this_interpreter(spark):
    def where(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [sys.executable]})

    rows = spark.range(2, numPartitions=1).mapInArrow(where, "path string").collect()

    assert {row.path for row in rows} == {sys.executable}
