"""docs/replay.md shows what `loopwarden replay` prints today."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests._support.replay_runs import example_events, jsonl

from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_streams.cli import main
from loopwarden_streams.replay_core import Replay, Source, SourceRecord
from loopwarden_streams.replay_summary import ANY

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "loops.jsonl"
GUIDE = ROOT / "docs" / "replay.md"


def test_the_example_is_what_the_builders_make() -> None:
    """One set of runs for the guide and for the tests; after a change of the builders, write the file anew."""
    assert EXAMPLE.read_bytes() == jsonl(example_events())


# The rules that the guide explains by its example.
SHOWN = ("exact_repeat", "changing_repeat", "cycle", "same_error", "rate", "budget")


def test_the_example_has_a_run_for_each_rule_that_it_explains_and_two_healthy_ones() -> None:
    """What the guide says of a rule must be seen in its output."""
    replay = Replay(DEFAULT_POLICY)
    for at, line in enumerate(EXAMPLE.read_bytes().splitlines()):
        replay.feed(SourceRecord(line, Source("loops.jsonl"), at))
    summary = replay.summary()

    assert [name for name in SHOWN if not summary.verdicts[name]] == []
    nudged = sum(n for level, n in summary.runs_by_level[ANY].items() if level != "observe")
    assert summary.runs - nudged >= 2
    assert summary.broken == {}


def test_the_guide_shows_the_output_of_today(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, but for the speed. If this fails, run the command with COLUMNS=120 and paste what it prints."""
    for name in [name for name in os.environ if name.startswith("LOOPWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(ROOT)
    found = re.search(
        r"^```console\n\$ loopwarden (?P<command>.*)\n(?P<output>(?:.*\n)*?)```$", GUIDE.read_text(), re.MULTILINE
    )
    assert found is not None

    status = main(found["command"].split())

    assert status == 0
    assert _without_speed(found["output"]) == _without_speed(capsys.readouterr().out)


def _without_speed(text: str) -> list[str]:
    text = re.sub(r"(?<=^events)( +[\d,]+) in .*", r"\1", text, flags=re.MULTILINE)
    return re.sub(r": [\d,]+ times as fast as it happened", "", text).splitlines()
