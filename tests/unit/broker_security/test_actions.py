"""No command of the protocol and no path of the admin interface is without its line in the table."""

from __future__ import annotations

from ackgate.broker.admin.app import SECTIONS
from ackgate.broker.security import need_of_command, need_of_path
from ackgate.broker.security.actions import (
    ADMIN_PATHS,
    COMMANDS,
    METRICS,
    OPEN,
    SUPERUSER,
    Scope,
)
from ackgate.broker.wire.intake import BEFORE_CONNECT, ROUTES
from ackgate.broker.wire.proto import pulsar_pb2 as pb

ROUTED = {(route.method, route.template) for routes in SECTIONS.values() for route in routes}
HANDLED = {pb.BaseCommand.Type.Name(number) for number in ROUTES} | {"SEND", "ACK", "FLOW"}


def test_every_path_has_its_line() -> None:
    assert set(ADMIN_PATHS) == ROUTED


def test_every_command_has_its_line() -> None:
    assert set(COMMANDS) == HANDLED


def test_what_has_no_line_is_for_superusers() -> None:
    assert need_of_command("A_LATER_ONE") == SUPERUSER
    assert need_of_path("GET", "/admin/v2/later") == SUPERUSER


def test_a_need_can_be_looked_at_by_what_the_path_names() -> None:
    names = {
        Scope.TENANT: {"{tenant}"},
        Scope.NAMESPACE: {"{tenant}", "{namespace}"},
        Scope.TOPIC: {"{tenant}", "{namespace}", "{topic}"},
    }
    for (_, template), need in ADMIN_PATHS.items():
        assert names.get(need.scope, set()) <= set(template.split("/")), template


def test_few_things_are_open_to_everyone_and_none_of_them_changes_anything() -> None:
    opened = {path for path, need in ADMIN_PATHS.items() if need in {OPEN, METRICS}}
    assert opened == {
        ("GET", "/admin/v2/brokers/health"),
        ("GET", "/admin/v2/brokers/ready"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("GET", "/page/{digest}/{file}"),
        ("GET", "/page/{digest}/vendor/{file}"),
    }
    assert {name for name, need in COMMANDS.items() if need == OPEN} == {
        pb.BaseCommand.Type.Name(number) for number in BEFORE_CONNECT
    }


def test_whoever_may_look_changes_nothing() -> None:
    for (method, template), need in ADMIN_PATHS.items():
        if method != "GET":
            assert len(need.actions) <= 1, template
