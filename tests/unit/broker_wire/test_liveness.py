"""Silent or dead?"""

from __future__ import annotations

from ackgate.broker.liveness import Liveness, Verdict


def test_silence_is_pinged_and_then_closed() -> None:
    liveness = Liveness()
    assert liveness.check(is_deaf=False) is Verdict.PING
    assert liveness.check(is_deaf=False) is Verdict.CLOSE


def test_any_word_answers_a_ping() -> None:
    liveness = Liveness()
    assert liveness.check(is_deaf=False) is Verdict.PING
    liveness.heard = True
    assert liveness.check(is_deaf=False) is Verdict.NOTHING
    assert liveness.check(is_deaf=False) is Verdict.PING


def test_who_does_not_listen_judges_nobody() -> None:
    liveness = Liveness()
    for _ in range(3):
        assert liveness.check(is_deaf=True) is Verdict.NOTHING
    assert liveness.check(is_deaf=False) is Verdict.PING
    assert liveness.check(is_deaf=True) is Verdict.NOTHING, "the ping's answer was not read"
    assert liveness.check(is_deaf=False) is Verdict.PING
