"""How large a run's memory can get, whatever a runtime sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests._support.meanings import WordMeaning
from tests._support.steps import Run, answer, decide, tree_of
from tests.property.step_streams import EAGER, RUNS, Script, play, scripts

from loopwarden_detectors import watch
from loopwarden_detectors.ladder_state import MAX_LOOPS
from loopwarden_detectors.new_facts import MAX_FACTS_BYTES
from loopwarden_detectors.rings import MAX_CALLS
from loopwarden_detectors.run_state import (
    MAX_FORMER_INCARNATIONS,
    MAX_MEANING_BYTES,
    MAX_OPEN_CALLS,
    MAX_PENDING,
    MAX_RUNS_PER_TREE,
    MAX_SNAPSHOT_BYTES,
    MAX_SNAPSHOT_BYTES_ASCII,
    TreeState,
)
from loopwarden_detectors.same_error import MAX_SIGNATURES
from loopwarden_detectors.semantic_repeat import MAX_CHANNELS, ROW
from loopwarden_models.events import MAX_INT, AnyStep
from loopwarden_models.policy import Policy
from loopwarden_models.semantic_rules import WINDOW

CHATTY = Policy.from_builtins(
    {
        "mode": "enforce",
        "ladder": {"max_nudges_per_run": 100, "max_nudges_per_loop": 10},
        "context_rot": {"drift_steps": 8},
    }
)
WIDE = "\U0001f527"  # four bytes in UTF-8, and one character to a limit on characters


def greedy(letter: str, meaning: WordMeaning | None = None) -> TreeState:
    """Return the state of a child that filled every part of its memory, with ids and names of this letter."""
    run = Run(letter * 128, root=letter * 127 + "r", tenant="t" * 64)
    run.seq, run.now_ms, run.gap_ms = MAX_INT - 10_000, MAX_INT - 10_000_000, 40
    offset = 2**62
    limits = {"max_steps": 400, "max_tokens": MAX_INT, "max_cost_usd": 900_000_000.5, "max_model_calls": MAX_INT}
    steps: list[AnyStep] = []
    for n in range(MAX_FORMER_INCARNATIONS + 2):
        seq, run.incarnation = run.seq, f"{n}" + letter * 31
        steps.append(run.start(limits=limits | {"max_duration_ms": MAX_INT}, goal=letter.join(map(str, range(200)))))
        run.seq = seq
    steps += [
        run.call(f"{n}" + letter * 250, n, fails=f"{letter} {'x' * n}") for n in range(2 * MAX_SIGNATURES) for _ in "ab"
    ]
    steps += [run.call(f"t{n}", f"question {n}", "same", effect="read") for n in range(2 * MAX_LOOPS) for _ in range(9)]
    steps += [run.call(f"u{n}", n, n) for n in range(200)]
    steps += [run.call(f"v{n}", n, fails=f"{letter} {'y' * n}") for n in range(MAX_SIGNATURES) for _ in "ab"]
    steps += [run.step("tool_start", tool="w", call_id=f"w{n}") for n in range(2 * MAX_OPEN_CALLS)]
    steps += [run.step("approval_wait", call_id=f"x{n}") for n in range(2 * MAX_PENDING)]
    steps += [run.step("approval_end", call_id=f"y{n}", decision="approved") for n in range(2 * MAX_PENDING)]
    text = letter.join(map(str, range(400)))
    steps += [run.model(text=text, usage={"input_tokens": MAX_INT}, cost_usd=1e9) for _ in range(40)]
    while len(tree_after(steps, offset)[0].ring) != MAX_CALLS:
        steps.append(run.call("z", run.seq, run.seq))
    if meaning is not None:
        for n in range(2 * MAX_CHANNELS * WINDOW):
            words = " ".join(f"and so {letter * (1 + n % 9)}w{n}v{k}" for k in range(20))
            question = " ".join(f"{chr(97 + n % 26)}{chr(97 + k % 26)}" for k in range(40))
            steps.append(
                run.call(f"ask {n % MAX_CHANNELS}", {"task": question}, f"this is what is to be said: {words}")
            )
    return tree_after(steps, offset, meaning)[1]


def tree_after(steps: list[AnyStep], offset: int, meaning: WordMeaning | None = None) -> tuple[Any, TreeState]:
    """Return the run and the tree after these steps, every nudge of which was applied."""
    tree = tree_of(steps[0])
    tree.steps_offset = tree.acks_offset = 2**63 - 1
    for n, step in enumerate(steps):
        for decision in watch.observe(tree, step, CHATTY, offset=offset + n, meaning=meaning):
            if decision.order is not None and decision.order.type == "nudge":
                answer(tree, decision.order, "applied", at_ms=step.ts_ms)
    return next(iter(tree.runs.values())), tree


@pytest.mark.parametrize(
    ("letter", "cap"), [("x", MAX_SNAPSHOT_BYTES_ASCII), (WIDE, MAX_SNAPSHOT_BYTES)], ids=["ascii", "wide"]
)
def test_a_run_that_fills_everything_keeps_the_cap(letter: str, cap: int) -> None:
    """Names of 256 characters, ids of 128, everything open that can be: a legal run of a hostile runtime."""
    tree = greedy(letter)
    [run] = tree.runs.values()
    assert run.loops is not None
    assert run.same_error is not None
    assert run.open_calls is not None
    assert (len(run.loops), len(run.same_error), len(run.open_calls)) == (MAX_LOOPS, MAX_SIGNATURES, MAX_OPEN_CALLS)
    assert all((run.rate, run.waits, run.approved, run.former, run.own, run.stop, tree.loops))
    assert run.near_text is not None
    assert run.goal_drift is not None
    assert len(run.near_text.sketch) == len(run.goal_drift.goal) == 4 * 64

    assert len(tree.to_bytes()) <= cap


def test_what_is_kept_of_meaning_has_room_of_its_own() -> None:
    """Three channels of six exchanges, and the facts: only where a model of texts is at hand."""
    without, tree = greedy("x"), greedy("x", WordMeaning())
    [run] = tree.runs.values()

    assert run.semantic is not None
    assert [len(channel.rows) for channel in run.semantic.channels] == [WINDOW * ROW] * MAX_CHANNELS
    assert len(run.semantic.facts) == MAX_FACTS_BYTES
    assert len(tree.to_bytes()) - len(without.to_bytes()) <= MAX_MEANING_BYTES


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(max_scenes=25, runs=1), letter=st.sampled_from(["r", WIDE]))
def test_no_run_outgrows_the_cap(script: Script, letter: str) -> None:
    """After any stream, as long as it may be; and whom it talks to has room of its own."""
    steps = play(script, (("acme", letter * 128, letter * 128),))
    tree = tree_of(steps[0])
    decide(steps, EAGER, tree=tree, meaning=WordMeaning())

    assert len(tree.to_bytes()) <= len(tree.runs) * (MAX_SNAPSHOT_BYTES + MAX_MEANING_BYTES)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(max_scenes=25))
def test_a_tree_has_the_room_of_its_runs(script: Script) -> None:
    """A tree of three is at most three times as large; the number of its runs is capped."""
    steps = [step for step in play(script) if (step.tenant, step.root_run_id) == RUNS[0][::2]]
    if steps:
        tree = tree_of(steps[0])
        decide(steps, EAGER, tree=tree)

        assert len(tree.to_bytes()) <= len(tree.runs) * MAX_SNAPSHOT_BYTES


def test_children_that_ended_leave_little_behind() -> None:
    """A root with a full house of finished children is saved every few seconds."""
    boss = Run("boss")
    steps = [boss.start()]
    for n in range(MAX_RUNS_PER_TREE - 1):
        child = Run(f"child-{n}", root="boss")
        steps += [child.start(), *[child.call("fetch", k, k) for k in range(20)], child.end()]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)

    assert len(tree.runs) == MAX_RUNS_PER_TREE
    assert len(tree.to_bytes()) < MAX_RUNS_PER_TREE * 400
