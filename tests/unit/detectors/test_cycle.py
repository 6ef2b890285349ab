"""A few calls in turn, lap after lap."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, verdicts

from loopwarden_models.events import AnyStep

CYCLE = only("cycle")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, CYCLE))


def laps(run: Run, n: int, *calls: tuple[Any, ...], **fields: Any) -> list[AnyStep]:
    """Return the calls in turn, `n` times over, each given as `(tool, args, result)`."""
    return [run.call(*call, **fields) for _ in range(n) for call in calls]


A, B, C = ("read", "a", "A"), ("edit", "a", "no match"), ("test", "", "FAIL")


def test_levels_rise_with_the_laps() -> None:
    """Observe at two laps, nudge at three, kill at five; there is no break: no single tool is at fault."""
    #  A B  A B      A B     A B  A B
    #       observe  nudge        kill
    for n, expected in {1: 0, 2: 1, 3: 2, 4: 2, 5: 3}.items():
        assert said(laps(Run(), n, A, B, effect="read")) == ["observe", "nudge", "kill"][:expected]


@pytest.mark.parametrize("period", range(2, 7))
def test_every_period_from_two_to_six_is_seen(period: int) -> None:
    """A per-tool breaker sees none of them."""
    steps = laps(Run(), 5, *[("step", n, n) for n in range(period)], effect="read")

    assert said(steps) == ["observe", "nudge", "kill"]
    assert said(steps[:-1]) == ["observe", "nudge"]


def test_a_lap_may_hold_one_call_twice() -> None:
    """`read, read, edit`: it is judged at a call that does not repeat the one before it, one call later at most."""
    steps = laps(Run(), 5, A, A, B, effect="read")
    assert said(steps) == ["observe", "nudge", "kill"]

    run = Run()
    assert said([*laps(run, 5, B, A, A, effect="read"), run.call(*B, effect="read")]) == ["observe", "nudge", "kill"]


def test_seven_calls_in_turn_are_too_long_a_lap() -> None:
    """The longest lap is six: beyond it other rules and the budgets hold."""
    assert said(laps(Run(), 5, *[("step", n, n) for n in range(7)])) == []


def test_one_call_is_no_cycle() -> None:
    """Equal calls in a row are an exact repeat, and counted there."""
    assert said(Run().calls(40)) == []


def test_a_changed_answer_is_no_cycle() -> None:
    """Edit, test, edit, test with other failures: the world moves."""
    run = Run()

    assert said([run.call(*call) for n in range(9) for call in (("edit", "a", "ok"), ("test", "", f"FAIL {n}"))]) == []


def test_a_missing_answer_is_no_cycle() -> None:
    """Calls that were refused, or whose answer nobody reports, are not known to be the same."""
    assert said(laps(Run(), 9, A, ("edit", "a", None))) == []
    assert said(laps(Run(), 9, A, B, outcome="denied")) == []


def test_polls_and_waits_alone_are_patience() -> None:
    """`status, sleep 5` for five laps is what every healthy wait looks like."""
    run = Run()
    polls = [
        step for _ in range(9) for step in (run.call("status", 1, "RUNNING", effect="poll"), run.call("sleep", 5, ""))
    ]

    assert said(polls) == []


def test_an_undeclared_call_with_waits_between_is_patience() -> None:
    """Nobody declared the tool, but `look, sleep, look, sleep` polls."""
    assert said(laps(Run(), 9, ("BashOutput", "b3", "running"), ("bash", {"command": "sleep 5"}, ""))) == []


def test_work_among_the_waits_is_a_cycle() -> None:
    """Two tools and a wait, lap after lap with equal answers: that is no poll."""
    assert said(laps(Run(), 5, A, B, ("sleep", 5, "")))[-1] == "kill"


@pytest.mark.parametrize("orders", list(permutations([A, B, C])))
def test_the_order_in_which_a_batch_ends_hides_nothing(orders: tuple[Any, ...]) -> None:
    """Two parallel calls finish as they like; the same batch in every turn is one loop."""
    run = Run()
    rounds = [step for n in range(6) for step in run.batch(*(orders if n % 2 else (A, B, C)), effect="read")]

    assert said(rounds)[-1] == "kill"


def test_a_batch_is_no_cycle_in_itself() -> None:
    """Ten calls side by side, two of them five times, were asked for at once."""
    assert said(Run().batch(*[A, B] * 5)) == []


def test_the_loop_is_the_same_wherever_its_lap_begins() -> None:
    """Escalation counts against the set of calls: a lap that is noticed from B is not another loop."""
    run = Run()
    steps = [*laps(run, 3, A, B, effect="read"), run.user(), *laps(run, 3, B, A, effect="read")]

    assert len({verdict.loop_id for verdict in verdicts(decide(steps, CYCLE))}) == 1


def test_another_set_of_calls_is_another_loop() -> None:
    """A loop must not be ended for the warning that another one got."""
    run = Run()
    steps = [*laps(run, 3, A, B), *laps(run, 3, B, C), *laps(run, 3, A, B, C)]

    assert len({verdict.loop_id for verdict in verdicts(decide(steps, CYCLE)) if verdict.level == "nudge"}) == 3


def test_a_write_that_was_new_in_the_first_lap_is_no_progress_in_the_fifth() -> None:
    """Every lap of `write, read` writes the same: only a write that was not made before moves the world."""
    writes, reads = ("write", "a", "saved"), ("read", "b", "B")
    run = Run()
    steps = [step for _ in range(5) for step in (run.call(*writes, effect="write"), run.call(*reads, effect="read"))]

    assert said(steps)[-1] == "kill"


def test_progress_inside_the_laps_turns_the_kill_into_a_nudge() -> None:
    """What the runtime reports as progress demotes; the verdict is said all the same."""
    run = Run()
    steps = [*laps(run, 3, A, B), run.step("progress"), *laps(run, 3, A, B)]
    found = verdicts(decide(steps, CYCLE))

    assert [verdict.vetoed_from for verdict in found if verdict.vetoed_from] == ["kill"]
    assert "kill" not in {verdict.level for verdict in found}


def test_a_new_segment_starts_a_new_lap() -> None:
    """A person spoke: what repeats from here on is counted anew."""
    run = Run()

    assert "kill" not in said([*laps(run, 4, A, B), run.user(), *laps(run, 4, A, B)])


def test_the_evidence_covers_the_laps_and_names_the_tools_in_turn() -> None:
    """From the first call of the first lap to the call that decided."""
    run = Run()
    decisions = decide([run.call("list"), *laps(run, 3, A, B, C)], CYCLE)
    nudge = verdicts(decisions)[-1]

    assert (nudge.evidence.first_seq, nudge.evidence.last_seq, nudge.evidence.count) == (1, 9, 3)
    assert nudge.evidence.tools == ["read", "edit", "test"]
    assert nudge.evidence.note == "3 calls in turn (read, edit, test) came 3 times with the same answers"
    assert decisions[-1].first_offset == 1


def test_a_cycle_that_goes_on_for_ever_is_told_as_far_as_is_remembered() -> None:
    """The ring holds forty calls: the laps that are counted stop growing, the verdicts stop coming."""
    found = verdicts(decide(laps(Run(), 200, A, B), only("cycle", "shadow")))

    assert [verdict.evidence.count for verdict in found] == [2, 3, 5, 10, 20]
