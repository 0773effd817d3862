"""The paths of the page: its files, and answers that Pulsar's paths do not have (ours)."""

from ackgate.broker.admin.page import broker, files, messages, overview
from ackgate.broker.admin.page.files import PAGE_PATH

ROUTES = (
    *files.ROUTES,
    *overview.ROUTES,
    *messages.ROUTES,
    *broker.ROUTES,
)

__all__ = ["PAGE_PATH", "ROUTES"]
