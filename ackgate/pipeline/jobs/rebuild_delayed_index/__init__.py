"""``ackgate pipeline rebuild-delayed-index``: rebuilds buckets of delayed entries from messages."""

from ackgate.pipeline.jobs.rebuild_delayed_index.job import JOB

__all__ = ["JOB"]
