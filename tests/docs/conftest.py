"""A broker for what the documents say about one."""

from ackgate.testing.pytest_plugin import (  # noqa: F401 - fixtures
    ackgate_broker,
    ackgate_settings,
    ackgate_topic,
    fresh_ackgate_topic,
    zookeeper,
)
