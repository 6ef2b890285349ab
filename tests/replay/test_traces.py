"""Recorded runs of real agents under the default policy: what is caught, and who is left in peace.

The recordings belong to others and are not part of this repository: without the folder beside it these tests are
skipped. `pytest -rP` prints the rates.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from tests._support.traces import Trace, judge, level_of, rates

from loopwarden_models.patterns import Level
from loopwarden_models.policy import Policy

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
FOLDERS = sorted(path.parent.name for path in TRACES.glob("*/steps.jsonl.gz"))

pytestmark = pytest.mark.skipif(not FOLDERS, reason="the folder with recorded runs is not beside this repository")


@cache
def traces(folder: str) -> list[Trace]:
    """Return the runs of a data set with their verdicts, the ladder climbed as far as it goes."""
    return judge(TRACES / folder, Policy(mode="enforce"))


def labelled(folder: str, label: str) -> list[Trace]:
    """Return the runs that two readers gave this label."""
    return [trace for trace in traces(folder) if trace.label["label"] == label]


def healthy(folder: str) -> list[Trace]:
    """Return the runs that reached their goal, or that readers found free of loops."""
    return [trace for trace in traces(folder) if trace.label["success"] is True or trace.label["label"] == "no_loop"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_healthy_runs_are_left_in_peace(folder: str) -> None:
    """At most two of a hundred are nudged. None is ended, unless it asked one thing eight times and heard one answer.

    Four of 2,593 short database runs did that and got there at the ninth attempt; a nudge at the third is what they
    lacked.
    """
    runs = healthy(folder)
    print(rates(f"{folder}, healthy", runs))
    ended = [trace for trace in runs if trace.level >= Level.KILL]
    reasons = [verdict for trace in ended for verdict in trace.said if level_of(verdict) >= Level.KILL]

    assert all(verdict.detector == "exact_repeat" and verdict.evidence.count >= 8 for verdict in reasons)
    assert len(ended) <= len(runs) * 0.002
    if len(runs) >= 40:
        assert sum(trace.level >= Level.NUDGE for trace in runs) <= len(runs) * 0.02


def test_labelled_loops_of_weak_models_are_caught() -> None:
    """They repeat themselves word for word: nine of ten are nudged, at the event where a reader sees it."""
    runs = labelled("intercode", "loop")
    print(rates("intercode, loops", runs))
    delays = sorted(trace.delay for trace in runs if trace.delay is not None)

    assert sum(trace.level >= Level.NUDGE for trace in runs) >= len(runs) * 0.9
    assert delays[len(delays) // 2] <= 2


def test_labelled_loops_of_a_modern_agent_are_caught() -> None:
    """Most of them change their words: the rules of this release see two of three."""
    runs = labelled("codetracer_kimi", "loop")
    print(rates("codetracer_kimi, loops", runs))

    assert sum(trace.level >= Level.NUDGE for trace in runs) >= len(runs) * 0.65


@pytest.mark.parametrize("folder", FOLDERS)
def test_failed_runs_are_counted(folder: str) -> None:
    """No claim: a run may fail without a loop. The numbers are for the reader of the report."""
    runs = [trace for trace in traces(folder) if trace.label["success"] is False]
    line = rates(f"{folder}, failed", runs)
    print(line)

    assert f"{len(runs)} runs" in line
