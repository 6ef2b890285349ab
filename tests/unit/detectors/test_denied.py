"""Calls that a policy, a person or a breaker refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.denied import MAX_POLICIES
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

DENIED = only("denied")
# The second nudge is due when the count has doubled.
LADDER = ["observe", "nudge", "nudge", "kill"]


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, DENIED))


def denied(run: Run, n: int = 1, rule: str = "PolicyDenied", **fields: Any) -> list[AnyStep]:
    """Return `n` calls that a policy refuses, each in other words."""
    error = {"class": rule, "message": f"not {run.seq}"}
    return [run.call("sh", run.seq, None, outcome="denied", error=error, **fields) for _ in range(n)]


def work(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return `n` calls that bring something new."""
    return [run.call("fetch", run.seq, f"page {run.seq}", **fields) for _ in range(n)]


def asked(run: Run, decision: str, call_id: str | None = None) -> list[AnyStep]:
    """Return what a runtime reports when a person decides."""
    return [
        run.step("approval_wait", call_id=call_id),
        run.step("approval_end", call_id=call_id, decision=decision),
    ]


def test_levels_rise_with_the_refusals() -> None:
    """Observe 1, nudge 2, kill 5, whatever the arguments (trace L12)."""
    for n, expected in {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 5: 4}.items():
        assert said(denied(Run(), n)) == LADDER[:expected]


def test_the_evidence_names_the_steps() -> None:
    """From the first refusal to the one that decided, and the tool that was asked for."""
    run = Run()
    decisions = decide([*work(run, 2), *denied(run, 6)], DENIED)
    kill = next(verdict for verdict in verdicts(decisions) if verdict.level == "kill")

    assert (kill.pattern, kill.evidence.count, kill.evidence.threshold) == ("guardrail_loop", 5, 5)
    assert (kill.evidence.first_seq, kill.evidence.last_seq, kill.evidence.tools) == (2, 6, ["sh"])
    assert decisions[0].first_offset == 2
    assert orders(decisions) == ["nudge", "nudge", "kill_run"]


def test_reads_in_between_hide_nothing() -> None:
    """Refused, looked, refused again: the look brings nothing that allows it."""
    run = Run()

    assert said([s for _ in range(5) for s in (*denied(run), *work(run, 2))]) == LADDER


def test_each_policy_has_its_own_count() -> None:
    """Four rules met once each are four lessons, not one loop; without a name the tool stands for its rule."""
    run = Run()

    assert set(said([s for n in range(6) for s in denied(run, rule=f"Rule{n}")])) == {"observe"}
    assert set(said([run.call(f"t{n}", n, None, outcome="denied") for n in range(6)])) == {"observe"}
    assert said([run.call("t", n, None, outcome="denied") for n in range(5)]) == LADDER


def test_a_blocked_tool_is_one_breaker() -> None:
    """Blocking alone ends nothing: who hammers on a closed door is ended."""
    run = Run()

    assert said([run.call("sh", n, None, outcome="blocked") for n in range(5)]) == LADDER
    assert set(said([run.call(f"t{n}", n, None, outcome="blocked") for n in range(5)])) == {"observe"}


def test_other_refusals_are_left_to_others() -> None:
    """What is cached, cancelled or unknown was not forbidden."""
    run = Run()

    for outcome in ("cached", "cancelled", "unknown_tool", "teleported", "error"):
        assert said(run.calls(9, outcome=outcome)) == []


def test_a_batch_of_refusals_is_one() -> None:
    """One rule that hits five parallel edits is one refusal."""
    run = Run()
    batch = [("sh", n, None) for n in range(5)]

    assert said(run.batch(*batch, outcome="denied")) == ["observe"]
    assert said([s for _ in range(5) for s in run.batch(*batch, outcome="denied")]) == LADDER


def test_a_person_who_rejects_is_a_policy() -> None:
    """The runtime reports the decision alone, for the call never ran."""
    run = Run()
    decisions = decide([s for _ in range(5) for s in asked(run, "rejected", f"c{run.seq}")], DENIED)

    assert levels(decisions) == LADDER
    assert verdicts(decisions)[1].evidence.first_seq == 1
    assert decisions[0].first_offset == 1
    assert said([s for _ in range(5) for s in asked(run, "expired", f"c{run.seq}")]) == []


