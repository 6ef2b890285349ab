"""The memory of a tool: its window, where its sums came from, and its snapshot."""

from __future__ import annotations

import pytest
from tests._support.tools import T0, second, sums

from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.errors import StateCorrupt


def totals(tool: ToolState) -> tuple[int, int, int]:
    """Return calls, failures and slow calls."""
    return tool.calls, tool.failures, tool.slow


def test_seconds_leave_the_window_one_by_one() -> None:
    """A sum of the second 30 pushes the second 0 out, and nothing else."""
    tool = ToolState("acme", "search", born=0)
    for at in (0, 1, 29):
        tool.add(second(at, ok=1, failed=1), 30)
    before = totals(tool)
    tool.add(second(30, ok=1), 30)

    assert before == (6, 3, 0)
    assert totals(tool) == (5, 2, 0)
    assert [bucket.second - T0 // 1000 for bucket in tool.buckets] == [1, 29, 30]


def test_a_late_second_is_put_in_its_place_or_left_out() -> None:
    """Partitions are read at different speeds."""
    tool = ToolState("acme", "search", born=0)
    assert tool.add(second(40, ok=1), 30)
    assert tool.add(second(20, failed=2, runs=("a",)), 30)
    assert tool.add(second(20, failed=2, runs=("b",)), 30)
    assert not tool.add(second(10, failed=5), 30)

    assert totals(tool) == (5, 4, 0)
    assert [bucket.second - T0 // 1000 for bucket in tool.buckets] == [20, 40]
    assert tool.failed_runs() == 2


def test_a_sum_is_counted_once_wherever_the_next_owner_cuts() -> None:
    """The next owner of a partition sends again what the last one sent, and cannot know how it was added up."""
    tool = ToolState("acme", "search", born=0)
    one = second(0, ok=1)

    assert tool.admit(sums(one, first=0, last=9)) == "new"
    assert tool.admit(sums(one, first=10, last=19)) == "new"
    assert tool.admit(sums(one, first=12, last=19)) == "duplicate"
    assert tool.admit(sums(one, first=5, last=15, epoch=2)) == "duplicate"
    assert tool.admit(sums(one, first=16, last=25, epoch=2)) == "straddling"
    assert tool.admit(sums(one, first=20, last=24, epoch=2)) == "duplicate"
    assert tool.admit(sums(one, first=26, last=26, epoch=2)) == "new"
    assert tool.admit(sums(one, first=30, last=39, epoch=1)) == "stale"
    assert tool.admit(sums(one, first=0, last=9, partition=1)) == "new"


def test_a_snapshot_is_read_back_as_it_was() -> None:
    """Also the window, which may trip a moment later."""
    tool = ToolState("acme", "search", born=3, offset=9)
    tool.admit(sums(second(0, ok=1), first=0, last=9))
    tool.add(second(0, ok=2, failed=3, slow=1), 30)

    assert ToolState.from_bytes(tool.to_bytes()) == tool


@pytest.mark.parametrize("damage", ["version", "byte", "short", "empty"])
def test_a_damaged_snapshot_is_refused(damage: str) -> None:
    """Half a state would judge with half a memory."""
    data = ToolState("acme", "search", born=3).to_bytes()
    broken = {
        "version": b"\x09" + data[1:],
        "byte": data[:-1] + bytes([data[-1] ^ 1]),
        "short": data[:4],
        "empty": b"",
    }[damage]

    with pytest.raises(StateCorrupt):
        ToolState.from_bytes(broken)
