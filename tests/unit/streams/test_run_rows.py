"""The runs of a fleet as rows: from snapshots, states and verdicts."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from tests._support.fleet import Event, looping

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.stops import StopState
from loopwarden_detectors.watch import observe
from loopwarden_models.codec import decode_step, encode
from loopwarden_models.control_state import RunRecord
from loopwarden_models.patterns import Level
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.run_rows import RunRow, RunTable, Sayings, rows
from loopwarden_streams.runs_command import chosen
from loopwarden_streams.snapshots import POSITION_KEY, encode_snapshot, tool_snapshot_key
from loopwarden_streams.standing_orders import StandingOrders

START_MS = 1_800_000_000_000


class Read(NamedTuple):
    """What a table needs of a record."""

    key: bytes | None
    value: bytes | None
    partition: int = 0


def tree_of(events: list[Event]) -> tuple[TreeState, Sayings]:
    """Return the state after events, and what was said of them."""
    tree = TreeState(tenant="acme", root_run_id=str(events[0]["run_id"]))
    sayings = Sayings()
    for event in events:
        step = decode_step(msgspec.json.encode(event))
        assert step is not None
        for decision in observe(tree, step, DEFAULT_POLICY):
            if isinstance(decision.verdict, Verdict):
                sayings.put(decision.verdict)
    return tree, sayings


def bound(state: str, **fields: Any) -> StandingOrders:
    """Return what stands with one record of the run r-1."""
    standing = StandingOrders()
    record = RunRecord(v=1, key="acme|run|r-1", version=[1, 0], state=state, **fields)
    standing.put(record.key.encode(), encode(record), START_MS + 3_600_000)
    return standing


def row_of(tree: TreeState, standing: StandingOrders, sayings: Sayings) -> RunRow:
    """Return the only row."""
    (row,) = rows(tree, standing, sayings)
    return row


def test_a_row_says_who_it_is_and_the_strongest_that_was_said() -> None:
    """What a person on call looks for first, and with which rule to look it up."""
    tree, sayings = tree_of(looping("r-1", 9, start_ms=START_MS))

    row = row_of(tree, StandingOrders(), sayings)
    forgotten = row_of(tree, StandingOrders(), Sayings())

    assert (row.tenant, row.run_id, row.status, row.steps) == ("acme", "r-1", "live", 9)
    assert row.said is not None
    assert (row.said.level, row.said.detector) == ("kill", "exact_repeat")
    # Without the verdict, which may be older than what was read, the snapshot still says how bad it was.
    assert forgotten.said is not None
    assert (forgotten.said.level, forgotten.said.pattern) == ("kill", "")


def test_a_record_in_force_decides_how_a_run_stands() -> None:
    """Also where the snapshot is seconds older than the order."""
    tree, sayings = tree_of(looping("r-1", 2, start_ms=START_MS))
    standings = {
        state: row_of(tree, bound(state, writer="operator"), sayings)
        for state in ("killed", "kill_wanted", "paused", "released")
    }

    assert {state: row.status for state, row in standings.items()} == {
        "killed": "killed",
        "kill_wanted": "live",  # nobody has said that its gate is shut
        "paused": "paused",
        "released": "live",
    }
    assert standings["kill_wanted"].bound_by == ["kill wanted by operator"]
    assert standings["released"].bound_by == []


def test_a_stop_of_the_detector_counts_when_it_was_applied() -> None:
    """Ordered is not stopped."""
    tree, sayings = tree_of(looping("r-1", 9, start_ms=START_MS))
    run = tree.runs["r-1"]
    found = {}
    for level, applied_ms in ((Level.KILL, -1), (Level.KILL, START_MS), (Level.PAUSE, START_MS)):
        run.stop = StopState(command_id="c1", incarnation=run.incarnations, level=level, applied_ms=applied_ms)
        row = row_of(tree, StandingOrders(), sayings)
        found[level.name, applied_ms >= 0] = (row.status, row.bound_by)

    assert found == {
        ("KILL", False): ("live", ["kill by detector: not answered yet"]),
        ("KILL", True): ("killed", ["kill by detector: applied"]),
        ("PAUSE", True): ("paused", ["pause by detector: applied"]),
    }
    assert row_of(tree, bound("released", writer="operator"), sayings).status == "live"


def test_a_table_takes_the_newest_owner_and_passes_over_what_it_cannot_read() -> None:
    """A worker that was paused writes over the snapshots of its successor; Faust's table has the same rule."""
    tree, _ = tree_of(looping("r-1", 2, start_ms=START_MS))
    later, _ = tree_of(looping("r-1", 5, start_ms=START_MS))
    table = RunTable()
    key = b"acme|r-1"
    for record in (
        Read(POSITION_KEY, b"anything"),
        Read(tool_snapshot_key("acme", "search"), b"a tool's"),
        Read(key, encode_snapshot(later, 5)),
        Read(key, encode_snapshot(tree, 4)),
        Read(b"acme|broken", encode_snapshot(tree, 5)[:-3]),
    ):
        table.put(record)

    assert [found.runs["r-1"].calls for found in table.trees("acme")] == [5]
    assert table.unreadable == {b"acme|broken"}
    assert list(table.trees("acm")) == []
    table.put(Read(key, None))
    assert list(table.trees()) == []


def test_the_worst_come_first() -> None:
    """A table is read from the top, at three in the morning."""
    made: list[RunRow] = []
    for run_id, laps in (("r-1", 2), ("r-2", 9), ("r-3", 4)):
        tree, sayings = tree_of(looping(run_id, laps, start_ms=START_MS))
        made += rows(tree, StandingOrders(), sayings)

    assert [row.run_id for row in chosen(made, "live")] == ["r-2", "r-3", "r-1"]
    assert chosen(made, "over") == []
    assert len(chosen(made, "all")) == 3
