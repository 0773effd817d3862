"""What-if: replays recorded traffic under other settings.

delivery_journal --> events of a subscription --> tape --> writes --> gate, exposure --> sums
                                                 (once)    (for each of the settings)
"""

from ackgate.pipeline.jobs.what_if.job import JOB

__all__ = ["JOB"]
