"""Silent or dead?"""

from __future__ import annotations

from ackgate.broker.wire.session import Liveness, LivenessVerdict


def test_silence_is_pinged_and_then_closed() -> None:
    liveness = Liveness()
    assert liveness.check(is_deaf=False) is LivenessVerdict.PING
    assert liveness.check(is_deaf=False) is LivenessVerdict.CLOSE


def test_any_word_answers_a_ping() -> None:
    liveness = Liveness()
    assert liveness.check(is_deaf=False) is LivenessVerdict.PING
    liveness.has_received = True
    assert liveness.check(is_deaf=False) is LivenessVerdict.NOTHING
    assert liveness.check(is_deaf=False) is LivenessVerdict.PING


def test_who_does_not_listen_judges_nobody() -> None:
    liveness = Liveness()
    for _ in range(3):
        assert liveness.check(is_deaf=True) is LivenessVerdict.NOTHING
    assert liveness.check(is_deaf=False) is LivenessVerdict.PING
    assert liveness.check(is_deaf=True) is LivenessVerdict.NOTHING, "the ping's answer was not read"
    assert liveness.check(is_deaf=False) is LivenessVerdict.PING
