"""Whose fault a failed call is."""

from __future__ import annotations

from typing import Any

import pytest

from loopwarden_detectors.tool_faults import has_failed
from loopwarden_models.effects import OUTCOMES
from loopwarden_models.events import ToolEnd, ToolError


def call(outcome: str | None, status: Any = None) -> ToolEnd:
    """Return a call with this outcome."""
    error = None if status is None else ToolError(status=status)
    return ToolEnd(v=1, tenant="acme", run_id="r", seq=1, ts_ms=0, tool="search", outcome=outcome, error=error)


def test_every_outcome_has_its_answer() -> None:
    """What the caller or the guard did says nothing about the tool."""
    answers = {outcome: has_failed(call(outcome)) for outcome in OUTCOMES}

    assert {outcome for outcome, failed in answers.items() if failed} == {"error", "timeout"}
    assert {outcome for outcome, failed in answers.items() if failed is False} == {"ok"}
    assert has_failed(call(None)) is False
    assert has_failed(call("half_done")) is None


@pytest.mark.parametrize(
    ("status", "failed"),
    [
        (500, True),
        (503, True),
        ("529", True),
        ("UNAVAILABLE", True),
        (-1, True),
        (429, True),
        ("408", True),
        (425, True),
        (401, True),
        (402, True),
        (400, None),
        ("404", None),
        (403, None),
        (422, None),
        (499, None),
        ("٤٠٤", True),
    ],
)
def test_a_status_that_blames_the_arguments_is_the_runs_own(status: Any, failed: bool | None) -> None:
    """A run that asks for what does not exist must not close the tool for everybody."""
    assert has_failed(call("error", status)) is failed


def test_a_time_out_is_the_tools_whatever_its_status() -> None:
    """The status is a gateway's then."""
    assert has_failed(call("timeout", 404)) is True
