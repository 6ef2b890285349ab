"""Breakers of one process: windows, openings, probes."""

from __future__ import annotations

import pytest

from loopwarden.faults import Counters
from loopwarden.local_breakers import MAX_TOOLS, LocalBreakers, LocalLimits, is_backing_off
from loopwarden.tool_calls import Call

LIMITS = LocalLimits(window_ms=60_000, min_failures=5, failure_share=0.5, open_ms=30_000, max_open_ms=300_000)
# Jitter is a fifth.
LONGEST_FIRST_MS = 36_000.0


class Bench:
    """A process with one clock."""

    def __init__(self, salt: str = "rt-1") -> None:
        self.counters = Counters()
        self.breakers = LocalBreakers(LIMITS, salt=salt, counters=self.counters)
        self.now_ms = 1_000.0

    def call(self, failed: bool | None, *, tool: str = "search", after_ms: float = 100.0) -> bool:
        """Make a call, if it may be made, and report its end; returns whether it was made."""
        self.now_ms += after_ms
        made = Call("c", tool, None, "read", self.now_ms)
        if self.breakers.refuse(made, self.now_ms) is not None:
            return False
        self.breakers.ended(made, self.now_ms, failed=failed)
        return True

    def begin(self, after_ms: float = 0.0) -> Call | None:
        """Make a call and leave it out; `None` if it is refused."""
        self.now_ms += after_ms
        made = Call("c", "search", None, "read", self.now_ms)
        return None if self.breakers.refuse(made, self.now_ms) is not None else made

    def pause_ms(self) -> int:
        """Return the length of the pause that has just begun, to 100 ms."""
        begun_ms = self.now_ms
        while not self.call(failed=True):
            pass
        return round(self.now_ms - begun_ms)


def opened() -> Bench:
    """Return a process whose search is open."""
    bench = Bench()
    assert all(bench.call(failed=True) for _ in range(5))
    return bench


def test_five_failures_open_and_four_do_not() -> None:
    """In a minute, of a tool that does not work otherwise."""
    bench = Bench()
    assert all(bench.call(failed=True) for _ in range(4))
    assert bench.call(failed=True)
    assert not bench.call(failed=True)
    assert bench.call(failed=True, tool="read")
    assert bench.counters.snapshot() == {"local_openings": 1}


@pytest.mark.parametrize(("well", "is_open"), [(4, True), (5, True), (6, False)])
def test_half_of_the_calls_must_have_failed(well: int, is_open: bool) -> None:
    """A tool that works more often than not is worth a call."""
    bench = Bench()
    assert all(bench.call(failed=False) for _ in range(well))
    assert all(bench.call(failed=True) for _ in range(5))
    assert bench.call(failed=True) is not is_open


def test_what_says_nothing_about_the_tool_is_not_counted() -> None:
    """Neither as a failure nor as a call that went well."""
    bench = Bench()
    for _ in range(5):
        assert bench.call(failed=None)
        assert bench.call(failed=True)
    assert not bench.call(failed=None)


def test_failures_leave_the_window() -> None:
    """Five in an hour are no outage. The window slides by a twelfth of itself."""
    bench = Bench()
    assert all(bench.call(failed=True, after_ms=15_000) for _ in range(20))


def test_successes_leave_the_window_too() -> None:
    """That it worked an hour ago helps nobody."""
    bench = Bench()
    assert all(bench.call(failed=False) for _ in range(50))
    assert bench.call(failed=True, after_ms=65_000)
    assert all(bench.call(failed=True) for _ in range(4))
    assert not bench.call(failed=True)


def test_back_off_counts_half() -> None:
    """Who waits ever longer does no harm."""
    bench = Bench()
    gaps = [100.0, 200.0, 400.0, 800.0, 1_600.0, 3_200.0, 6_400.0, 12_800.0]
    assert all(bench.call(failed=True, after_ms=gap) for gap in gaps)


@pytest.mark.parametrize(
    ("times", "grows"),
    [
        ([], False),
        ([0, 1], False),
        ([0, 10, 25], True),
        ([0, 10, 24], False),
        ([0, 0, 0], False),
        ([5, 6, 8, 7], False),
    ],
)
def test_back_off_is_gaps_that_grow_by_half(times: list[float], grows: bool) -> None:
    """Calls of one moment are none."""
    assert is_backing_off(times) is grows


def test_pauses_double_up_to_five_minutes() -> None:
    """A failed probe says that it was too early."""
    bench = opened()
    pauses = [bench.pause_ms() for _ in range(6)]

    for pause, about in zip(pauses, [30_000, 60_000, 120_000, 240_000, 300_000, 300_000], strict=True):
        assert 0.8 * about <= pause <= min(1.2 * about, 300_000) + 100
    assert bench.counters.snapshot() == {"local_openings": 7, "local_probes": 6}


def test_processes_do_not_come_back_together() -> None:
    """The pause of each has a jitter of its own, the same whenever it is asked."""
    pauses = []
    for salt in ("rt-1", "rt-2", "rt-3", "rt-1"):
        bench = Bench(salt)
        assert all(bench.call(failed=True) for _ in range(5))
        pauses.append(bench.pause_ms())

    assert len(set(pauses)) == 3
    assert pauses[0] == pauses[3]


def test_one_probe_at_a_time_and_a_success_closes() -> None:
    """The others wait for its answer."""
    bench = opened()
    probe = bench.begin(after_ms=LONGEST_FIRST_MS)
    assert probe is not None
    assert bench.begin() is None
    bench.breakers.ended(probe, bench.now_ms, failed=False)

    # And its failures are forgotten.
    assert all(bench.call(failed=True) for _ in range(4))
    assert bench.begin() is not None


def test_a_call_from_before_the_opening_is_no_probe() -> None:
    """It began while the tool was closed; its late end opens and closes nothing."""
    bench = Bench()
    early = bench.begin()
    assert early is not None
    assert all(bench.call(failed=True) for _ in range(5))
    bench.breakers.ended(early, bench.now_ms, failed=False)

    assert bench.begin() is None


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_probe_that_tells_nothing_is_followed_by_another(is_reported: bool) -> None:
    """It was cancelled, or its run ended without a word."""
    bench = opened()
    probe = bench.begin(after_ms=LONGEST_FIRST_MS)
    assert probe is not None
    if is_reported:
        bench.breakers.ended(probe, bench.now_ms, failed=None)
        assert bench.begin() is not None
    else:
        assert bench.begin(after_ms=59_999) is None
        assert bench.begin(after_ms=1) is not None


def test_the_number_of_tools_is_bounded() -> None:
    """A model that invents names of tools must not fill the process."""
    bench = opened()
    for number in range(MAX_TOOLS):
        bench.call(failed=True, tool=f"t{number}")

    assert bench.begin() is not None
    assert len(bench.breakers._tools) <= MAX_TOOLS
