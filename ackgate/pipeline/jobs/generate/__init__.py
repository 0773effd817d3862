"""``ackgate pipeline generate``: writes data of any size, as a broker would."""

from ackgate.pipeline.jobs.generate.job import JOB

__all__ = ["JOB"]