def test_a_rejection_and_its_call_are_one() -> None:
    """Some runtimes report the decision, some the refused call, some both."""
    run = Run()

    def both() -> list[AnyStep]:
        call_id = f"c{run.seq}"
        return [*asked(run, "rejected", call_id), *denied(run, rule="Rejected", call_id=call_id)]

    assert said(both()) == ["observe"]
    assert said([s for _ in range(5) for s in both()]) == LADDER


def test_rejections_side_by_side_are_one() -> None:
    """A person says no to a batch of five that waited together."""
    run = Run()

    def batch() -> list[AnyStep]:
        ids = [f"c{run.seq}-{n}" for n in range(5)]
        waits = [run.step("approval_wait", call_id=own) for own in ids]
        return [*waits, *[run.step("approval_end", call_id=own, decision="rejected") for own in ids]]

    assert said(batch()) == ["observe"]
    assert said([s for _ in range(5) for s in batch()]) == LADDER


@pytest.mark.parametrize("call_id", ["c1", None])
def test_an_approval_forgets_all_refusals(call_id: str | None) -> None:
    """Refused, asked a person, went on with approval: the way it should be."""
    run = Run()

    assert "kill" not in said([*denied(run, 4), *asked(run, "approved", call_id), *denied(run, 4)])


def test_ten_productive_calls_in_a_row_forget_one() -> None:
    """A long day of work meets a closed door now and then."""
    run = Run()

    assert said([s for _ in range(20) for s in (*work(run, 10), *denied(run))]) == ["observe"]
    assert said([s for _ in range(20) for s in (*work(run, 9), *denied(run))])[-1] == "kill"


def test_progress_in_between_turns_the_kill_into_a_nudge() -> None:
    """Who goes on working and meets the same rule now and then is advised, not ended."""
    run = Run()
    decisions = decide([s for _ in range(9) for s in (*denied(run), *work(run, 1, effect="write"))], DENIED)

    assert set(levels(decisions)) == {"observe", "nudge"}
    assert "kill" in [verdict.vetoed_from for verdict in verdicts(decisions)]


def test_progress_long_ago_protects_no_longer() -> None:
    """Five refusals in a row after the last good step are a loop like any other."""
    run = Run()

    assert said([*denied(run), *work(run, 1, effect="write"), *denied(run, 5)])[-1] == "kill"


def test_an_attended_run_is_paused() -> None:
    """A person is there to be asked."""
    run = Run()

    assert orders(decide([run.start(attended=True), *denied(run, 6)], DENIED)) == ["nudge", "nudge", "pause_run"]


def test_a_new_segment_starts_afresh() -> None:
    """What was refused before a person spoke, or before a resume, is forgotten."""
    run = Run()

    assert "kill" not in said([*denied(run, 4), run.user(), *denied(run, 4)])
    assert "kill" not in said([*denied(run, 4), run.resume("b"), *denied(run, 4)])


def test_memory_is_bounded() -> None:
    """A runtime that names every refusal otherwise fills all places, and no more."""
    run = Run()
    steps = [s for n in range(40) for s in denied(run, rule=f"Rule{n}" + "x" * 5_000)]
    steps += [s for n in range(40) for s in asked(run, "rejected", f"c{n}")]
    tree = tree_of(steps[0])
    decide(steps, DENIED, tree=tree)
    state = tree.runs["r1"].denied

    assert state is not None
    assert (len(state.policies), len(state.rejected)) == (MAX_POLICIES, 8)


def test_a_snapshot_in_the_middle_changes_nothing() -> None:
    """The worker that takes over says what the other would have said."""
    run = Run()
    steps = [s for _ in range(5) for s in (*asked(run, "rejected", f"c{run.seq}"), *work(run, 2))]
    for cut in range(len(steps)):
        tree = tree_of(steps[0])
        before = levels(decide(steps[:cut], DENIED, tree=tree))
        restored = TreeState.from_bytes(tree.to_bytes())

        assert before + levels(decide(steps[cut:], DENIED, tree=restored)) == LADDER
