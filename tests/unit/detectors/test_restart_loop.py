"""One task is started again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests._support.steps import START_MS, Run, decide, tree_of

from loopwarden_detectors.restart_loop import TaskState, fingerprint_of, observe, turn_of
from loopwarden_detectors.task_fleet import TaskFleet
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.run_turns import RunTurn, task_key
from loopwarden_models.verdicts import Verdict
from loopwarden_models.volatile import VolatileRules

CONFIG = DEFAULT_POLICY.restart_loop
MINUTE_MS = 60_000


def turns(*ends: dict[str, Any] | str, every_ms: int = MINUTE_MS) -> list[RunTurn]:
    """Return a start and an end for each run; an end is its status, or its fields. One more start follows."""
    made: list[RunTurn] = []
    for n, given in enumerate((*ends, None)):
        own = {"status": given, "findings": n} if isinstance(given, str) else given
        base: dict[str, Any] = {
            "v": 1,
            "type": "run_turn",
            "tenant": "acme",
            "run_id": f"r{n}",
            "fingerprint": 7,
            "agent": "solver",
        }
        base |= {"partition": 0, "epoch": 1}
        at_ms = START_MS + n * every_ms
        made.append(RunTurn(turn="start", at_ms=at_ms, offset=2 * n, **base))
        if own is not None:
            made.append(RunTurn(turn="end", at_ms=at_ms + 1_000, offset=2 * n + 1, **{"calls": 3, **base, **own}))
    return made


def judge(made: Iterable[RunTurn], task: TaskState | None = None) -> list[Verdict]:
    """Return what is said of the turns that are new."""
    task = task or TaskState("acme", 7)
    said = (observe(task, turn, CONFIG, "enforce") for turn in made if task.admit(turn))
    return [verdict for verdict in said if verdict is not None]


def levels(made: Iterable[RunTurn]) -> list[tuple[str, str]]:
    """Return run and level of what is said."""
    return [(verdict.run_id, verdict.level) for verdict in judge(made)]


SAME = {"status": "completed", "findings": 99}


def test_runs_that_fail_are_told_of_at_the_next_start() -> None:
    """Observe 3, nudge 5."""
    assert levels(turns(*["failed"] * 5)) == [("r3", "observe"), ("r5", "nudge")]


def test_a_person_is_asked_and_nobody_advised() -> None:
    """What starts the runs stands outside: there is no model to tell."""
    said = judge(turns(*["failed"] * 5))

    assert [(one.recovery, one.recovery_level) for one in said] == [(None, None), ("ask_a_person", "L3")]


@pytest.mark.parametrize("status", ["failed", "killed", "limit"])
def test_whatever_ended_badly_counts(status: str) -> None:
    """Also what we ended ourselves: an orchestrator starts it again."""
    assert ("r5", "nudge") in levels(turns(*[status] * 5))


def test_short_runs_that_find_the_same_count_from_the_first() -> None:
    """The second shows that the first was in vain, too."""
    assert levels(turns(*[SAME] * 5)) == [("r3", "observe"), ("r5", "nudge")]


def test_a_schedule_with_something_new_each_time_is_healthy() -> None:
    """Completed, and other findings than before."""
    assert levels(turns(*["completed"] * 30)) == []


def test_long_runs_have_worked() -> None:
    """Eleven calls are more than a look."""
    assert levels(turns(*[SAME | {"calls": 11}] * 12)) == []


def test_an_hour_is_looked_back() -> None:
    """One failure every twenty minutes is three in an hour."""
    assert levels(turns(*["failed"] * 12, every_ms=20 * MINUTE_MS)) == [("r3", "observe")]


def test_a_task_that_rested_is_told_of_again() -> None:
    """Tomorrow it is news."""
    today = turns(*["failed"] * 5)
    tomorrow = [
        RunTurn(
            **{
                **{f: getattr(turn, f) for f in turn.__struct_fields__},
                "at_ms": turn.at_ms + 86_400_000,
                "offset": turn.offset + 100,
            }
        )
        for turn in today
    ]

    assert [level for _, level in levels([*today, *tomorrow])] == ["observe", "nudge"] * 2


def test_a_doubling_is_said_again() -> None:
    """For a person who did not look at the first."""
    assert [v.evidence.count for v in judge(turns(*["failed"] * 20))] == [3, 5, 10, 20]


def test_turns_that_come_again_change_nothing() -> None:
    """Delivery is at least once, and a snapshot in between is the same as none."""
    made = turns(*["failed"] * 6)
    once = judge(made)
    task = TaskState("acme", 7)
    first = judge(made[:7], task)
    again = judge([*made[3:], *made], TaskState.from_bytes(task.to_bytes()))

    assert [v.verdict_id for v in first + again] == [v.verdict_id for v in once]


def test_a_tasks_fingerprint_leaves_out_what_is_new_each_time() -> None:
    """A time stamp in the goal makes no new task, a page number does."""
    rules = VolatileRules()

    def of(goal: str, agent: str = "solver", tenant: str = "acme") -> int:
        return fingerprint_of(tenant, agent, goal, rules)

    assert of("New feedback of 2026-01-02T10:11:12Z, please address it") == of(
        "New feedback of 2026-01-02T10:19:44Z, please  address it"
    )
    assert len({of("page 1"), of("page 2"), of("page 1", "other"), of("page 1", "solver", "borealis")}) == 4
    assert task_key("acme", of("page 1")).startswith(b"acme|task|")


def task_run(
    run_id: str, result: str = "nothing", posted: str = "posted", goal: str | None = "Look again"
) -> list[AnyStep]:
    """Return a run that reads once and writes once."""
    run = Run(run_id)
    run.now_ms += MINUTE_MS * int(run_id[1:] or 0)  # one after the other
    started = run.start(goal=goal, agent="solver")
    return [
        *(started, run.call("list", {"n": 1}, result, effect="read")),
        *(run.call("post", "no", posted, effect="write"), run.end()),
    ]


def findings(steps: list[AnyStep]) -> int:
    """Return what is known of the run's findings when it has ended."""
    tree = tree_of(steps[0])
    decide(steps, tree=tree)
    return next(iter(tree.runs.values())).findings


