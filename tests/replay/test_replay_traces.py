"""Recorded runs of real agents, where they are at hand: `traces` beside the repository, one folder per data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwarden_detectors import fleet_breaker
from loopwarden_streams.cli import main

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
FILES = sorted(TRACES.glob("*/steps.jsonl.gz"))

pytestmark = pytest.mark.skipif(not FILES, reason="no recorded traces in ../shared/traces")


def replay(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of the verdicts, and the summary without what depends on the machine."""
    assert main(["replay", "--json", *map(str, args)]) == 0
    *verdicts, last = capsys.readouterr().out.splitlines()
    summary: dict[str, Any] = json.loads(last)["summary"]
    del summary["seconds"]
    return verdicts, summary


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_line_is_judged_and_twice_alike(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Foreign recorders write what we read, and a replay of the same file says the same."""
    verdicts, summary = replay(capsys, file)

    assert summary["broken"] == {}
    assert summary["unknown_types"] == 0
    assert summary["events"] > summary["runs"] > 0
    assert replay(capsys, file) == (verdicts, summary)


def test_one_tree_state_each_however_the_files_are_put_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs do not influence one another: all files in one replay give what each gives by itself.

    Breakers are made of what runs have in common, so theirs are left out.
    """
    ids = [each for file in FILES for each in _ids(replay(capsys, file)[0])]

    assert _ids(replay(capsys, *FILES)[0]) == ids


def _ids(verdicts: list[str]) -> list[str]:
    decoded = map(json.loads, verdicts)
    return [verdict["verdict_id"] for verdict in decoded if verdict["detector"] != fleet_breaker.NAME]
