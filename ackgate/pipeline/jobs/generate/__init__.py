"""``ackgate pipeline generate``: data of any size, as a broker would have stored it, without one."""

from ackgate.pipeline.jobs.generate.job import JOB

__all__ = ["JOB"]
