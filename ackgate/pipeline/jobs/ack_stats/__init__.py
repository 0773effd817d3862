"""The job `ack-stats`: history and forecast of each subscription's ack ranges and holes.

cursor_records --> history --> forecast --> tables and an HTML report
(one cursor)       (bounded)   (bounded)
"""

from ackgate.pipeline.jobs.ack_stats.job import JOB

__all__ = ["JOB"]
