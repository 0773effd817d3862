"""Real bookies, and the Java client as the judge of what we write."""

from tests.support.bookkeeper.cluster import BookKeeperFailedError, RealBookKeeper, missing
from tests.support.bookkeeper.oracle import JavaClient

__all__ = ["BookKeeperFailedError", "JavaClient", "RealBookKeeper", "missing"]
