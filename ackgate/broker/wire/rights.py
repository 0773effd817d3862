"""Identity and rights of a connection's client: proved at CONNECT, checked before each command.

Edge: runs tasks. Authentication and permissions may have to be read; until then nothing more is
read from the connection.

    CONNECT --prove--> identity --expires--> AUTH_CHALLENGE --refresh--> identity
                  `--- proves nothing: goodbye        `--- no answer, or no better: goodbye
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ackgate.broker.security import (
    CLUSTER_WIDE,
    CONSUME,
    NO_METHOD,
    PRODUCE,
    AuthenticationFailedError,
    Credentials,
    NotAuthorizedError,
    Original,
    Scope,
    decisions,
    need_of_command,
)
from ackgate.broker.wire import replies, requests
from ackgate.broker.wire.errors import MetadataFailedError, ProtocolError, server_error
from ackgate.broker.wire.names import NamespaceName
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ackgate.broker.security import Authorization, ClientIdentity, Need, Resource
    from ackgate.broker.wire.consumers import Consumers
    from ackgate.broker.wire.ports import Connection
    from ackgate.broker.wire.producers import Producers
    from ackgate.broker.wire.proto import pulsar_pb2 as pb

log = logging.getLogger(__name__)


class ClientRights:
    """Authenticates and authorizes the client of one connection."""

    def __init__(self, session: Connection) -> None:
        self._session = session
        self.identity: ClientIdentity | None = None
        """The client's identity once it is proved; None if authentication is off."""
        self._proving: asyncio.Task[None] | None = None
        self._supports_refresh = False
        self._is_challenged = False
        """Whether the client was asked for newer credentials and has not answered."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._reading_policies: asyncio.Task[None] | None = None
        self._policies_error: MetadataFailedError | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the client had to prove its identity."""
        return self._proving is not None

    def cancel(self) -> None:
        """Stop all tasks, because the connection is gone."""
        for pending in (self._expiry_timer, self._proving, self._reading_policies):
            if pending is not None:
                pending.cancel()

    # ---- who it is

    def prove(self, command: pb.CommandConnect, on_proved: Callable[[], None]) -> None:
        """Authenticate the client of a CONNECT, then call `on_proved`.

        On failure, end the connection.

        Calls it at once if authentication is off.
        """
        authentication = self._session.context.authentication
        if authentication is None:
            on_proved()
            return

        def proved() -> None:
            on_proved()
            self._look_at_expiry_later()
            self._session.intake.release("authentication")

        self._supports_refresh = command.feature_flags.supports_auth_refresh
        self._session.intake.hold("authentication")
        shown = self._shown(command.auth_method_name or NO_METHOD, command.auth_data)
        original = _original(command)
        self._proving = asyncio.create_task(
            self._take(lambda now: authentication.identify(shown, now, original), proved)
        )

    def refresh(self, command: pb.CommandAuthResponse) -> None:
        """Check the newer credentials of an AUTH_RESPONSE.

        Raises `ProtocolError` without a challenge.
        """
        authentication, identity = self._session.context.authentication, self.identity
        if not self._is_challenged or authentication is None or identity is None:
            raise ProtocolError("AUTH_RESPONSE without a challenge")
        self._is_challenged = False
        method = command.response.auth_method_name or identity.principal.method
        shown = self._shown(method, command.response.auth_data)
        self._proving = asyncio.create_task(
            self._take(lambda now: authentication.refreshed(identity, shown, now), self._refreshed)
        )

    async def _take(
        self, find: Callable[[float], Awaitable[ClientIdentity]], on_proved: Callable[[], None]
    ) -> None:
        session = self._session
        try:
            identity = await find(session.context.now_seconds())
        except AuthenticationFailedError as error:
            session.note(log, "authentication of %s failed: %s", session.peer, error)
            self._send_refusal_and_close(error)
        except Exception:
            log.exception("authentication of %s failed", session.peer)
            self._send_refusal_and_close(
                AuthenticationFailedError("the broker failed to authenticate")
            )
        else:
            if session.is_open:
                self.identity = identity
                on_proved()

    def _refreshed(self) -> None:
        log.debug("%s has refreshed its credentials", self._session.peer)

    def _shown(self, method: str, data: bytes) -> Credentials:
        certificate = self._session.certificate
        return Credentials(method, data, certificate.common_name if certificate else "")

    def _look_at_expiry_later(self) -> None:
        if self.identity is not None and self.identity.expires_at is not None:
            self._expiry_timer = asyncio.get_running_loop().call_later(
                self._session.context.refresh_seconds, self._look_at_expiry
            )

    def _look_at_expiry(self) -> None:
        """If the credentials have expired, ask for newer ones, or else end the connection."""
        session, identity = self._session, self.identity
        if not session.is_open or identity is None or identity.expires_at is None:
            return
        if session.context.now_seconds() >= identity.expires_at:
            if self._is_challenged or not self._supports_refresh:
                session.note(
                    log, "connection of %s ended: its credentials have expired", session.peer
                )
                self._send_refusal_and_close(
                    AuthenticationFailedError("the credentials have expired")
                )
                return
            self._is_challenged = True
            session.send(
                replies.auth_challenge(
                    session.context.server_version,
                    identity.principal.method,
                    session.protocol_version,
                )
            )
        self._look_at_expiry_later()

    def _send_refusal_and_close(self, error: AuthenticationFailedError) -> None:
        if self._session.is_open:
            self._session.send(
                replies.error(replies.NO_REQUEST_ID, server_error(error), str(error))
            )
            self._session.close()

    # ---- what it may

    def permits(self, name: str, command: Any) -> bool:  # noqa: ANN401 - any command
        """Whether the client may send this command. False: the rights are being read; ask again.

        Reading from the connection is held until then. Raises `NotAuthorizedError`,
        `MetadataFailedError`.
        """
        context, identity = self._session.context, self.identity
        authorization = context.authorization
        if authorization is None or identity is None:
            return True
        error, self._policies_error = self._policies_error, None
        if error is not None:
            raise error
        original = str(getattr(command, "original_principal", ""))
        if original and context.authentication is not None:
            identity = context.authentication.acting(identity, original)
        for need, resource in _asked_for(need_of_command(name), command):
            if unread := authorization.unread(identity, need, resource):
                self._session.intake.hold("permissions")
                reading = self._read_policies(authorization, unread)
                self._reading_policies = asyncio.create_task(reading)
                return False
            authorization.check(identity, need, resource)
            decisions.debug("%s of %s: %s, %s", name, self._session.peer, identity, resource)
        return True

    async def _read_policies(self, authorization: Authorization, paths: tuple[str, ...]) -> None:
        try:
            await authorization.read(paths)
        except Exception as error:
            trace = not isinstance(error, AckGateError)
            log.error("rights cannot be read: %s", error, exc_info=trace)  # noqa: TRY400
            self._policies_error = MetadataFailedError(
                "what the role may do cannot be read: see the log of the broker"
            )
        self._session.intake.release("permissions")

    def recheck(self, producers: Producers, consumers: Consumers) -> None:
        """After a change of rights, close producers and consumers that are no longer allowed."""
        authorization, identity = self._session.context.authorization, self.identity
        if authorization is None or identity is None:
            return

        def is_allowed(need: Need, resource: Resource) -> bool:
            if authorization.unread(identity, need, resource):
                return False  # a superuser opened it; its client asks again
            try:
                authorization.check(identity, need, resource)
            except NotAuthorizedError as error:
                self._session.note(decisions, "taken from %s: %s", self._session.peer, error)
                return False
            return True

        producers.keep(lambda topic: is_allowed(PRODUCE, topic.resource()))
        consumers.keep(
            lambda topic, subscription: is_allowed(CONSUME, topic.resource(subscription))
        )


def _original(command: pb.CommandConnect) -> Original:
    """The client that a proxy names in its CONNECT."""
    method, data = command.original_auth_method, command.original_auth_data
    credentials = Credentials(method, data.encode()) if method and data else None
    return Original(command.original_principal, credentials)


def _asked_for(need: Need, command: Any) -> Iterator[tuple[Need, Resource]]:  # noqa: ANN401
    """Yields what a command needs, and on which resource.

    Raises `InvalidTopicNameError`, `NotAllowedError`.
    """
    match need.scope:
        case Scope.TOPIC:
            name = requests.topic_name(command.topic)
            yield need, name.resource(getattr(command, "subscription", ""))
            if initial := getattr(command, "initial_subscription_name", ""):
                yield CONSUME, name.resource(initial)
        case Scope.NAMESPACE:
            yield need, NamespaceName.parse(command.namespace).resource
        case _:
            yield need, CLUSTER_WIDE
