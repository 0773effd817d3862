"""Metrics for Prometheus, in tables, and the answer of ``/metrics``."""

from ackgate.broker.admin.metrics.scrape import METRICS, ROUTES, TABLES
from ackgate.broker.admin.metrics.tables import Distribution, Exposition, Metric

__all__ = [
    "METRICS",
    "ROUTES",
    "TABLES",
    "Distribution",
    "Exposition",
    "Metric",
]
