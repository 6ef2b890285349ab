"""The broker's time, from append times and our monotonic clock."""

from __future__ import annotations

from loopwarden.broker_clock import MIN_SAMPLES, WINDOW_MS, BrokerClock


def test_nothing_is_known_before_the_first_record() -> None:
    """A guess from the host's clock could expire a fresh kill."""
    assert BrokerClock().at(1_000.0) is None


def test_the_fastest_record_tells_the_offset() -> None:
    """What a record took longer than the fastest one was time on the way, not skew."""
    #  append   1000        2000
    #  receive       5      (+1000, and 40 slower)
    clock = BrokerClock()
    clock.observe(1_000, 5.0)
    clock.observe(2_000, 1_045.0)

    assert clock.at(1_045.0) == 2_040.0


def test_old_records_are_a_lower_bound() -> None:
    """Records read at the start lay around for an unknown time: the broker's clock is at least there."""
    clock = BrokerClock()
    clock.observe(1_000, 500.0)
    clock.observe(900, 501.0)

    assert clock.at(600.0) == 1_100.0


def test_a_record_that_was_read_late_after_hours_of_silence_is_seen_to_be_old() -> None:
    """Otherwise the kill of before the cut would be its own witness that it is fresh."""
    clock = BrokerClock()
    clock.observe(10_000, 0.0)
    clock.observe(10_000 + 7_200_000, 7_200_000 + 300_000.0)

    assert clock.at(7_500_000.0) == 10_000 + 7_500_000


def test_the_offset_follows_drift_after_the_window() -> None:
    """A minimum of long ago would freeze the estimate while one of the clocks drifts, or the broker's is set back."""
    clock = BrokerClock()
    clock.observe(1_000_000, 0.0)
    for n in range(MIN_SAMPLES):
        clock.observe(int(WINDOW_MS), WINDOW_MS + 1.0 + n)

    assert clock.at(WINDOW_MS + 1.0) == WINDOW_MS


def test_a_suspended_host_is_right_again_with_the_next_record() -> None:
    """The monotonic clock stands still while a machine sleeps; the broker's does not."""
    clock = BrokerClock()
    clock.observe(1_000, 10.0)
    clock.observe(3_601_000, 20.0)

    assert clock.at(20.0) == 3_601_000.0
