"""The tasks of many tenants: how many are remembered, and of whom."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import START_MS

from loopwarden_detectors import task_fleet
from loopwarden_detectors.restart_loop import TaskState
from loopwarden_detectors.task_fleet import TaskFleet
from loopwarden_models.errors import StateCorrupt
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.run_turns import RunTurn


def turn(kind: Any, run: int, *, task: int = 7, tenant: str = "acme", partition: int = 0, at_s: int = 0) -> RunTurn:
    """Return a beginning, or the end of a run that failed."""
    return RunTurn(
        v=1,
        type="run_turn",
        turn=kind,
        tenant=tenant,
        run_id=f"r{run}",
        fingerprint=task,
        at_ms=START_MS + 1_000 * at_s,
        status="failed" if kind == "end" else None,
        calls=1,
        partition=partition,
        epoch=1,
        offset=2 * run + (kind == "end"),
    )


def test_a_tenant_with_ever_new_goals_loses_its_own_idlest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tenant's task is older than all of them, and stays; what it lost is to be deleted."""
    monkeypatch.setattr(task_fleet, "MAX_TASKS", 200)
    fleet = TaskFleet(DEFAULT_POLICY)
    fleet.turn(turn("end", 0, tenant="globex"))
    for number in range(1_000):
        fleet.turn(turn("end", number, task=number, at_s=number))

    assert ("globex", 7) in fleet.tasks
    assert 100 <= len(fleet.tasks) - 1 <= 200
    assert ("acme", 999) in fleet.tasks
    assert ("acme", 0) not in fleet.tasks
    assert ("acme", 0) in fleet.changed


def test_a_beginning_that_comes_late_says_nothing_of_now() -> None:
    """Read again by a new owner, who sends what nobody remembers: it is older than the ends that came since."""
    fleet = TaskFleet(DEFAULT_POLICY)
    said = [fleet.turn(turn("end", run, at_s=10 * run)) for run in range(5)]
    said.append(fleet.turn(turn("start", 1, partition=3)))
    said.append(fleet.turn(turn("start", 5, at_s=50)))
    said.append(fleet.turn(turn("start", 2, partition=3, at_s=5)))
    said.append(fleet.turn(turn("start", 6, at_s=51)))

    assert [(one.run_id, one.level) for one in said if one] == [("r5", "nudge")]


def test_what_is_too_old_to_act_on_is_said_in_shadow() -> None:
    """A day's backlog; the ids are the same."""
    fresh, old = TaskFleet(DEFAULT_POLICY), TaskFleet(DEFAULT_POLICY)
    history = [*(turn("end", run) for run in range(3)), turn("start", 9)]
    now = [said for one in history if (said := fresh.turn(one))]
    then = [said for one in history if (said := old.turn(one, act=False))]

    assert [one.mode for one in now + then] == ["warn", "shadow"]
    assert now[0].verdict_id == then[0].verdict_id


def test_a_snapshot_that_is_none_is_refused() -> None:
    """Bytes that were lost on the way, and a format of another version."""
    fleet = TaskFleet(DEFAULT_POLICY)
    fleet.turn(turn("end", 1), 12)
    data = fleet.tasks["acme", 7].to_bytes()

    assert TaskState.from_bytes(data).offset == 12
    for broken in (b"", data[:-1], bytes([9]) + data[1:], data[:-1] + bytes([data[-1] ^ 1])):
        with pytest.raises(StateCorrupt):
            TaskState.from_bytes(broken)
