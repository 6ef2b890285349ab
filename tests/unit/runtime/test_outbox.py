"""The bounded queue between agents and Kafka."""

from __future__ import annotations

import threading

from loopwarden.outbox import Outbox


def test_the_oldest_are_dropped_and_counted_when_it_is_full() -> None:
    """The newest events tell whether a run loops now, and its end must get through."""
    outbox: Outbox[int] = Outbox(max_items=3, max_bytes=1_000)
    for n in range(5):
        outbox.put(n, 10)

    assert outbox.take(10) == [2, 3, 4]
    assert (outbox.dropped, outbox.accepted) == (2, 5)


def test_bytes_are_bounded_too() -> None:
    """Ten thousand large results would be gigabytes in somebody else's process."""
    outbox: Outbox[str] = Outbox(max_items=100, max_bytes=100)
    outbox.put("a", 60)
    outbox.put("b", 30)
    outbox.put("c", 30)

    assert outbox.size_bytes == 60
    assert outbox.take(10) == ["b", "c"]
    assert outbox.size_bytes == 0


def test_one_item_above_the_bound_still_passes() -> None:
    """It is cut before it is sent; refusing it here would lose the event and its hash."""
    outbox: Outbox[str] = Outbox(max_items=100, max_bytes=100)
    outbox.put("a", 60)
    outbox.put("huge", 5_000)

    assert outbox.take(10) == ["huge"]


def test_taking_keeps_order_and_leaves_the_rest() -> None:
    """Order within a run is part of the contract."""
    outbox: Outbox[int] = Outbox(max_items=1_000, max_bytes=1_000_000)
    for n in range(200):
        outbox.put(n, 1)

    assert outbox.take(150) == list(range(150))
    assert outbox.wait(0.0)
    assert outbox.take(150) == list(range(150, 200))
    assert not outbox.wait(0.0)


def test_nothing_is_lost_between_threads() -> None:
    """Two producers, one taker: no wake-up may be missed between the last take and the next put."""
    outbox: Outbox[int] = Outbox(max_items=100_000, max_bytes=10**9)

    def fill() -> None:
        for n in range(2_000):
            outbox.put(n, 1)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    taken = 0
    while taken < 4_000 and outbox.wait(5.0):
        taken += len(outbox.take(64))
    for thread in threads:
        thread.join()

    assert taken == 4_000
