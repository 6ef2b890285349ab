"""The gate of one run: written by the control thread, read by the agent's thread without a lock.

Every field that the agent reads is one reference to an immutable value; replacing it is atomic in CPython.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from loopwarden.decisions import RunKey, StopCause
from loopwarden.nudges import Nudge

# The detector gives at most six nudges to a run (detectors 3.4), and each waits for the next prompt only.
MAX_OPEN_NUDGES = 16

NOTHING_BLOCKED: Final[Mapping[str, float]] = {}


class Pause(Struct, frozen=True):
    """Why a run waits.

    Attributes:
        reason: For people.
        command_id: The command behind it, if there is one.
        writer: Who ordered it: the detector cannot lift what a person ordered.
        ordered_ms: When it was ordered, Unix milliseconds: a release from before that does not lift it.
    """

    reason: str
    command_id: str | None
    writer: str
    ordered_ms: int


class Gate:
    """Whether a run may take its next step.

    Attributes:
        key: The run.
        started_ms: Monotonic milliseconds at which the run began.
        cause: Why it is shut; never `None` again once it was set.
        pause: Why it waits.
        blocked: Tools that are blocked for this run alone, and until when on the broker's clock (ms).
        over: True when the run's code has returned.
        cancel: The framework's own way to end the run at once, if the agent gave one.
    """

    __slots__ = ("_lock", "_nudges", "_pauses", "blocked", "cancel", "cause", "has_nudges", "key", "over", "pause",
                 "started_ms")  # fmt: skip

    def __init__(self, key: RunKey, *, started_ms: float, cancel: Callable[[str], object] | None = None) -> None:
        self.key = key
        self.started_ms = started_ms
        self.cancel = cancel
        self.cause: StopCause | None = None
        self.pause: Pause | None = None
        self.blocked: Mapping[str, float] = NOTHING_BLOCKED
        self.over = False
        self.has_nudges = False
        self._pauses: dict[str, Pause] = {}
        self._nudges: list[Nudge] = []
        self._lock = threading.Lock()

    def shut(self, cause: StopCause) -> bool:
        """Shut the gate for ever. Returns False if it was shut before: the first cause stands."""
        with self._lock:
            if self.cause is not None or self.over:
                return False
            self.cause = cause
        return True

    def close(self) -> bool:
        """Mark the run as over; returns False if it was already. After this no command can be applied to it."""
        with self._lock:
            was_over, self.over = self.over, True
        return not was_over

    def hold(self, holder: str, pause: Pause) -> bool:
        """Pause the run on behalf of `holder`; returns False if that holder holds it already, or it cannot be held.

        What is ordered again counts from the later order, so that it does not matter which of the two came first.
        """
        with self._lock:
            if self.cause is not None or self.over:
                return False
            held = self._pauses.get(holder)
            if held is None or pause.ordered_ms > held.ordered_ms:
                self._pauses[holder] = pause
                self.pause = pause
        return held is None

    def lift(self, may_lift: Callable[[str, Pause], bool]) -> bool:
        """Remove the pauses that `may_lift` agrees to; returns whether there were any."""
        with self._lock:
            kept = {holder: pause for holder, pause in self._pauses.items() if not may_lift(holder, pause)}
            lifted = len(kept) < len(self._pauses)
            self._pauses = kept
            self.pause = next(iter(kept.values()), None)
        return lifted

    def offer(self, nudge: Nudge) -> bool:
        """Keep a nudge for the next prompt; returns False if too many wait already or no prompt can follow."""
        with self._lock:
            if len(self._nudges) >= MAX_OPEN_NUDGES or self.cause is not None or self.over:
                return False
            self._nudges.append(nudge)
            self.has_nudges = True
        return True

    def take_nudges(self) -> tuple[Nudge, ...]:
        """Return the nudges that wait, and forget them: each is handed out once."""
        with self._lock:
            taken, self._nudges = tuple(self._nudges), []
            self.has_nudges = False
        return taken

    def drop_nudge(self, nudge: Nudge) -> None:
        """Forget a nudge whose life is over, if it still waits."""
        with self._lock:
            self._nudges = [waiting for waiting in self._nudges if waiting is not nudge]
            self.has_nudges = bool(self._nudges)
