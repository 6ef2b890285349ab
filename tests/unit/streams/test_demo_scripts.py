"""The agents of the demonstration, judged by the pure detectors: what loops is stopped, what is well is left alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests._support.demo_stage import DEMO_POLICY, play

from loopwarden_models.events import ModelEnd, Progress, ToolEnd, ToolStart, UserInput
from loopwarden_streams.demo_healthy import HEALTHY
from loopwarden_streams.demo_loops import LOOPS, RECOVERS
from loopwarden_streams.demo_scripts import Script

SEEDS = (1, 2, 3)
LOOPING = [pytest.param(script, max_steps, id=agent) for _, agent, script, max_steps in LOOPS]
WELL = [pytest.param(script, max_steps, id=agent) for _, agent, script, max_steps in HEALTHY]

# Pollers that nobody declared, on purpose, and a wait, which needs no declaration.
UNDECLARED = {"queue_depth", "export_state", "sleep"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("script", "max_steps"), LOOPING)
def test_a_loop_is_nudged_then_killed(script: Script, max_steps: int, seed: int) -> None:
    """The ladder as it is told: advice first, and the end when the advice was read and did not help."""
    played = play(script, seed, max_steps=max_steps)

    assert played.ended == "killed"
    *nudges, kill = [order.type for order in played.orders]
    assert kill == "kill_run"
    assert set(nudges) == {"nudge"}
    calls = sum(isinstance(step, ToolStart) for step in played.steps)
    assert calls < max_steps / 2, "a detector ended it, not its own limit"
    assert played.ms < 15_000, "the demonstration shall be over in half a minute"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("script", "max_steps"), WELL)
def test_a_healthy_agent_is_left_alone(script: Script, max_steps: int, seed: int) -> None:
    """Look-alikes of a loop come to their end: no kill, no pause, not even a nudge."""
    played = play(script, seed, max_steps=max_steps)

    assert played.orders == []
    assert {verdict.level for verdict in played.verdicts} <= {"observe"}
    assert played.ended == "completed"
    assert 4_000 < played.ms < 15_000


@pytest.mark.parametrize("seed", SEEDS)
def test_one_agent_takes_advice(seed: int) -> None:
    """A nudge can be enough: the loop ends, and the run goes on to its goal."""
    _, _, script, max_steps = RECOVERS

    played = play(script, seed, max_steps=max_steps)

    assert [order.type for order in played.orders] == ["nudge"]
    assert played.ended == "completed"


@pytest.mark.parametrize(("script", "max_steps"), LOOPING)
def test_a_loop_that_nobody_watches_runs_into_its_own_limit(script: Script, max_steps: int) -> None:
    """It is what the estimate of savings supposes, and what makes a survivor end some day."""
    played = play(script, 1, max_steps=max_steps, policy=None)

    assert played.ended in ("limit", "out of time")
    assert sum(isinstance(step, ToolStart) for step in played.steps) > 100


def test_the_policy_declares_the_tools_there_are() -> None:
    """A tool that is misspelt would be undeclared, and its loop could not be killed."""
    scripts = [script for _, _, script, _ in (*LOOPS, RECOVERS, *HEALTHY)]
    used = {
        step.tool for script in scripts for step in play(script, 1, max_steps=120).steps if isinstance(step, ToolStart)
    }

    assert used - set(DEMO_POLICY.effects) == UNDECLARED
    assert set(DEMO_POLICY.effects) <= used


def test_steps_look_like_those_of_real_agents() -> None:
    """Texts, tokens that grow with the context, prices, arguments, results: the demonstration shows the real fields."""
    (script,) = [script for _, agent, script, _ in HEALTHY if agent == "accountant"]

    steps = play(script, 1, max_steps=200).steps

    answers = [step for step in steps if isinstance(step, ModelEnd)]
    tokens = [step.usage.input_tokens or 0 for step in answers if step.usage is not None]
    assert len(tokens) == len(answers)
    assert all(one < other for one, other in pairwise(tokens))
    assert all(step.text and step.cost_usd for step in answers)
    ends = [step for step in steps if isinstance(step, ToolEnd)]
    assert all(step.result_hash and step.args_hash and step.duration_ms for step in ends)


def test_people_and_progress_are_reported() -> None:
    """Both change how repetition is judged, so the demonstration has them."""
    scripts = {agent: script for _, agent, script, _ in HEALTHY}

    chat = play(scripts["concierge"], 1, max_steps=200)
    stock = play(scripts["stocker"], 1, max_steps=200)

    assert any(isinstance(step, UserInput) for step in chat.steps)
    assert any(isinstance(step, Progress) for step in stock.steps)