def test_findings_are_what_was_read_and_what_was_done() -> None:
    """What a writer answers is an id."""
    assert findings(task_run("a", posted="comment 4711")) == findings(task_run("b", posted="comment 4712"))
    assert findings(task_run("a")) != findings(task_run("a", "two remarks"))


def test_a_run_that_called_nothing_proves_nothing() -> None:
    """Missing evidence equals nothing."""
    run = Run()

    assert findings([run.start(goal="Say hello"), run.end()]) == 0
    assert levels(turns(*[SAME | {"findings": 0, "calls": 0}] * 12)) == []


def fleet_says(*runs: list[AnyStep], policy: Policy = DEFAULT_POLICY) -> list[tuple[str, str]]:
    """Return run and level of what is said of runs of one fleet, each judged in a tree of its own."""
    fleet = TaskFleet(policy)
    said: list[tuple[str, str]] = []
    offset = 0
    for steps in runs:
        tree = tree_of(steps[0])
        for step in steps:
            decide([step], tree=tree)
            turn = turn_of(tree, step, partition=0, epoch=1, offset=offset)
            verdict = None if turn is None else fleet.turn(turn)
            said += [] if verdict is None else [(verdict.run_id, verdict.level)]
            offset += 1
    return said


def test_a_fleet_tells_of_the_run_that_starts() -> None:
    """From steps to a verdict; a run without a goal has no task."""
    assert fleet_says(*[task_run(f"r{n}") for n in range(7)]) == [("r3", "observe"), ("r5", "nudge")]
    assert fleet_says(*[task_run(f"r{n}", goal=None) for n in range(7)]) == []
    assert fleet_says(*[task_run(f"r{n}", f"remark {n}") for n in range(30)]) == []


def test_an_agent_with_a_schedule_can_be_left_alone() -> None:
    """The rule is switched off for it, until somebody looks again."""
    policy = Policy.from_builtins({"agents": {"solver": {"restart_loop": {"mode": "off", "until": "2090-01-31"}}}})

    assert fleet_says(*[task_run(f"r{n}") for n in range(7)], policy=policy) == []


def test_a_task_that_rests_can_be_forgotten() -> None:
    """After the hour that is looked back."""
    fleet = TaskFleet(DEFAULT_POLICY)
    for turn in turns("failed"):
        fleet.turn(turn)
    [task] = fleet.tasks.values()

    assert not fleet.forgettable(task, task.now_ms + 3_600_000)
    assert fleet.forgettable(task, task.now_ms + 3_600_001)
    fleet.forget(task)
    assert not fleet.tasks
