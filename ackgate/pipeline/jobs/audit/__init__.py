"""The audit: did every message reach every subscription, how often, how late, and why repeatedly?

delivery_journal --+--> timelines --+--> deliveries (number, cause) -----------+--> results, report
                   |                `--> fates (acked, outstanding, lost) -----+
                   `--> acks (when durable) -----------------------------------'
"""

from ackgate.pipeline.jobs.audit.job import JOB

__all__ = ["JOB"]
