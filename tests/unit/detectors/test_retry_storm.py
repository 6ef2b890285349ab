"""One call fails and is sent again at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.retry_storm import MAX_STORMS
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

STORM = only("retry_storm")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, STORM))


def fails(run: Run, n: int = 1, args: Any = "q", **fields: Any) -> list[AnyStep]:
    """Return `n` failures of one call."""
    return [run.call("fetch", args, fails="503", **fields) for _ in range(n)]


def after(run: Run, *gaps_ms: int, **fields: Any) -> list[AnyStep]:
    """Return a failure, and one more after each gap."""
    steps = fails(run, **fields)
    usual = run.gap_ms
    for run.gap_ms in gaps_ms:
        steps += fails(run, **fields)
    run.gap_ms = usual
    return steps


def test_levels_rise_with_the_failures() -> None:
    """Observe 3, break 5 within a minute; no kill, for the tool may come back."""
    for n, expected in {2: 0, 3: 1, 4: 1, 5: 2, 9: 2}.items():
        assert said(fails(Run(), n)) == ["observe", "break"][:expected]
    assert set(said(fails(Run(), 60))) == {"observe", "break"}


def test_the_evidence_names_the_steps() -> None:
    """From the first failure to the one that decided."""
    run = Run()
    decisions = decide([run.start(), run.call("list"), *fails(run, 5)], STORM)
    verdict = verdicts(decisions)[-1]

    assert (verdict.pattern, verdict.level, verdict.evidence.count) == ("retry_storm", "break", 5)
    assert (verdict.evidence.first_seq, verdict.evidence.last_seq, verdict.evidence.window_ms) == (2, 6, 8_000)
    assert verdict.evidence.tools == ["fetch"]
    assert decisions[-1].first_offset == 2
    assert "kill_run" not in orders(decisions)


@pytest.mark.parametrize("outcome", ["invalid_args", "denied", "blocked", "unknown_tool", "cancelled", "ok"])
def test_what_is_the_runs_own_fault_is_no_storm(outcome: str) -> None:
    """Wrong arguments do not hurt the tool."""
    assert said(Run().calls(9, outcome=outcome)) == []


def test_a_timeout_is_a_failure() -> None:
    """A tool that does not answer is down as well."""
    assert said(Run().calls(5, result=None, outcome="timeout")) == ["observe", "break"]


def test_other_arguments_are_another_call() -> None:
    """Five pages that are not there are five questions."""
    run = Run()

    assert said([s for n in range(9) for s in fails(run, args=n)]) == []
    assert said(Run().calls(9, args=None, result=None, outcome="error")) == []


def test_only_the_last_minute_counts() -> None:
    """Every 15 seconds: four failures are in any minute. Every 14: five."""
    run = Run()

    assert said(after(run, *[15_000] * 20)) == ["observe"]
    assert "break" in said(after(run, *[14_000] * 20))


def test_growing_gaps_are_back_off() -> None:
    """One, two, four, eight, sixteen seconds: the client spares what is down."""
    run = Run()

    assert said(after(run, 1_000, 2_000, 4_000, 8_000, 16_000)) == ["observe"]
    assert said(after(run, 1_000, 1_500, 2_250, 3_375, 5_063)) == ["observe"]
    assert said(after(run, 1_000, 1_400, 1_960, 2_744)) == ["observe", "break"]


@pytest.mark.parametrize("effect", ["write", "unknown"])
def test_edit_and_test_again_is_no_storm(effect: str) -> None:
    """A write in between may have repaired it; who declares nothing gets the benefit of the doubt."""
    run = Run()
    steps = [s for _ in range(20) for s in (run.call("edit", run.seq, "", effect=effect), *fails(run))]

    assert said(steps) == []
    assert said([*fails(run, 4), run.call("edit", run.seq, "", effect=effect), *fails(run, 4)]).count("break") == 0


def test_reads_in_between_hide_nothing() -> None:
    """Looking at something else does not repair the tool."""
    run = Run()
    steps = [s for _ in range(5) for s in (*fails(run), run.call("read", run.seq, run.seq, effect="read"))]

    assert said(steps) == ["observe", "break"]


def test_a_success_of_the_call_ends_its_storm() -> None:
    """Three times down, then there: that is what a retry is for (trace H10)."""
    run = Run()

    assert said([*fails(run, 3), run.call("fetch", "q", "page", effect="read"), *fails(run, 4)]) == ["observe"]


@pytest.mark.parametrize(("effect", "is_storm"), [("unknown", False), ("poll", False), ("read", True)])
def test_who_waits_in_between_waits_for_something(effect: str, is_storm: bool) -> None:
    """A server that comes up refuses connections until it is there."""
    run = Run()
    steps = [s for _ in range(6) for s in (*fails(run, effect=effect), run.call("sleep", 2, ""))]

    assert ("break" in said(steps)) == is_storm


def test_calls_of_one_batch_are_one_failure() -> None:
    """Five equal calls side by side are one attempt."""
    run = Run()
    error = {"outcome": "error", "error": {"class": "E", "message": "503"}}
    batch = [("fetch", "q", None)] * 5

    assert said([s for _ in range(2) for s in run.batch(*batch, **error)]) == []
    assert said([s for _ in range(5) for s in run.batch(*batch, **error)]) == ["observe", "break"]


def test_another_error_text_is_progress() -> None:
    """The break becomes a nudge, and the verdict says from what."""
    run = Run()
    decisions = decide([run.call("fetch", "q", fails=f"503, request {n}") for n in range(6)], STORM)

    assert levels(decisions) == ["observe", "nudge"]
    assert verdicts(decisions)[-1].vetoed_from == "break"


def test_a_new_segment_starts_afresh() -> None:
    """What failed before a person spoke, before a resume, or before a person approved the call, is forgotten."""
    run = Run()
    assert "break" not in said([*fails(run, 4), run.user(), *fails(run, 4)])
    assert "break" not in said([*fails(run, 4), run.resume("b"), *fails(run, 4)])

    before, approval = fails(run, 4), run.step("approval_end", call_id="c9", decision="approved")
    assert "break" not in said([*before, approval, *fails(run, call_id="c9"), *fails(run, 3)])


def test_memory_is_bounded_and_given_back() -> None:
    """Calls that storm side by side leave in order; a minute later none is kept."""
    run = Run()
    steps = [s for n in range(12) for s in fails(run, 20, args=n)]
    tree = tree_of(steps[0])
    decide(steps, STORM, tree=tree)
    state = tree.runs["r1"]

    assert len(state.retry_storm or ()) == MAX_STORMS
    run.gap_ms = 61_000
    decide([run.call("read", "x", "y", effect="read")], STORM, tree=tree)
    assert (state.retry_storm, state.watched) == (None, 0)


def test_a_snapshot_in_the_middle_changes_nothing() -> None:
    """The worker that takes over says what the other would have said."""
    run = Run()
    steps = [s for _ in range(5) for s in (*fails(run), run.call("read", run.seq, run.seq, effect="read"))]
    for cut in range(len(steps)):
        tree = tree_of(steps[0])
        before = levels(decide(steps[:cut], STORM, tree=tree))
        restored = TreeState.from_bytes(tree.to_bytes())

        assert before + levels(decide(steps[cut:], STORM, tree=restored)) == ["observe", "break"]
