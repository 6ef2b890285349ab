"""What another policy would have said of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests._support.replay_runs import changing_repeat, cycle, exact_repeat, healthy_fix, jsonl

from loopwarden_streams import cli


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a file with four runs."""
    file = tmp_path / "steps.jsonl"
    file.write_bytes(jsonl([*exact_repeat(), *changing_repeat(), *cycle(), *healthy_fix("fix-9")]))
    return file


def policy(tmp_path: Path, name: str, text: str) -> Path:
    """Return a policy file."""
    file = tmp_path / f"{name}.yaml"
    file.write_text(f"version: {name}\n{text}")
    return file


def backtest(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    """Return the comparison as JSON."""
    assert cli.main(["backtest", *map(str, args), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_same_policy_changes_nothing(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The two sides judge alike."""
    found = backtest(capsys, recorded, "--policy", policy(tmp_path, "same", "mode: shadow\n"))

    assert (found["runs"], found["changes"], found["gained"], found["lost"]) == (4, [], {}, {})
    assert found["old_levels"] == found["new_levels"]


def test_a_looser_policy_says_which_runs_it_lets_go(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run by run: what was said, what would be said, and where."""
    loose = policy(tmp_path, "loose", "exact_repeat: {kill: 500, kill_undeclared: 500}\n")
    found = backtest(capsys, recorded, "--policy", loose)

    (change,) = found["changes"]
    assert (change["run_id"], change["change"]) == ("report-1", "looser")
    assert change["old"] == {"level": "kill", "detector": "exact_repeat", "seq": 16}
    assert change["new"]["level"] == "break"
    assert found["lost"] == {"exact_repeat": 1}


def test_against_another_policy_than_the_default(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one in force may be a file, too; what was loose gets stricter."""
    loose = policy(tmp_path, "loose", "exact_repeat: {kill: 500, kill_undeclared: 500}\n")
    strict = policy(tmp_path, "strict", "changing_repeat: {observe: 3, nudge: 5}\n")
    found = backtest(capsys, recorded, "--policy", strict, "--against", loose)

    assert (found["old_policy"], found["new_policy"]) == ("loose", "strict")
    assert {(change["run_id"], change["change"]) for change in found["changes"]} >= {("report-1", "stricter")}
    assert found["gained"]["exact_repeat"] == 1


def test_a_person_reads_a_table(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runs that change most come first, and the sum last."""
    loose = policy(tmp_path, "loose", "exact_repeat: {kill: 500, kill_undeclared: 500}\ncycle: {kill_laps: 20}\n")

    assert cli.main(["backtest", str(recorded), "--policy", str(loose)]) == 0
    told = capsys.readouterr().out
    assert "report-1" in told
    assert "1 runs judged more strictly" not in told
    assert "default-1 against loose" in told


def test_records_that_are_none_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recordings have broken lines; a file of nothing else is a failure."""
    file = tmp_path / "steps.jsonl"
    file.write_bytes(b"no json\n" + jsonl(exact_repeat()))
    same = policy(tmp_path, "same", "")
    assert backtest(capsys, file, "--policy", same)["broken"] == {"not_json": 1}

    file.write_bytes(b"no json\n")
    assert cli.main(["backtest", str(file), "--policy", str(same)]) == 1


def test_a_wrong_policy_is_told(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read."""
    wrong = policy(tmp_path, "wrong", "cycle: {kill_laps: five}\n")

    assert cli.main(["backtest", str(recorded), "--policy", str(wrong)]) == cli.EXIT_USAGE
    assert "cycle.kill_laps" in capsys.readouterr().err
