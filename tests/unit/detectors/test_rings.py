"""The fixed-size memories: recent calls, counts in a window, sets of short keys."""

from __future__ import annotations

import pytest

from loopwarden_detectors.rings import (
    BUCKET_MS,
    KEPT_CALLS,
    MAX_CALLS,
    OTHER_TOOL,
    POLLS,
    UNDECLARED,
    WAITS,
    WINDOW_MS,
    Ring,
    add_new_key,
    count_in_window,
    holds_key,
    mark_of,
    new_window,
)

SEQ = 1_000


def ring_of(*calls: tuple[int, int], kinds: tuple[int, ...] = (), in_round: bool = False) -> Ring:
    """Return a ring of calls given as (pair key, call key), a second apart, all of one round if told."""
    ring = Ring()
    for n, (pair, call) in enumerate(calls):
        kind = (*kinds, *[0] * len(calls))[n]
        ring.append(mark_of(pair, call), SEQ + n, 50 + n, 1_000 * n, kind | n % 4, n if in_round else 0)
    return ring


def test_a_call_is_found_by_its_key_and_the_newest_counts() -> None:
    """What an earlier call answered is compared with the newest of its kind."""
    ring = ring_of((11, 1), (12, 2), (13, 1), (14, 3))

    assert ring.find_call(mark_of(0, 1)) == 2
    assert ring.find_call(mark_of(0, 3)) == 3
    assert ring.find_call(mark_of(0, 9)) == -1


def test_a_missing_call_is_never_found() -> None:
    """Missing evidence equals nothing, not even other missing evidence."""
    ring = ring_of((0, 0), (0, 0))

    assert ring.find_call(mark_of(0, 0)) == -1


def test_a_key_across_two_marks_is_no_key() -> None:
    """The search is over bytes: what it finds between two keys is chance."""
    #          pair      call      pair      call
    #  bytes   00000001  02030405  06070809  0000000a
    #                        |-- 04050607 --|
    ring = ring_of((0x1, 0x02030405), (0x06070809, 0xA))

    assert ring.find_call(mark_of(0, 0x04050607)) == -1
    assert ring.find_call(mark_of(0, 0x02030405)) == 0


@pytest.mark.parametrize(
    ("answer", "place", "has_changed"),
    [(12, 2, False), (11, 0, True), (99, -1, True)],
    ids=["as the last time", "as before that", "never"],
)
def test_an_answer_is_compared_with_those_of_the_same_call(answer: int, place: int, has_changed: bool) -> None:
    """A changed answer is a sign of progress; an old one is what a cycle is made of."""
    ring = ring_of((11, 1), (20, 2), (12, 1))

    assert ring.find_answer(ring.find_call(mark_of(0, 1)), mark_of(answer, 1)) == (place, has_changed)


def test_an_unknown_answer_is_not_another_one() -> None:
    """A refused call in between says nothing about whether the world moved."""
    ring = ring_of((11, 1), (0, 1))

    assert ring.find_answer(ring.find_call(mark_of(0, 1)), mark_of(11, 1)) == (0, False)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_calls_of_one_round_stand_in_the_order_of_their_keys(order: tuple[int, ...]) -> None:
    """Parallel calls finish in any order; sorted, the same batch always reads the same."""
    ring = ring_of(*((10 + key, key) for key in order), in_round=True)

    assert [ring.find_call(mark_of(0, key)) for key in (1, 2, 3)] == [0, 1, 2]


def test_a_round_is_sorted_among_itself_alone() -> None:
    """An earlier round keeps its place, whatever its keys are."""
    ring = ring_of((19, 9), (18, 8))
    ring.append(mark_of(11, 1), SEQ + 2, 52, 2_000, 0)
    ring.append(mark_of(10, 0xFFFF), SEQ + 3, 53, 2_001, 0, 1)

    assert [ring.find_call(mark_of(0, key)) for key in (9, 8, 1, 0xFFFF)] == [0, 1, 2, 3]


def test_the_oldest_calls_leave_and_forty_stay() -> None:
    """A new write is one that did not occur among the last forty: they must be there whenever it is asked."""
    ring = Ring()
    for n in range(1, 500):
        ring.append(mark_of(n, n), SEQ + n, n, n, 0)
        held = len(ring)

        assert min(n, KEPT_CALLS) <= held <= MAX_CALLS
        assert ring.find_call(mark_of(0, max(1, n - KEPT_CALLS + 1))) >= 0


def test_a_batch_larger_than_the_ring_keeps_the_caps() -> None:
    """A hundred parallel calls are one round, and no more memory."""
    ring = Ring()
    for n in range(100):
        ring.append(mark_of(n + 1, 1_000 - n), SEQ + n, n, n, 0, n)

    assert KEPT_CALLS <= len(ring) <= MAX_CALLS
    assert len(ring.times()) == len(ring)


@pytest.mark.parametrize("start", [0, 2**32 - 2, 2**52])
def test_where_a_call_was_is_told_in_full(start: int) -> None:
    """Half of each number is kept; the other half follows from the newest, also where the lower half wraps."""
    ring = Ring()
    for n in range(4):
        ring.append(mark_of(n + 1, n + 1), start + n, start + 10 * n, 700 * n, n)

    assert ring.call_at(3, seq=start + 3, offset=start + 30) == (start, start, 0, 0)
    assert ring.call_at(0, seq=start + 3, offset=start + 30) == (start + 3, start + 30, 2_100, 3)


