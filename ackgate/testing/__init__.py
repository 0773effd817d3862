"""What ships for tests. As a pytest plugin it brings the fixtures of `pytest_plugin`."""

# Read by pytest; nothing here imports it, so that the rest of the room works without pytest.
pytest_plugins = ("ackgate.testing.pytest_plugin",)
