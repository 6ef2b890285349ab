"""One thread that sends what an outbox holds: in order, again until acknowledged, never in the agent's way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from loopwarden.faults import Counters
from loopwarden.outbox import Outbox
from loopwarden.records import Outgoing
from loopwarden.transport import Transport

_T = TypeVar("_T")

# A window is what is out at one time. 500 events are about 0.5 MB and one round trip: 25,000 events/s at 20 ms.
WINDOW_ITEMS = 500

# Back-off while Kafka is away: soon enough after its return, and a handful of attempts a minute.
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0

_IDLE_S = 1.0


class Lane(Generic[_T]):
    """Sends the items of one outbox through the transport, window by window.

    A window leaves only when the one before it was acknowledged, and what was not acknowledged goes first the next
    time: that keeps the order of every run through any failure. While Kafka is away the outbox fills and drops.

    Thread safety: `step` belongs to one thread; everything else is safe.
    """

    def __init__(
        self,
        topic: Literal["steps", "acks"],
        outbox: Outbox[_T],
        encode: Callable[[_T], Outgoing | None],
        transport: Transport,
        *,
        counters: Counters,
        linger_s: float,
        on_connect: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self._outbox = outbox
        self._encode = encode
        self._transport = transport
        self._counters = counters
        self._linger_s = linger_s
        self._on_connect = on_connect
        self._window: list[Outgoing] = []
        self._closing = threading.Event()
        self._deadline_s = float("inf")
        self._thread: threading.Thread | None = None
        self._busy = False
        self.is_connected = False
        self.sent = 0

    def start(self) -> None:
        """Start the thread. It is a daemon: it never keeps a process alive."""
        self._thread = threading.Thread(target=self._run, name=f"loopwarden-{self.topic}", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """True if everything that was put is acknowledged, dropped or refused."""
        return not self._busy and not self._window and len(self._outbox) == 0

    @property
    def unsent(self) -> int:
        """Items that are queued or out."""
        return len(self._window) + len(self._outbox)

    def close(self, deadline_s: float) -> None:
        """Ask the thread to end when everything is sent, or at `deadline_s` (`time.monotonic()`)."""
        self._deadline_s = deadline_s
        self._closing.set()
        self._outbox.wake()

    def join(self) -> None:
        """Wait for the thread, at most until the deadline given to `close`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, self._deadline_s - time.monotonic()))

    def step(self) -> bool:
        """Send one window; return False if something of it has to be sent again.

        Blocks in the transport, never in anything that an agent's thread waits for.

        Raises:
            TransportError: Kafka cannot be reached.
        """
        self._busy = True
        try:
            if not self._window:
                self._window = self._encode_all(self._outbox.take(WINDOW_ITEMS))
            if not self._window:
                return True
            unsent, refused = self._transport.send(self.topic, self._window)
            self.sent += len(self._window) - len(unsent) - refused
            if refused:
                self._counters.add(f"{self.topic}_refused", refused)
            self._window = list(unsent)
            if not unsent and not self.is_connected:
                self.is_connected = True
                self._on_connect()
            return not unsent
        finally:
            self._busy = False

    def _encode_all(self, items: list[_T]) -> list[Outgoing]:
        window: list[Outgoing] = []
        for item in items:
            try:
                outgoing = self._encode(item)
            except Exception as error:  # noqa: BLE001 - one bad event must not end the publishing of all others
                self._counters.fault(f"encode {self.topic}", error)
            else:
                if outgoing is not None:
                    window.append(outgoing)
        return window

    def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._is_over():
            if not self._window:
                if not self._closing.is_set() and not self._outbox.wait(_IDLE_S):
                    continue
                # A batch costs one round trip, an event alone as well: wait for company.
                if self._linger_s and not self._closing.is_set():
                    self._closing.wait(self._linger_s)
            try:
                if self.step():
                    backoff_s = FIRST_BACKOFF_S
                    continue
            except Exception as error:  # noqa: BLE001 - whatever the client library raises, the thread goes on
                self._counters.add("publish_errors")
                self._counters.warn(
                    f"publish {self.topic}", "cannot publish to %s, events wait in memory: %s", self.topic, error
                )
            self.is_connected = False
            self._closing.wait(min(backoff_s, max(0.0, self._deadline_s - time.monotonic())))
            if self._closing.is_set():
                time.sleep(min(FIRST_BACKOFF_S, max(0.0, self._deadline_s - time.monotonic())))
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _is_over(self) -> bool:
        if not self._closing.is_set():
            return False
        return self.unsent == 0 or time.monotonic() >= self._deadline_s
