"""The lane that sends an outbox: order, repetition, back-off."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from loopwarden.faults import Counters
from loopwarden.outbox import Outbox
from loopwarden.publisher import WINDOW_ITEMS, Lane
from loopwarden.records import Outgoing, Outlet
from loopwarden.transport import ControlFeed
from loopwarden_models.errors import TransportError


class Pipe:
    """A transport that takes what it is told to take."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.takes: list[int | Exception] = []
        self.refuses: set[bytes] = set()
        self.hold = threading.Event()
        self.hold.set()

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Take the next number of records, or raise the next error."""
        assert topic == "steps"
        self.hold.wait(5.0)
        take = self.takes.pop(0) if self.takes else len(batch)
        if isinstance(take, Exception):
            raise take
        good = [record for record in batch[:take] if record.value not in self.refuses]
        self.sent += [record.value for record in good]
        return batch[take:], len(batch[:take]) - len(good)

    def open_control(self, tenant: str) -> ControlFeed:
        """Have no orders."""
        raise TransportError(tenant)

    def close(self, timeout_s: float) -> None:
        """Do nothing."""


def lane(pipe: Pipe, outbox: Outbox[bytes], counters: Counters | None = None) -> Lane[bytes]:
    """Return a lane whose items are the values themselves."""

    def encode(item: bytes) -> Outgoing | None:
        if item == b"bad":
            raise ValueError("bad")
        return None if item == b"skip" else Outgoing(b"k", item)

    return Lane("steps", outbox, encode, pipe, counters=counters or Counters(), linger_s=0.001)


def filled(*items: bytes) -> Outbox[bytes]:
    """Return an outbox that holds `items`."""
    outbox: Outbox[bytes] = Outbox(max_items=10_000, max_bytes=10**9)
    for item in items:
        outbox.put(item, len(item))
    return outbox


def test_what_was_not_acknowledged_goes_first_the_next_time() -> None:
    """Order within a run holds through any failure, or the detector takes late events for duplicates."""
    pipe = Pipe()
    pipe.takes = [2]
    outbox = filled(b"1", b"2", b"3")
    sender = lane(pipe, outbox)

    assert not sender.step()
    outbox.put(b"4", 1)
    assert sender.step()
    assert sender.step()
    assert pipe.sent == [b"1", b"2", b"3", b"4"]
    assert sender.sent == 4
    assert sender.is_idle


def test_a_window_survives_a_lost_connection() -> None:
    """Events wait in memory while Kafka is away."""
    pipe = Pipe()
    pipe.takes = [TransportError("down")]
    sender = lane(pipe, filled(b"1", b"2"))

    with pytest.raises(TransportError):
        sender.step()
    assert sender.unsent == 2
    assert sender.step()
    assert pipe.sent == [b"1", b"2"]


def test_windows_are_bounded() -> None:
    """What is out with the client library is bounded by us: its own buffer is not."""
    pipe = Pipe()
    sender = lane(pipe, filled(*[b"x"] * (WINDOW_ITEMS + 5)))

    sender.step()
    assert len(pipe.sent) == WINDOW_ITEMS
    assert sender.unsent == 5


def test_a_refused_record_is_counted_and_does_not_block() -> None:
    """A record that the broker will never take would stand in the way of all later ones."""
    pipe, counters = Pipe(), Counters()
    pipe.refuses = {b"2"}
    sender = lane(pipe, filled(b"1", b"2", b"3"), counters)

    assert sender.step()
    assert (pipe.sent, sender.sent) == ([b"1", b"3"], 2)
    assert counters.snapshot() == {"steps_refused": 1}


def test_an_event_that_fails_to_encode_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in one event must not end the publishing of all others; it is logged once."""
    pipe, counters = Pipe(), Counters()
    sender = lane(pipe, filled(b"1", b"bad", b"skip", b"bad", b"3"), counters)

    assert sender.step()
    assert pipe.sent == [b"1", b"3"]
    assert counters.snapshot() == {"faults": 2}
    assert len(caplog.records) == 1


def test_the_thread_sends_and_ends_when_asked() -> None:
    """Closing flushes: the last events of a run are the ones that tell how it ended."""
    pipe = Pipe()
    outbox = filled(b"1")
    connected = threading.Event()
    sender: Lane[bytes] = Lane(
        "steps", outbox, lambda item: Outgoing(b"k", item), pipe, counters=Counters(), linger_s=0.001,
        on_connect=connected.set,
    )  # fmt: skip
    sender.start()
    assert connected.wait(5.0)
    outbox.put(b"2", 1)
    sender.close(time.monotonic() + 5.0)
    sender.join()

    assert pipe.sent == [b"1", b"2"]
    assert sender.is_connected


def test_closing_gives_up_at_its_deadline() -> None:
    """A program that ends must not hang because Kafka is away."""
    pipe = Pipe()
    pipe.takes = [TransportError("down")] * 1_000
    sender = lane(pipe, filled(b"1"))
    sender.start()
    sender.close(time.monotonic() + 0.05)
    sender.join()

    assert sender.unsent == 1
    assert not sender.is_connected


def test_putting_never_waits_for_a_stuck_connection() -> None:
    """The agent's path: with the lane stuck in the client library, a put takes microseconds."""
    pipe = Pipe()
    pipe.hold.clear()
    outbox: Outbox[bytes] = Outbox(max_items=10, max_bytes=10**6)
    outbox.put(b"0", 1)
    sender = lane(pipe, outbox)
    sender.start()
    while len(outbox):
        time.sleep(0.001)
    for n in range(100):
        outbox.put(str(n).encode(), 1)

    assert len(outbox) == 10
    assert outbox.dropped == 90
    pipe.hold.set()
    sender.close(time.monotonic() + 5.0)
    sender.join()
    assert pipe.sent == [b"0", *[str(n).encode() for n in range(90, 100)]]
