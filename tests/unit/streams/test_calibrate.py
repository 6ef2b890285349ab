"""Limits from recorded runs that went well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests._support.replay_runs import Event, Recorder, jsonl

from loopwarden_streams import cli
from loopwarden_streams.calibrate import MIN_RUNS, percentile
from loopwarden_streams.policy_file import load_policy


def runs(
    n: int, *, agent: str = "coder", status: str | None = "completed", repeats: int = 1, calls: int = 10
) -> list[Event]:
    """Return `n` runs of this agent, each with `calls` calls and one question asked `repeats` times in a row."""
    events: list[Event] = []
    for number in range(n):
        run = Recorder(f"{agent}-{status}-{number}", agent, goal="Build it.")
        for call in range(calls):
            run.think("Next.", usage={"input_tokens": 900, "output_tokens": 100}, cost_usd=0.01)
            run.call("read", {"path": f"{call}.py"}, f"text {call}", effect="read")
        for _ in range(repeats):
            run.call("status", {}, "running", effect="unknown")
        if status is not None:
            run.add("run_end", 1_000, status=status)
        events += run.events
    return events


def calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[Event]) -> tuple[Path, str]:
    """Return the file with the proposed policy, and its text."""
    recorded = tmp_path / "steps.jsonl"
    recorded.write_bytes(jsonl(events))
    assert cli.main(["calibrate", str(recorded)]) == 0
    file = tmp_path / "proposed.yaml"
    file.write_text(text := capsys.readouterr().out)
    return file, text


def test_limits_are_half_as_much_again_as_what_is_normal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten reads and a look: eleven calls, ten answers, ten thousand tokens, ten cents."""
    file, text = calibrate(tmp_path, capsys, runs(MIN_RUNS))
    policy = load_policy(file)

    assert policy.budget.max_steps_if_stuck == 17
    assert policy.budget.limits.max_model_calls == 15
    assert policy.budget.limits.max_tokens == 15_000
    assert policy.budget.limits.max_cost_usd == pytest.approx(0.15)
    assert "# 95 of 100 need at most 11 calls, x 1.5; median 11, most 11; 20 completed runs" in text


def test_runs_that_did_not_complete_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop is no measure of what is normal."""
    events = [*runs(MIN_RUNS), *runs(MIN_RUNS, status="limit", calls=200), *runs(5, status=None, calls=300)]

    assert load_policy(calibrate(tmp_path, capsys, events)[0]).budget.max_steps_if_stuck == 17


def test_each_agent_with_enough_runs_gets_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clerk and a coder are no one's average."""
    events = [*runs(MIN_RUNS), *runs(MIN_RUNS, agent="clerk", calls=2), *runs(3, agent="guest")]
    policy = load_policy(calibrate(tmp_path, capsys, events)[0])

    assert set(policy.agents) == {"coder", "clerk"}
    assert policy.of("acme", "clerk").budget.max_steps_if_stuck == 5
    assert policy.of("acme", "coder").budget.max_steps_if_stuck == 17


def test_a_tool_that_healthy_runs_repeat_gets_more_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A status that is asked six times in every run that goes well."""
    policy = load_policy(calibrate(tmp_path, capsys, runs(MIN_RUNS, repeats=6))[0])

    repeat = policy.of("acme", "").for_tool("status").exact_repeat
    assert (repeat.nudge, repeat.break_at, repeat.kill) == (9, 11, 14)
    assert policy.of("acme", "").for_tool("read").exact_repeat.nudge == 3


def test_too_few_runs_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Better no number than one from an accident."""
    recorded = tmp_path / "steps.jsonl"
    recorded.write_bytes(jsonl(runs(MIN_RUNS - 1)))

    assert cli.main(["calibrate", str(recorded)]) == cli.EXIT_USAGE
    assert "19 of 19 recorded runs ended with status completed" in capsys.readouterr().err


def test_labels_beside_the_recording_say_what_went_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many runtimes report no end; readers, or a test of the result, know."""
    events = runs(MIN_RUNS, status=None)
    names = {event["run_id"] for event in events}
    labels = [json.dumps({"run_id": name, "label": None, "success": True, "onset_event_seq": None}) for name in names]
    (tmp_path / "labels.jsonl").write_text("\n".join(labels))

    assert load_policy(calibrate(tmp_path, capsys, events)[0]).budget.max_steps_if_stuck == 17


def test_a_percentile_is_one_of_the_values() -> None:
    """The nearest rank: of few runs, the largest."""
    assert percentile([5.0], 95) == 5
    assert percentile([float(n) for n in range(1, 101)], 95) == 95
    assert percentile([3.0, 1.0, 2.0], 50) == 2
