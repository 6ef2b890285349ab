"""Breaker records in any order, any number of times: the same board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden.breakers import Breaker, Breakers
from loopwarden.faults import Counters
from loopwarden.testing import START_MS, breaker
from loopwarden_models.codec import encode
from loopwarden_models.control_state import BreakerState, Probe

STATES = ("closed", "open", "half_open", "forced_open", "disabled", "observe_only", "ajar")
TOOLS = ("search", "read")
MAX_MS = START_MS + 10_000

Read = tuple[str, BreakerState | None, int]
"""Tool, record or tombstone, append time."""


@st.composite
def records(draw: st.DrawFn) -> Read:
    """One record. Few versions, leases and times, so that they meet."""
    tool, state = draw(st.sampled_from(TOOLS)), draw(st.sampled_from(STATES))
    made = breaker(
        tool,
        state,
        version=(draw(st.integers(1, 2)), draw(st.integers(1, 3))),
        lease_ms=draw(st.sampled_from([None, 5_000, 20_000, 10**12])),
        writer=draw(st.sampled_from(["detector", "operator"])),
        retry_after_ms=draw(st.sampled_from([None, 1_000])),
        probe=draw(st.sampled_from([None, Probe(1, 0.5), Probe(2, 0.5)])),
    )
    return tool, made, draw(st.integers(START_MS, START_MS + 4))


def board_after(reads: Sequence[Read]) -> Breakers:
    """Return the board when all was read."""
    board = Breakers(Counters())
    for tool, record, append_ms in reads:
        if record is None:
            board.delete(tool, append_ms)
        else:
            board.put(tool, record, encode(record), append_ms)
    return board


def in_force(reads: Sequence[Read], *, at_ms: float = 0.0) -> Mapping[str, Breaker]:
    """Return what binds when all was read and, at a time, what was over has been closed."""
    board = board_after(reads)
    board.expire(at_ms)
    return board.in_force


@settings(max_examples=500)
@given(data=st.data(), reads=st.lists(records(), max_size=12))
def test_any_order_and_any_duplicates_give_one_board(data: st.DataObject, reads: list[Read]) -> None:
    """Compaction, reading from the beginning and two writers leave no order that means anything."""
    again = data.draw(st.lists(st.sampled_from(reads), max_size=6)) if reads else []
    shuffled = data.draw(st.permutations([*reads, *again]))
    at_ms = data.draw(st.integers(START_MS, MAX_MS))

    assert in_force(shuffled) == in_force(reads)
    assert in_force(shuffled, at_ms=at_ms) == in_force(reads, at_ms=at_ms)


@settings(max_examples=500)
@given(data=st.data(), reads=st.lists(records(), max_size=12))
def test_expiry_in_between_changes_nothing(data: st.DataObject, reads: list[Read]) -> None:
    """Whether a thread of ours woke up before or after a record decides nothing."""
    at_ms = data.draw(st.integers(START_MS, MAX_MS))
    cut = data.draw(st.integers(0, len(reads)))
    board = board_after(reads[:cut])
    board.expire(at_ms)
    for tool, record, append_ms in reads[cut:]:
        assert record is not None
        board.put(tool, record, encode(record), append_ms)
    board.expire(at_ms)

    assert board.in_force == in_force(reads, at_ms=at_ms)


@settings(max_examples=500)
@given(data=st.data(), log=st.lists(records() | st.tuples(st.sampled_from(TOOLS), st.none(), st.just(0)), max_size=14))
def test_a_log_with_deletions_can_be_read_again_from_anywhere(data: st.DataObject, log: list[Read]) -> None:
    """A partition has one order and times that do not fall; a reader starts over at any place, any number of times."""
    ordered = [(tool, record, START_MS + number // 2) for number, (tool, record, _) in enumerate(log)]
    reads: list[Read] = []
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(ordered)))
        reads += ordered[start : data.draw(st.integers(start, len(ordered)))]

    # What was read before is read in full once more: as after a reconnect that has lost its positions.
    assert in_force([*ordered, *reads, *ordered]) == in_force(ordered)
    assert in_force([*ordered, *ordered[data.draw(st.integers(0, len(ordered))) :]]) == in_force(ordered)
