from __future__ import annotations

from ackgate.broker.stats.sampler import SPACING_MS, WINDOW_MS, History


def test_nothing_is_known_before_the_first_sample() -> None:
    assert History().rates(1000, (5.0,)) == (0.0,)


def test_a_steady_rate_is_told_as_it_is() -> None:
    history = History()
    for second in range(11):
        history.note(second * 1000, (second * 70.0, second * 7.0))
    assert history.rates(10_500, (735.0, 73.5)) == (70.0, 7.0)


def test_too_little_time_is_no_rate() -> None:
    history = History()
    history.note(0, (0,))
    assert history.rates(100, (1000,)) == (0.0,)


def test_samples_too_close_are_not_taken() -> None:
    history = History()
    history.note(0, (0,))
    history.note(SPACING_MS - 1, (1,))
    assert len(history.samples) == 1


def test_an_idle_object_keeps_two_samples() -> None:
    history = History()
    for at_ms in range(0, 10 * WINDOW_MS, SPACING_MS):
        history.note(at_ms, (3, 4))
    assert len(history.samples) == 2


def test_the_window_bounds_what_is_kept_and_the_rate() -> None:
    history = History()
    for second in range(200):
        history.note(second * 1000, (0.0 if second < 100 else (second - 100) * 10.0,))
    assert len(history.samples) <= WINDOW_MS // SPACING_MS + 2
    assert history.rates(199_000, (990.0,)) == (10.0,)


def test_a_burst_after_long_idleness_is_averaged_over_the_window_only() -> None:
    history = History()
    history.note(0, (0,))
    history.note(10_000, (0,))
    history.note(1_000_000, (0,))
    assert history.rates(1_005_000, (600,)) == (10.0,)
