"""The thread that reads the control topics: it comes back for ever."""

from __future__ import annotations

import time

import pytest

from loopwarden.testing import GuardBench, kill
from loopwarden_models.errors import TransportError


def test_a_lost_connection_is_replaced_and_nothing_is_missed() -> None:
    """Orders that were given during the cut are obeyed after it."""
    bench = GuardBench()
    bench.pump()
    with bench.guard.run("r-42") as run:
        bench.transport.is_down = True
        bench.transport.command(kill(run.key))
        bench.pump()
        assert not run.stopped
        assert bench.guard.stats()["control_connected"] == 0

        bench.transport.is_down = False
        bench.pump()
        assert run.stopped
        assert bench.guard.stats()["control_connects"] == 2


def test_acknowledgements_of_a_cut_follow_with_the_times_at_which_things_happened() -> None:
    """The stop never waits for them, and a late report must not look like a late stop."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key))
        reader = bench.guard._reader
        reader.step(0.0)
        assert run.stopped
        stopped_at_ms = bench.clock.unix_ms()
        bench.transport.is_down = True
        bench.clock.advance(60_000)
        bench.pump()
    bench.transport.is_down = False
    bench.pump()

    assert [(ack.status, ack.at_ms - stopped_at_ms) for ack in bench.transport.acks] == [
        ("received", 0),
        ("applied", 0),
        ("confirmed_dead", 60_000),
    ]


def test_a_step_without_a_connection_says_so() -> None:
    """The thread backs off on this error; anything else it survives as well."""
    bench = GuardBench()
    bench.transport.is_down = True
    with pytest.raises(TransportError):
        bench.guard._reader.step(0.0)

    bench.guard._reader.close(time.monotonic())
