"""Answers, keys and the stop."""

from __future__ import annotations

import pickle

import pytest

from loopwarden.decisions import LoopwardenStopped, fit


def test_the_stop_is_no_exception_that_wrappers_catch() -> None:
    """Frameworks turn every `Exception` of a tool into a text for the model."""
    stopped = LoopwardenStopped("looped", "k1")

    assert not isinstance(stopped, Exception)
    assert str(stopped) == "looped"
    assert stopped.exit_code not in {0, 1, 2}


def test_the_stop_survives_a_process_pool() -> None:
    """Executors send exceptions between processes by pickling them."""
    copy = pickle.loads(pickle.dumps(LoopwardenStopped("looped", "k1", "limit")))  # noqa: S301 - our own bytes

    assert (copy.reason, copy.command_id, copy.status) == ("looped", "k1", "limit")


@pytest.mark.parametrize("length", [1, 128])
def test_what_fits_is_left_alone(length: int) -> None:
    """Ids are how people find a run."""
    assert fit("x" * length, 128) == "x" * length


def test_long_ids_stay_different() -> None:
    """A plain cut would merge runs that differ at the end only."""
    one, two = fit("x" * 500 + "1", 128), fit("x" * 500 + "2", 128)

    assert one != two
    assert len(one) == len(two) == 128
    assert fit("x" * 500 + "1", 128) == one
