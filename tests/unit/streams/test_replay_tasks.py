"""The tasks of a replay: order of time, whatever the order of the files."""

from __future__ import annotations

from typing import Any

from tests._support.steps import START_MS, Run

from loopwarden_models.codec import encode
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.run_turns import RunTurn
from loopwarden_streams.replay_core import Replay, Source, SourceRecord
from loopwarden_streams.replay_tasks import ReplayTasks


def failing(number: int) -> list[AnyStep]:
    """Return a run of the task that fails, a minute after the one before it."""
    run = Run(f"r{number}")
    run.now_ms += 60_000 * number
    return [run.start(goal="Book the flight", agent="booker"), run.call("book", {"n": 1}), run.end(status="failed")]


def replayed(order: range, run: str | None = None) -> list[tuple[str, str, str]]:
    """Return run, level and place of what is said of a file for each run, in this order."""
    replay = Replay(DEFAULT_POLICY, run=run)
    for number in order:
        for line, step in enumerate(failing(number)):
            replay.feed(SourceRecord(encode(step), Source(f"run-{number}.jsonl"), line))
    said = [(source, decision.verdict, decision.first_offset) for source, decision in replay.finish()]
    assert all(verdict is not None and verdict.source is not None for _, verdict, _ in said)
    assert sum(replay.summary().verdicts["restart_loop"].values()) == len(said)
    return [(verdict.run_id, verdict.level, source.place(offset)) for source, verdict, offset in said if verdict]


def test_a_task_is_told_of_in_whatever_order_its_files_come() -> None:
    """At its fourth and its sixth start, and the place is that start."""
    expected = [("r3", "observe", "run-3.jsonl:1"), ("r5", "nudge", "run-5.jsonl:1")]

    assert replayed(range(6)) == expected
    assert replayed(range(5, -1, -1)) == expected


def test_of_one_run_what_is_said_of_its_task_at_its_start() -> None:
    """`--run` tells of this run alone, though all are judged."""
    assert [run for run, _, _ in replayed(range(6), run="r5")] == ["r5"]
    assert replayed(range(6), run="r4") == []


def test_what_is_held_is_bounded() -> None:
    """Beyond the bound the older half is judged, and in a file in order of time nothing is lost by it."""
    tasks: ReplayTasks[int] = ReplayTasks(DEFAULT_POLICY, max_held=4)
    base: dict[str, Any] = {"v": 1, "type": "run_turn", "tenant": "acme", "fingerprint": 7}
    base |= {"partition": 0, "epoch": 0, "offset": 0}
    for number in range(6):
        at_ms = START_MS + 60_000 * number
        tasks.add(RunTurn(turn="start", run_id=f"r{number}", at_ms=at_ms, **base), number)
        tasks.add(RunTurn(turn="end", run_id=f"r{number}", at_ms=at_ms + 9, status="failed", calls=1, **base), number)
        assert len(tasks._held) <= 4

    assert [(said.verdict.run_id, said.place) for said in tasks.finish()] == [("r3", 3), ("r5", 5)]
