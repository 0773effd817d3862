"""The job `audit`: did every message reach every subscription, how often, how late, and why again.

delivery_journal --> deliveries (how manieth, why again) --> fates (acked, outstanding, lost) --> results
"""

from ackgate.pipeline.jobs.audit.job import JOB

__all__ = ["JOB"]
