"""What is told of causes and recoveries changes nothing that is decided."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests._support.steps import answer, tree_of
from tests.property.step_streams import EAGER, Script, play, scripts

from loopwarden_detectors import watch
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.causes import CAUSES
from loopwarden_models.events import AnyStep, RunStart
from loopwarden_models.patterns import advice_of
from loopwarden_models.recoveries import RECOVERIES

GOALS = st.sampled_from(["Try until it works, never give up.", "Say hello.", None])


def decided(steps: Iterable[AnyStep]) -> list[Decision]:
    """Return what is decided on a stream of several trees, each nudge of which is applied at once."""
    trees: dict[tuple[str, str], TreeState] = {}
    found: list[Decision] = []
    for step in steps:
        tree = trees.setdefault((step.tenant, step.root_run_id or step.run_id), tree_of(step))
        for decision in watch.observe(tree, step, EAGER):
            found.append(decision)
            if decision.order is not None and decision.order.type == "nudge":
                answer(tree, decision.order, "applied", at_ms=step.ts_ms)
    return found


def without_causes(decisions: Iterable[Decision]) -> list[tuple[object, ...]]:
    """Return what was decided but for the cause that is named, ids included."""
    return [
        (
            replace(decision.verdict, probable_cause=None) if decision.verdict is not None else None,
            decision.order,
            [(block.tool, block.until_ms, block.verdict_id) for block in decision.block.tools]
            if decision.block is not None
            else None,
        )
        for decision in decisions
    ]


@given(script=scripts(), goal=GOALS, other=GOALS)
def test_what_a_goal_says_changes_no_verdict_no_order_and_no_id(
    script: Script, goal: str | None, other: str | None
) -> None:
    """A guess for people must not reach what is done, or a reworded prompt would change the ids of a replay."""

    def told(text: str | None) -> list[Decision]:
        return decided(replace(step, goal=text) if isinstance(step, RunStart) else step for step in play(script))

    assert without_causes(told(goal)) == without_causes(told(other))


@settings(max_examples=300)
@given(script=scripts())
def test_every_verdict_names_what_is_known_and_nothing_else(script: Script) -> None:
    """A recovery from a nudge on, at a level at which that recovery is used; a cause that has a countermeasure."""
    for decision in decided(play(script)):
        verdict = decision.verdict
        if verdict is None:
            continue
        event(f"{verdict.detector}: {verdict.recovery_level} {verdict.recovery}: {verdict.probable_cause}")
        assert (verdict.recovery is None) == (verdict.recovery_level is None)
        if verdict.level == "observe":
            assert verdict.recovery is None
            assert verdict.probable_cause is None
        elif verdict.recovery is not None:
            assert verdict.recovery_level in RECOVERIES[verdict.recovery].levels
        else:
            # Nobody would hear it, or nobody is advised.
            assert verdict.detector == "silent_run" or advice_of(verdict.pattern, verdict.detector) is None
        assert verdict.probable_cause is None or verdict.probable_cause in CAUSES
