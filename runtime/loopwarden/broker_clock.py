"""The broker's time as seen from here. The host's wall clock is never asked: it may be wrong by minutes or jump."""

from __future__ import annotations

from collections import deque

# Long enough to contain a quiet moment, short enough to follow drift (control-plane 3).
WINDOW_MS = 600_000.0

# The control topics are silent for hours where nothing loops. Then the one record that was read late, after a cut,
# must not be the only witness: an older minimum stays until so many newer records were seen.
MIN_SAMPLES = 8


class BrokerClock:
    """Estimates the broker's clock from append times and our monotonic clock. One thread observes, any thread asks.

    Offset = the smallest (receive time - append time) of the last ten minutes: what is more was time on the way. So
    the estimate is early rather than late, by the way of the fastest record; a record that was found at the start
    and lay there for an unknown time is a lower bound like any other.
    """

    def __init__(self) -> None:
        # (number, time, offset) with increasing offsets: the first is the minimum of the window.
        self._minima: deque[tuple[int, float, float]] = deque()
        self._count = 0
        # One reference, replaced as a whole: what other threads read.
        self._offset: float | None = None

    def observe(self, append_ms: int, received_ms: float) -> None:
        """Learn from one record.

        Args:
            append_ms: The broker's append time, Unix milliseconds.
            received_ms: Our monotonic milliseconds on receipt.

        Cost: O(1) amortised.
        """
        offset = received_ms - append_ms
        self._count += 1
        while self._minima and self._minima[-1][2] >= offset:
            self._minima.pop()
        self._minima.append((self._count, received_ms, offset))
        while self._minima[0][1] < received_ms - WINDOW_MS and self._count - self._minima[0][0] >= MIN_SAMPLES:
            self._minima.popleft()
        self._offset = self._minima[0][2]

    def at(self, monotonic_ms: float) -> float | None:
        """Return the broker's Unix milliseconds at that moment; `None` before the first record."""
        offset = self._offset
        return None if offset is None else monotonic_ms - offset
