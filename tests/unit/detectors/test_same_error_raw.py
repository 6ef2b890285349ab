"""One call fails with the very same error, whatever is changed around it."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.same_error_raw import MAX_RAW_ERRORS
from loopwarden_models.events import AnyStep

RAW = only("same_error_raw")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, RAW))


def edits(run: Run, n: int, error: str = "FAIL same", **fields: Any) -> list[AnyStep]:
    """Return `n` times: a new write, then the test that fails."""
    return [step for _ in range(n) for step in (edit(run), run.call("test", {}, fails=error, **fields))]


def edit(run: Run) -> AnyStep:
    """Return a write that was never made before."""
    return run.call("edit", {"n": run.seq}, "ok", effect="write")


def test_levels_rise_with_the_failures() -> None:
    """Observe 3, nudge 5, nothing stronger however long it goes on: the next idea may be the right one."""
    for n, expected in {2: 0, 3: 1, 4: 1, 5: 2}.items():
        assert said(edits(Run(), n)) == ["observe", "nudge"][:expected]
    assert set(said(edits(Run(), 60))) == {"observe", "nudge"}


def test_new_writes_do_not_reset_it() -> None:
    """Nine edits, nine equal failures: every write is new, and none of them reaches the cause (trace X1)."""
    run = Run()
    decisions = decide(edits(run, 9), RAW)
    nudge = verdicts(decisions)[1]

    assert (nudge.pattern, nudge.level, nudge.evidence.count, nudge.evidence.threshold) == ("error_loop", "nudge", 5, 5)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq, nudge.evidence.window_ms) == (1, 9, 16_000)
    assert nudge.evidence.tools == ["test"]
    assert decisions[1].first_offset == 1
    assert orders(decisions) == ["nudge"]


def test_the_result_is_the_error_where_the_message_says_nothing() -> None:
    """Shells report "exit 1" and print what is wrong."""
    run = Run()
    error = {"class": "CommandFailed", "message": "exit 1"}
    printed = {"outcome": "error", "error": error}
    steps = [s for _ in range(5) for s in (edit(run), run.call("sh", "make", "a.c:1 syntax error", **printed))]
    silent = [s for _ in range(20) for s in (edit(run), run.call("sh", "test -f x", "", **printed))]

    assert said(steps) == ["observe", "nudge"]
    assert said(silent) == []


def test_an_error_that_nobody_reports_is_no_evidence() -> None:
    """Missing evidence never equals anything."""
    run = Run()

    assert said([run.call("test", {}, None, outcome="error") for _ in range(20)]) == []
    assert said([run.call("test", None, fails="no") for _ in range(20)]) == []


def test_hashes_alone_are_enough() -> None:
    """A runtime that sends no content says by a hash that nothing changed."""
    run = Run()
    hashes = {"args_hash": "a1", "result_hash": "b2", "outcome": "error"}
    steps = [s for _ in range(5) for s in (edit(run), run.call("test", None, None, **hashes))]

    assert said(steps) == ["observe", "nudge"]


@pytest.mark.parametrize(
    "other",
    [{"fails": "FAIL other"}, {"result": "passed"}, {"result": None, "outcome": "error"}, {"outcome": "cancelled"}],
    ids=["error", "success", "no answer", "cancelled"],
)
def test_anything_else_that_the_call_answers_resets_it(other: dict[str, Any]) -> None:
    """Three failures and a pass are the normal rhythm of coding (trace X2); so are ever other failures."""
    run = Run()

    assert said([*edits(run, 4), run.call("test", {}, **other), *edits(run, 4)]).count("nudge") == 0


def test_numbers_are_not_masked() -> None:
    """Five problems, then four, then three: that is progress, and no repetition."""
    run = Run()

    assert said([step for left in range(12, 0, -1) for step in edits(run, 1, f"{left} problems")]) == []


def test_calls_of_one_batch_are_one_failure() -> None:
    """Five equal calls side by side fail as one."""
    run = Run()
    error = {"outcome": "error", "error": {"class": "E", "message": "no"}}
    batch = [("test", "x", None)] * 5

    assert said([s for _ in range(2) for s in run.batch(*batch, **error)]) == []
    assert said([s for _ in range(5) for s in run.batch(*batch, **error)]) == ["observe", "nudge"]


@pytest.mark.parametrize(("effect", "expected"), [("unknown", []), ("poll", []), ("read", ["observe", "nudge"])])
def test_who_waits_in_between_waits_for_something(effect: str, expected: list[str]) -> None:
    """A server that comes up refuses connections until it is there; a declared read has no such excuse."""
    run = Run()
    steps = [
        s for _ in range(6) for s in (run.call("curl", "x", fails="refused", effect=effect), run.call("sleep", 2, ""))
    ]

    assert said(steps) == expected


def test_a_call_that_was_long_not_made_starts_afresh() -> None:
    """Forty calls later the question is another one, even if it reads the same."""
    run = Run()
    before = edits(run, 4)
    between = [run.call("read", n, n, effect="read") for n in range(41)]

    assert said([*before, *between, *edits(run, 4)]) == ["observe"]


def test_many_failing_calls_are_told_apart() -> None:
    """The call that failed longest ago is forgotten first; memory is bounded."""
    run = Run()
    wide = [run.call("test", n, fails="no") for _ in range(5) for n in range(MAX_RAW_ERRORS)]
    tree = tree_of(wide[0])

    assert levels(decide(wide, RAW, tree=tree)).count("nudge") == MAX_RAW_ERRORS
    decide([run.call("more", n, fails="no") for n in range(20) for _ in "ab"], RAW, tree=tree)
    assert len(tree.runs["r1"].same_error_raw or ()) == MAX_RAW_ERRORS


def test_a_person_who_speaks_or_approves_starts_afresh() -> None:
    """The first failure after a new prompt, or after a person looked at the call, is the first."""
    run = Run()
    assert "nudge" not in said([*edits(run, 4), run.user(), *edits(run, 4)])

    before, approval = edits(run, 4), run.step("approval_end", call_id="c9", decision="approved")
    assert "nudge" not in said([*before, approval, *edits(run, 1, call_id="c9"), *edits(run, 3)])


def test_a_snapshot_in_the_middle_changes_nothing() -> None:
    """The worker that takes over says what the other would have said."""
    run = Run()
    steps = edits(run, 6)
    for cut in range(len(steps)):
        tree = tree_of(steps[0])
        before = levels(decide(steps[:cut], RAW, tree=tree))
        restored = TreeState.from_bytes(tree.to_bytes())

        assert before + levels(decide(steps[cut:], RAW, tree=restored)) == ["observe", "nudge"]
