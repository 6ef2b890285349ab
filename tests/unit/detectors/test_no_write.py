"""A long stretch of reading."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, verdicts

from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

STILL = only("no_progress")


def reads(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return reads that each bring something else."""
    return [run.call("cat", run.seq, f"text {run.seq}", **{"effect": "read", **fields}) for _ in range(n)]


def test_thirty_two_reads_are_observed_once() -> None:
    """And never more, however long it goes on."""
    assert levels(decide(reads(Run(), 31), STILL)) == []
    assert levels(decide(reads(Run(), 200), STILL)) == ["observe"]


def test_the_evidence_is_the_stretch() -> None:
    """A person must find where it began."""
    run = Run()
    said = verdicts(decide([run.start(), *reads(run, 40)], STILL))

    assert [(one.evidence.count, one.evidence.first_seq, one.evidence.last_seq) for one in said] == [(32, 1, 32)]


def test_a_write_ends_the_stretch() -> None:
    """Something was changed."""
    run = Run()

    assert levels(decide([*reads(run, 20), run.call("put", "x", "ok", effect="write"), *reads(run, 42)], STILL)) == []


@pytest.mark.parametrize("effect", ["unknown", "poll"])
def test_one_call_that_may_have_changed_something_is_enough(effect: str) -> None:
    """Of an undeclared tool nobody knows; and whoever polls waits."""
    run = Run()
    steps = [step for _ in range(5) for step in (*reads(run, 20), *reads(run, 1, effect=effect))]

    assert levels(decide(steps, STILL)) == []


def test_progress_that_is_reported_counts() -> None:
    """The runtime knows better."""
    run = Run()

    assert levels(decide([*reads(run, 20), run.step("progress", note="page 2"), *reads(run, 12)], STILL)) == []


def test_it_can_be_switched_off() -> None:
    """An auditor's tenant does not want to hear of it."""
    policy = Policy.from_builtins({"mode": "enforce", "no_progress": {"observe_without_write": False}})

    assert levels(decide(reads(Run(), 64), policy), "no_progress") == []