def test_without_source_offsets_none_is_told() -> None:
    """A replay from a file has no offsets, and evidence must not point at records that do not exist."""
    ring = Ring()
    ring.append(mark_of(1, 1), SEQ, -1, 0, 0)
    ring.append(mark_of(2, 2), SEQ + 1, -1, 5, 0)

    assert ring.call_at(1, seq=SEQ + 1, offset=-1)[:2] == (SEQ, -1)


def test_looking_too_far_back_is_an_error() -> None:
    """A rule that asks for more than is kept is a fault of ours, not an empty answer."""
    with pytest.raises(IndexError, match="holds 1 calls, 1 back"):
        ring_of((1, 1)).call_at(1, seq=SEQ, offset=50)


@pytest.mark.parametrize(
    ("calls", "kinds", "is_patience"),
    [
        ([1, 2], (POLLS, WAITS), True),
        ([1, 2], (POLLS, POLLS), True),
        ([1, 2], (UNDECLARED, WAITS), True),
        ([1, 2], (UNDECLARED, UNDECLARED), False),
        ([1, 2], (0, WAITS), False),
        ([1, 2, 3], (UNDECLARED, UNDECLARED, WAITS), False),
        ([1, 2, 1], (UNDECLARED, WAITS, UNDECLARED), True),
    ],
    ids=["poll, wait", "two polls", "look, wait", "two looks", "declared read, wait", "two calls, wait", "look twice"],
)
def test_patience_is_a_lap_of_polls_and_waits(calls: list[int], kinds: tuple[int, ...], is_patience: bool) -> None:
    """A healthy wait is a perfect cycle. Real agents poll with tools that nobody declared."""
    ring = ring_of(*((10 + call, call) for call in calls), kinds=kinds)

    assert ring.is_patience(len(calls)) is is_patience


def test_a_call_that_a_person_approved_matches_nothing_any_more() -> None:
    """Its answers are taken out of all comparisons; the other calls keep theirs."""
    ring = ring_of((11, 1), (12, 2), (11, 1))
    ring.forget_call(1)

    assert ring.find_answer(ring.find_call(mark_of(0, 1)), mark_of(11, 1)) == (-1, False)
    assert ring.find_answer(ring.find_call(mark_of(0, 2)), mark_of(12, 2)) == (1, False)


def test_gaps_and_spans_are_those_of_event_time() -> None:
    """A poller is told from a loop by how far apart its calls lie."""
    ring = ring_of((1, 1), (2, 2), (3, 3))

    assert ring.newest_gap_ms() == 1_000
    assert ring.span_ms(3) == 2_000
    assert ring.span_ms(4) is None
    assert Ring().newest_gap_ms() == 0


def test_tools_are_told_by_number() -> None:
    """The name stands once per run, not once per call."""
    ring = ring_of((1, 1), (2, 2), (3, 3))
    ring.append(mark_of(4, 4), SEQ + 3, 53, 3_000, WAITS | OTHER_TOOL)

    assert ring.tools() == [0, 1, 2, OTHER_TOOL]


def test_events_count_for_a_minute() -> None:
    """Buckets of five seconds: the window ends between 55 and 60 seconds after an event."""
    #   0            55    60
    #   |--bucket--|  …  |--|--|
    #   event             last time that it counts
    window = new_window()

    assert [count_in_window(window, ms) for ms in (0, 1, BUCKET_MS, WINDOW_MS - 1)] == [1, 2, 3, 4]
    assert count_in_window(window, WINDOW_MS) == 3


def test_a_long_silence_empties_the_window() -> None:
    """After a day nothing of yesterday counts, however large the jump is."""
    window = new_window()
    for _ in range(100):
        count_in_window(window, 0)

    assert count_in_window(window, 2**53) == 1


def test_a_clock_that_stands_still_counts_on() -> None:
    """The clock of a run never goes back, but it may stop: a source's times may all be equal."""
    window = new_window()

    assert [count_in_window(window, 7_000) for _ in range(3)] == [1, 2, 3]


def test_a_key_is_new_once() -> None:
    """A call id that was seen is a retry report."""
    keys = bytearray()

    assert add_new_key(keys, b"abcd", max_bytes=512)
    assert not add_new_key(keys, b"abcd", max_bytes=512)
    assert holds_key(keys, b"abcd")


def test_a_key_between_two_others_is_not_held() -> None:
    """Keys are joined: `cdef` stands there, but nobody put it in."""
    keys = bytearray(b"abcdefgh")

    assert not holds_key(keys, b"cdef")
    assert add_new_key(keys, b"cdef", max_bytes=512)
    assert holds_key(keys, b"cdef")


def test_the_older_half_of_the_keys_leaves() -> None:
    """At least half of the cap is remembered at any time."""
    keys = bytearray()
    for n in range(1_000):
        add_new_key(keys, n.to_bytes(4, "big"), max_bytes=64)

        assert len(keys) <= 64
        assert holds_key(keys, max(0, n - 7).to_bytes(4, "big"))


def test_the_newest_answer_is_new_if_no_call_before_had_it() -> None:
    """An answer that is not reported is no answer, and halves of two others spell none."""
    ring = Ring()
    assert not ring.is_newest_new()
    for result, expected in ((1, True), (2, True), (1, False), (0, False), (3, True)):
        ring.append(mark_of(result, 7), 0, 0, 0, 0)
        assert ring.is_newest_new() is expected
