"""A documented setting that nothing reads would be a lie."""

from __future__ import annotations

from pathlib import Path

from ackgate.config.settings import ROOMS

PACKAGE = Path(__file__).parents[2] / "ackgate"
POLICIES = PACKAGE / "config" / "delayed.py"
"""In the room of the settings, with a policy that reads some."""
READ_BY_PROPERTIES = {
    "advertised_listeners": ".broker.listeners",
    "internal_listener_name": ".broker.listeners",
    "bind_addresses": ".bound_listeners",
    "bookie_directories": ".bookie_paths(",
    "managed_ledger_password": ".ledger_password",
}
"""Settings that a property of their room reads, and what is asked for in their place."""


def test_every_setting_is_read_somewhere() -> None:
    sources = "\n".join(
        path.read_text()
        for path in PACKAGE.rglob("*.py")
        if PACKAGE / "config" not in path.parents or path == POLICIES
    )
    unread = [
        attribute
        for room in ROOMS.values()
        for attribute in room.model_fields
        if READ_BY_PROPERTIES.get(attribute, f".{attribute}") not in sources
    ]
    assert unread == []
