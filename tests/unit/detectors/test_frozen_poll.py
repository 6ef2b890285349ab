"""A poller whose answer does not change."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.frozen_poll import MAX_POLLS
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import DETECTORS
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

FROZEN = only("frozen_poll")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, FROZEN))


def polls(run: Run, n: int, result: Any = "RUNNING", args: Any = 7, **fields: Any) -> list[AnyStep]:
    """Return `n` equal polls of one job."""
    return [run.call("status", args, result, **({"effect": "poll"} | fields)) for _ in range(n)]


def naps(run: Run, n: int) -> list[AnyStep]:
    """Return `n` polls of a tool that nobody declared, a short sleep after each."""
    return [step for _ in range(n) for step in (run.call("peek", "b3", "running"), run.call("bash", "sleep 5", ""))]


def test_levels_rise_with_the_polls() -> None:
    """Observe 5, nudge 10, kill 30; between the last two it is said once more that it doubled."""
    for n, expected in {4: 0, 5: 1, 9: 1, 10: 2, 29: 3, 30: 4}.items():
        assert said(polls(Run(), n)) == ["observe", "nudge", "nudge", "kill"][:expected]


def test_the_evidence_names_the_first_poll() -> None:
    """A person at night must find the steps: from the first equal answer on."""
    run = Run()
    decisions = decide([run.start(), *polls(run, 1, "QUEUED"), *polls(run, 10)], FROZEN)
    nudge = verdicts(decisions)[-1]

    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.threshold) == ("frozen_poll", 10, 10)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq) == (2, 11)
    assert decisions[-1].first_offset == 2


def test_a_moving_answer_is_a_healthy_wait() -> None:
    """Per cent by per cent, or with the same answer four times between two lines of a log."""
    run = Run()

    assert said([step for n in range(40) for step in polls(run, 1, f"{n} %")]) == []
    assert said([step for n in range(20) for step in polls(run, 4, f"line {n}")]) == []


def test_only_the_raw_answer_counts() -> None:
    """A time stamp that moves says that the poller lives, even where the normalised answers are equal."""
    run = Run()
    same = {"result_norm_hash": "0123456789abcdef"}

    assert said([step for n in range(40) for step in polls(run, 1, f"RUNNING at {n}", **same)]) == []
    assert said(polls(run, 11, **same)) == ["observe", "nudge"]


@pytest.mark.parametrize(
    "between",
    [{"tool": "deploy", "effect": "write"}, {"tool": "read", "effect": "read"}, {"tool": "bash"}],
    ids=["write", "read", "undeclared"],
)
def test_work_between_polls_starts_the_count_anew(between: dict[str, Any]) -> None:
    """Who works while something runs in the background and glances at it now and then is not stuck."""
    run = Run()
    steps = [step for n in range(40) for step in (*polls(run, 1), run.call(**between, args=n, result=f"new {n}"))]

    assert said(steps) == []


def test_waits_and_other_pollers_between_do_not() -> None:
    """Two jobs by turns, with sleeps: both stand still."""
    run = Run()
    steps = []
    for _ in range(10):
        steps += [*polls(run, 1), run.call("bash", "sleep 5", ""), *polls(run, 1, args=8)]

    assert said(steps) == ["observe", "observe", "nudge", "nudge"]


def test_one_job_that_moves_speaks_for_all() -> None:
    """Of two jobs one is finished and one goes on: the agent waits for the other."""
    run = Run()
    steps = [step for n in range(40) for step in (*polls(run, 1, "DONE"), *polls(run, 1, f"{n} %", args=8))]

    assert said(steps) == []


def test_failures_and_known_answers_between_do_not_move_the_world() -> None:
    """A read that brings what it brought before, and a call that fails, are no work."""
    run = Run()
    steps = [run.call("read", "a", "A", effect="read"), *polls(run, 3)]
    for _ in range(7):
        steps += [run.call("read", "a", "A", effect="read"), run.call("fetch", 1, fails="down"), *polls(run, 1)]

    assert said(steps) == ["observe", "nudge"]


def test_an_undeclared_tool_with_waits_between_is_a_poller() -> None:
    """Look, sleep, look, sleep: ten looks at nothing are worth a word, and thirty an end."""
    assert said(naps(Run(), 9)) == ["observe"]
    assert said(naps(Run(), 10)) == ["observe", "nudge"]
    assert "kill" in said(naps(Run(), 30))


def test_an_undeclared_tool_asked_far_apart_is_a_poller() -> None:
    """Thirty seconds and three times the usual pace of the run."""
    run = Run()
    steps = [run.call("ls", n, n) for n in range(30)]
    run.gap_ms = 60_000
    steps += run.calls(10, "peek", "b3", "running")

    assert said(steps) == ["observe", "nudge"]


def test_an_undeclared_tool_asked_at_once_is_none() -> None:
    """That is a repetition, and another rule's."""
    assert said(Run().calls(40)) == []


def test_a_poller_that_varies_its_call_is_still_one() -> None:
    """Told not to repeat itself, it asks the same in other words; once frozen that does not hide it."""
    run = Run()
    steps = polls(run, 5)
    steps += [step for n in range(5) for step in polls(run, 1, args={"job": 7, "verbose": n})]

    assert said(steps) == ["observe", "nudge"]


