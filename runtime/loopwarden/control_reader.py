"""The thread that reads the control topics: connects for ever, and obeys within milliseconds of a record's append."""

from __future__ import annotations

import threading
import time

from loopwarden.control import ControlPlane
from loopwarden.faults import Counters
from loopwarden.stopped_runs import StoppedRuns
from loopwarden.transport import ControlFeed, Transport

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0

# A poll returns as soon as a record comes; this bounds only how late a nudge expires and the thread ends.
POLL_S = 0.2


class ControlReader:
    """Feeds the control plane. `step` belongs to one thread; everything else is safe."""

    def __init__(
        self, transport: Transport, plane: ControlPlane, stopped: StoppedRuns, *, tenant: str, counters: Counters
    ) -> None:
        self._transport = transport
        self._plane = plane
        self._stopped = stopped
        self._tenant = tenant
        self._counters = counters
        self._feed: ControlFeed | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.ready = threading.Event()

    @property
    def is_connected(self) -> bool:
        """True while there is a connection that has not failed."""
        return self._feed is not None

    def start(self) -> None:
        """Start the thread. It is a daemon: it never keeps a process alive."""
        self._thread = threading.Thread(target=self._run, name="loopwarden-control", daemon=True)
        self._thread.start()

    def close(self, deadline_s: float) -> None:
        """Ask the thread to end and wait for it until `deadline_s` (`time.monotonic()`)."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline_s - time.monotonic()))

    def step(self, timeout_s: float = POLL_S) -> None:
        """Connect if need be, wait for records, and apply them.

        Raises:
            TransportError: No connection; the next step tries a new one.
        """
        if self._feed is None:
            self._feed = self._transport.open_control(self._tenant)
            self._counters.add("control_connects")
        try:
            for record in self._feed.poll(timeout_s):
                self._plane.receive(record)
            if not self.ready.is_set() and self._feed.is_caught_up:
                self._plane.ready()
                self.ready.set()
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Let go of the connection."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._closing.is_set():
            try:
                self.step()
                backoff_s = FIRST_BACKOFF_S
            except Exception as error:  # noqa: BLE001 - whatever the client library raises, the thread goes on
                self._counters.add("control_errors")
                self._counters.warn("control", "cannot read the control topics, agents go on: %s", error)
                self._closing.wait(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            self._plane.tick()
            self._stopped.tick()
        self.disconnect()
