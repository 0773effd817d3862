"""The job `ack-stats`: how each subscription's ranges and holes came about, and where they lead.

cursor_records --> history --> forecast --> tables and an HTML report
(one cursor)       (bounded)   (bounded)
"""

from ackgate.pipeline.jobs.ack_stats.job import JOB

__all__ = ["JOB"]