def test_many_jobs_asked_in_turn_are_not_one() -> None:
    """Twelve jobs that all run: one sweep is twelve equal answers and no repetition."""
    run = Run()

    assert said([step for lap in range(4) for job in range(12) for step in polls(run, 1, args=job)]) == []
    assert said([step for lap in range(4) for job in range(MAX_POLLS) for step in polls(run, 1, args=job)]) == []


def test_polls_of_one_batch_count_once() -> None:
    """The same job asked twice side by side is asked once."""
    run = Run()
    batch = [("status", 7, "RUNNING")] * 3

    assert said([step for _ in range(4) for step in run.batch(*batch, effect="poll")]) == []
    assert said([step for _ in range(6) for step in run.batch(*batch, effect="poll")]) == ["observe"]


def test_a_poll_from_the_cache_is_an_attempt() -> None:
    """Whoever asks the cache again and again is as stuck as who asks the tool."""
    run = Run()

    assert said([*polls(run, 3), *polls(run, 7, "cached", outcome="cached")]) == ["observe", "nudge"]


def test_missing_evidence_proves_nothing() -> None:
    """Answers or arguments that nobody reports are equal to nothing."""
    run = Run()

    assert said(polls(run, 40, None)) == []
    assert said(polls(run, 40, args=None)) == []


def test_another_run_of_the_tree_that_works_is_waited_for() -> None:
    """A parent asks each minute for a child that reads on and on; a child that only polls as well is no reason."""
    parent, child = Run("p"), Run("c", root="p")
    works = [step for n in range(12) for step in (*polls(parent, 1), child.call("read", n, n, effect="read"))]
    parent, child = Run("p"), Run("c", root="p")
    stands = [step for _ in range(10) for step in (*polls(parent, 1), *polls(child, 1))]

    assert said(works) == []
    assert said(stands).count("nudge") == 2


def test_a_declared_write_that_only_sleeps_moves_nothing() -> None:
    """A shell that is declared a writer, and is asked to sleep."""
    run = Run()
    nap = {"tool": "bash", "args": "sleep 5", "result": "", "effect": "write"}

    assert said([step for _ in range(10) for step in (*polls(run, 1), run.call(**nap))]) == ["observe", "nudge"]


def test_a_person_starts_the_count_anew() -> None:
    """Asked "is it ready yet?", the agent looks again: that is no loop of its own."""
    run = Run()

    assert said([step for _ in range(10) for step in (*polls(run, 4), run.user())]) == []


def test_progress_turns_the_kill_into_a_nudge() -> None:
    """The runtime says that the task moved on."""
    run = Run()
    decisions = decide([*polls(run, 12), run.step("progress"), *polls(run, 30)], FROZEN)

    assert "kill_run" not in orders(decisions)
    assert [verdict.vetoed_from for verdict in verdicts(decisions) if verdict.vetoed_from] == ["kill"]


def test_a_crash_in_the_middle_changes_nothing() -> None:
    """The count survives in the snapshot."""
    run = Run()
    steps = [*polls(run, 7), *polls(run, 30)]
    tree = tree_of(steps[0])
    first = levels(decide(steps[:7], FROZEN, tree=tree))
    again = TreeState.from_bytes(tree.to_bytes())

    assert again == tree
    assert first + levels(decide(steps[7:], FROZEN, tree=again)) == said(steps)


def test_a_run_without_polls_keeps_nothing() -> None:
    """A hundred thousand runs are alive at once."""
    run = Run()
    steps = [run.call("read", n, n, effect="read") for n in range(50)]
    tree = tree_of(steps[0])
    decide(steps, FROZEN, tree=tree)

    assert tree.runs["r1"].frozen_poll is None
    assert tree.runs["r1"].watched == 0


def policy_of_the_tool(**settings: int) -> Policy:
    """Return a policy that knows how the poller is meant to be used."""
    off = {name: {"mode": "off", "until": "2090-01-31"} for name in DETECTORS if name != "frozen_poll"}
    return Policy.from_builtins({"mode": "enforce", **off, "tools": {"status": {"frozen_poll": settings}}})


def test_work_of_known_length_is_waited_for_three_times_as_long() -> None:
    """A build that takes twenty minutes is polled every minute, and nobody minds for an hour."""
    run = Run()
    run.gap_ms = 60_000
    policy = policy_of_the_tool(expected_ms=20 * 60_000)

    steps = polls(run, 121)
    assert levels(decide(steps[:60], policy)) == ["observe"]
    assert levels(decide(steps[:61], policy)) == ["observe", "nudge"]
    assert levels(decide(steps[:120], policy))[-1] == "nudge"
    assert levels(decide(steps, policy))[-1] == "kill"


def test_after_it_a_few_polls_are_enough() -> None:
    """Whoever looks rarely is told all the same."""
    run = Run()
    run.gap_ms = 20 * 60_000

    assert levels(decide(polls(run, 5), policy_of_the_tool(expected_ms=20 * 60_000))) == ["nudge"]


def test_polls_that_keep_to_their_interval_count_half() -> None:
    """As they were told to; who asks sooner gains nothing."""
    patient, hasty = Run(), Run()
    patient.gap_ms, hasty.gap_ms = 60_000, 59_000
    policy = policy_of_the_tool(interval_ms=60_000)

    assert levels(decide(polls(patient, 17), policy)) == ["observe"]
    assert levels(decide(polls(hasty, 17), policy)) == ["observe", "nudge"]
