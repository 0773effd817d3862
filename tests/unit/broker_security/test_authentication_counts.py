"""How often credentials are taken is counted by method, and clients cannot make the methods more."""

from __future__ import annotations

import contextlib

from ackgate.broker.security import AuthenticationFailedError, Credentials
from ackgate.broker.security.authentication import Authentication, TlsProvider


async def test_outcomes_are_counted_by_what_clients_show() -> None:
    authentication = Authentication([TlsProvider()])
    shown = [
        Credentials("tls", certificate_name="alice"),
        Credentials("tls"),
        None,
        *(Credentials(f"made-up-{number}") for number in range(3)),
    ]
    for each in shown:
        with contextlib.suppress(AuthenticationFailedError):
            await authentication.identify(each, 0.0)
    alice = await authentication.identify(shown[0], 0.0)
    for name in ("alice", "bob"):
        with contextlib.suppress(AuthenticationFailedError):
            await authentication.refreshed(alice, Credentials("tls", certificate_name=name), 0.0)
    assert {
        method: (each.succeeded, each.failed) for method, each in authentication.outcomes.items()
    } == {"tls": (3, 2), "none": (0, 1), "other": (0, 3)}
