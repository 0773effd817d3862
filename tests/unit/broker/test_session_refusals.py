"""What a failed request leaves in the log: a line for what the world did, a trace for our own faults."""

from __future__ import annotations

import logging

import pytest

from ackgate.broker.wire import replies
from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.session import Session
from ackgate.errors import (
    AckGateError,
    CallerError,
    CorruptRecordError,
    InternalError,
    LedgerWriteError,
    SessionLostError,
)


class Refusing(Session):
    """Only what a refusal needs."""

    def __init__(self) -> None:
        self.refused: list[tuple[int, int, str]] = []

    peer = "somebody"

    def send(self, data: bytes) -> None:
        pass

    def note(self, *_: object, **__: object) -> None:
        pass

    def fail(self, request_id: int, code: int, message: str) -> bytes:
        self.refused.append((request_id, code, message))
        return replies.error(request_id, code, message)


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (SessionLostError("the session has expired"), ServerError.SERVICE_NOT_READY, "WARNING"),
        (LedgerWriteError("disk full"), ServerError.PERSISTENCE, "WARNING"),
        (CorruptRecordError("garbage"), ServerError.PERSISTENCE, "ERROR"),
        (InternalError("a bug"), ServerError.UNKNOWN, "ERROR"),
        (ZeroDivisionError(), ServerError.UNKNOWN, "ERROR"),
    ],
)
def test_only_our_own_faults_leave_a_trace(
    caplog, error: AckGateError, code: ServerError, level: str
) -> None:
    session = Refusing()
    with caplog.at_level(logging.INFO):
        session.refuse(7, error, session.fail)
    [record] = caplog.records
    assert record.levelname == level
    is_ours = level == "ERROR" and not isinstance(error, CorruptRecordError)
    assert (record.exc_info is not None) is is_ours
    [(request_id, told, message)] = session.refused
    assert (request_id, told) == (7, code)
    assert str(error) not in message or not str(error)


def test_a_reason_that_no_reply_can_hold_is_escaped() -> None:
    session = Refusing()
    session.refuse(7, CallerError("field \ud800: has no default"), session.fail)
    assert session.refused[0][2] == "field \\ud800: has no default"
