"""The plugin's fixtures, for the tests of its own tools."""

from __future__ import annotations

from ackgate.testing.pytest_plugin import (  # noqa: F401 - fixtures
    ackgate_admin_token,
    ackgate_cluster,
    ackgate_settings,
    ackgate_topic,
    fresh_ackgate_topic,
    zookeeper,
)
