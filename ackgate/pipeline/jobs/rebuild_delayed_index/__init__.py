"""``ackgate pipeline rebuild-delayed-index``: the buckets of delayed trackers, out of the messages."""

from ackgate.pipeline.jobs.rebuild_delayed_index.job import JOB

__all__ = ["JOB"]
