"""The audit: did every message reach every subscription, how often, how late, and why again.

delivery_journal --+--> timelines --+--> deliveries (how manieth, why again) --+--> results, report
                   |                `--> fates (acked, outstanding, lost) -----+
                   `--> acks (when durable) -----------------------------------'
"""

from ackgate.pipeline.jobs.audit.job import JOB

__all__ = ["JOB"]
