"""Cut anywhere, restart from the snapshots, send turns twice: the same is said of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests._support.tools import T0

from loopwarden_detectors.restart_loop import TaskState
from loopwarden_detectors.task_fleet import TaskFleet
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.verdicts import Verdict


@st.composite
def histories(draw: st.DrawFn) -> list[RunTurn]:
    """Draw runs of two tasks, one after the other or side by side, in two partitions of steps."""
    made: list[RunTurn] = []
    offsets = [0, 0]
    for number in range(draw(st.integers(1, 30))):
        partition, task = draw(st.integers(0, 1)), draw(st.integers(1, 2))
        status = draw(st.sampled_from(["failed", "failed", "completed"]))
        at_ms = T0 + 60_000 * number
        for kind in ("start", "end"):
            made.append(
                RunTurn(
                    v=1,
                    type="run_turn",
                    turn=kind,
                    tenant="acme",
                    run_id=f"r{number}",
                    fingerprint=task,
                    at_ms=at_ms + 1_000 * (kind == "end"),
                    status=status if kind == "end" else None,
                    calls=2,
                    findings=draw(st.integers(1, 3)) if kind == "end" else 0,
                    partition=partition,
                    epoch=1,
                    offset=offsets[partition],
                )
            )
            offsets[partition] += 1
    return made


def feed(fleet: TaskFleet, sent: Sequence[tuple[int, RunTurn]]) -> list[Verdict]:
    """Return what is said of turns at these offsets of their topic."""
    said = (fleet.turn(turn, offset) for offset, turn in sent)
    return [verdict for verdict in said if verdict is not None]


@settings(max_examples=150, deadline=None)
@given(history=histories(), data=st.data())
def test_a_cut_anywhere_changes_nothing(history: list[RunTurn], data: st.DataObject) -> None:
    """The owner of the task dies, or the owner of the runs: then a tail of what it sent is sent once more."""
    again = data.draw(st.integers(0, len(history)), label="sent again from")
    until = data.draw(st.integers(again, len(history)), label="sent again up to")
    sent = list(enumerate([*history[:until], *history[again:]]))
    expected = feed(TaskFleet(DEFAULT_POLICY), list(enumerate(history)))

    saved_at = data.draw(st.integers(0, len(sent)), label="saved after")
    fleet = TaskFleet(DEFAULT_POLICY)
    before = feed(fleet, sent[:saved_at])
    snapshots = [task.to_bytes() for task in fleet.tasks.values()]
    crashed_at = data.draw(st.integers(saved_at, len(sent)), label="died after")
    lost = feed(fleet, sent[saved_at:crashed_at])

    restored = TaskFleet(DEFAULT_POLICY)
    restored.restore(TaskState.from_bytes(snapshot) for snapshot in snapshots)
    # What is included already may come again, too.
    after = feed(restored, sent[data.draw(st.integers(0, saved_at), label="read again from") :])

    said = [one.verdict_id for one in [*before, *after]]
    assert list(dict.fromkeys(said)) == [one.verdict_id for one in expected]
    assert [one.verdict_id for one in after[: len(lost)]] == [one.verdict_id for one in lost]
