"""`loopwarden eval` as it is called."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests._support.replay_runs import Event, cycle, exact_repeat, healthy_fix, jsonl

from loopwarden_detectors import watch
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_streams import evaluate_score
from loopwarden_streams.cli import main

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"

CASE = """
id: {id}
kind: {kind}
title: The same search
events:
  - {{type: run_start, goal: Find it}}
  - repeat: {times}
    events:
      - {{type: tool_end, tool: search, args: {{q: "{query}"}}, result: "nothing for {query}"}}
expect: {expect}
"""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(autouse=True)
def _two_rules_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge by two rules with thresholds of our own: the figures here must not move with the rules."""
    rules: dict[str, dict[str, Any]] = {name: {"mode": "off"} for name in RULES}
    rules["exact_repeat"] = {"observe": 2, "nudge": 3, "break_at": 5, "kill": 8}
    rules["cycle"] = {"observe_laps": 2, "nudge_laps": 3, "kill_laps": 5}
    policy = tmp_path / "rules.json"  # JSON is YAML, and this is no case
    policy.write_text(json.dumps(rules))
    monkeypatch.setenv("LOOPWARDEN_POLICY", str(policy))


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A loop that is caught, one that is expected too early, a healthy one, and a healthy-looking loop."""
    folder = tmp_path / "cases"
    folder.mkdir()
    write_case(folder, "a-caught", "missed_loop", "{min_level: nudge, by_event: 4, pattern: tool_repetition}")
    write_case(folder, "b-too-early", "missed_loop", "{min_level: nudge, by_event: 3, pattern: frozen_poll}")
    write_case(folder, "c-healthy", "false_positive", "{max_level: observe}", query="page {i}")
    write_case(folder, "d-alarmed", "false_positive", "{max_level: observe}")
    return folder


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two data sets: one with labels of every sort, one plain file in which everything succeeds."""
    folder = tmp_path / "traces"
    runs = {
        "loop": exact_repeat("loop"),
        "recovered": cycle("recovered"),
        "missed": healthy_fix("missed"),
        "alarm": exact_repeat("alarm", times=5),
        "fine": healthy_fix("fine"),
        "failed": exact_repeat("failed"),
        "maybe": cycle("maybe"),
        "nobody": exact_repeat("nobody"),
    }
    labels: list[Event] = [
        {"run_id": "loop", "label": "loop", "success": False, "onset_event_seq": 4},
        {"run_id": "recovered", "label": "loop", "success": True, "onset_event_seq": 9},
        {"run_id": "missed", "label": "loop", "success": False, "onset_event_seq": 2},
        {"run_id": "alarm", "label": "no_loop", "success": True},
        {"run_id": "fine", "label": None, "success": True},
        {"run_id": "failed", "label": None, "success": False},
        {"run_id": "maybe", "label": "maybe", "success": False},
    ]
    write_data_set(folder / "mixed", runs.values(), labels)
    write_data_set(
        folder / "plain", [healthy_fix("p")], [{"run_id": "p", "label": None, "success": True}], packed=False
    )
    return folder


def write_case(folder: Path, name: str, kind: str, expect: str, *, query: str = "x", times: int = 9) -> None:
    """Write one case file: the same search, again and again."""
    text = CASE.format(id=name, kind=kind, expect=expect, query=query, times=times)
    (folder / f"{name}.yaml").write_text(text)


def write_data_set(folder: Path, runs: Any, labels: list[Event], *, packed: bool = True) -> None:
    """Write steps and labels."""
    folder.mkdir(parents=True)
    steps = jsonl(event for run in runs for event in run)
    if packed:
        (folder / "steps.jsonl.gz").write_bytes(gzip.compress(steps))
    else:
        (folder / "steps.jsonl").write_bytes(steps)
    (folder / "labels.jsonl").write_bytes(jsonl(labels))


def evaluate(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Return the exit status and what was printed to standard output and error."""
    status = main(["eval", "--jobs", "1", *map(str, args)])
    out, err = capsys.readouterr()
    return status, out, err


def figures(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    """Return the figures."""
    status, out, _ = evaluate(capsys, "--json", *args)
    assert status == 0
    told: dict[str, Any] = json.loads(out)
    return told


def test_a_case_is_right_by_level_and_time_and_its_pattern_is_told_apart(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was expected stands beside what came, for each case."""
    told = {case["id"]: case for case in figures(capsys, "--cases", cases)["cases"]}

    assert [case["ok"] for case in told.values()] == [True, False, True, False]
    assert [case["pattern_ok"] for case in told.values()] == [True, False, None, None]
    assert told["a-caught"]["expected"] == {"min_level": "nudge", "by_event": 4, "pattern": "tool_repetition"}
    assert told["a-caught"]["got"] == {
        "max_level": "kill",
        "first": {"event": 4, "level": "nudge", "detector": "exact_repeat", "pattern": "tool_repetition"},
        "kill_event": 10,
    }
    assert told["b-too-early"]["faults"] == ["nothing of level nudge by event 3"]
    assert told["c-healthy"]["got"] == {"max_level": "none", "first": None, "kill_event": None}
    assert told["d-alarmed"]["faults"][0] == "event 4: nudge by exact_repeat is above observe"


def test_a_target_is_held_to_the_minimum_and_all_others_to_the_maximum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fleet in which one run loops: the others are to be left in peace."""
    text = """
id: t
kind: missed_loop
events:
  - repeat: 9
    events:
      - {type: tool_end, run_id: good, tool: read, args: {page: "{i}"}, result: "{hex}"}
      - {type: tool_end, run_id: bad, tool: read, args: {page: 1}, result: same}
expect: {min_level: nudge, by_event: 6, max_level: none, target: {run_id: RUN}}
"""
    for run_id in ("bad", "good"):
        (tmp_path / f"{run_id}.yaml").write_text(text.replace("RUN", run_id).replace("id: t\n", f"id: {run_id}\n", 1))
    bad, good = figures(capsys, "--cases", tmp_path)["cases"]

    assert (bad["id"], bad["ok"], bad["got"]["first"]["event"]) == ("bad", True, 6)
    assert not good["ok"]
    assert good["got"]["kill_event"] is None


def test_loops_and_false_alarms_are_counted_by_label(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that looped and got there was rightly nudged; `maybe` and failures are neither right nor wrong."""
    mixed = figures(capsys, "--traces", traces)["traces"]["mixed"]

    assert mixed["runs"] == 8
    assert mixed["loop"] == {"runs": 3, "nudged": 2, "killed": 2}
    assert mixed["missed_loops"] == ["missed"]
    assert mixed["no_loop"] == {"runs": 1, "nudged": 1, "killed": 0}
    assert mixed["success"] == mixed["healthy"] == {"runs": 2, "nudged": 1, "killed": 0}
    assert mixed["other"] == {"runs": 3, "nudged": 3, "killed": 3}
    assert [run["run_id"] for run in mixed["false_alarms"]] == ["alarm"]
    # The third equal answer is step 6, two after the onset at 4; the third lap of the cycle ends at 6, before its own.
    assert mixed["delay"] == {"runs": 2, "median": -0.5, "p90": 2}


def test_first_decisions_are_right_in_loops_and_wrong_in_healthy_runs(
    cases: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Precision leaves out what nobody knows."""
    scores = figures(capsys, "--cases", cases, "--traces", traces)["detectors"]

    assert [*scores] == list(RULES)
    assert scores["exact_repeat"] == {
        "first": 7,
        "loop": 3,
        "healthy": 2,
        "other": 2,
        "precision": 0.6,
        "cases": {"loop": 2, "healthy": 1, "other": 0},
        "traces": {"loop": 1, "healthy": 1, "other": 2},
    }
    assert (scores["cycle"]["precision"], scores["rate"]["precision"]) == (1.0, None)


def test_ablation_says_what_each_detector_is_good_for(
    cases: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what a detector costs: without the one that alarms, a healthy case is right."""
    told = figures(capsys, "--cases", cases, "--traces", traces, "--ablate")["ablation"]

    assert told["all"] == {
        "cases_right": 2,
        "loops_nudged": 2,
        "loops_killed": 2,
        "healthy_nudged": 1,
        "healthy_killed": 0,
    }
    assert [*told["without"]] == list(RULES)
    assert told["without"]["rate"]["cases_lost"] == []
    assert told["without"]["exact_repeat"] == {
        "cases_right": 2,
        "loops_nudged": 1,
        "loops_killed": 1,
        "healthy_nudged": 0,
        "healthy_killed": 0,
        "cases_lost": ["a-caught"],
        "cases_won": ["d-alarmed"],
    }


def test_a_detector_that_is_added_appears_by_itself() -> None:
    """No list of names of our own is to be kept."""
    assert [*evaluate_score.score_detectors([], [])] == list(RULES)
    assert [*evaluate_score.score_ablation({}, []).without] == list(RULES)


def test_the_figures_do_not_hang_on_the_processes(
    cases: Path, traces: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is judged in shares by several processes; the runs do not influence one another."""
    monkeypatch.setattr("loopwarden_streams.evaluate_work._BYTES_PER_SHARE", 200)
    one = figures(capsys, "--cases", cases, "--traces", traces)

    assert figures(capsys, "--cases", cases, "--traces", traces, "--jobs", 2) == one


def test_runs_that_are_mixed_in_the_file_are_judged_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The format says run by run; a topic that was written down is not."""
    events = sorted([*exact_repeat("a"), *cycle("b")], key=lambda event: int(event["ts_ms"]))
    labels = [{"run_id": "a", "label": "loop"}, {"run_id": "b", "label": "loop"}]
    write_data_set(tmp_path / "mixed", [events], labels)

    assert figures(capsys, "--traces", tmp_path / "mixed")["traces"]["mixed"]["loop"]["killed"] == 2


def test_a_child_without_a_label_counts_for_its_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The label is of the tree; that a child of it loops is what was to be found."""
    child = [{**event, "root_run_id": "root", "parent_run_id": "root"} for event in exact_repeat("child")]
    write_data_set(tmp_path / "t", [healthy_fix("root"), child], [{"run_id": "root", "label": "loop"}])
    told = figures(capsys, "--traces", tmp_path)["traces"]["t"]

    assert (told["runs"], told["loop"]["nudged"], told["missed_loops"]) == (1, 1, [])


def test_the_report_shows_wrong_cases_in_full_and_the_rest_on_request(
    cases: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody reads a hundred lines of what is as it should be."""
    status, out, err = evaluate(capsys, "--cases", cases, "--traces", traces, "--ablate")

    assert (status, err) == (0, "")
    assert "wrong  b-too-early" in out
    assert "a-caught" not in out.split("kind ")[0]
    assert re.search(r"missed_loop +1 +2\n", out)
    assert re.search(r"mixed +3 +2 +67% +2 +67% +-0.5 +2\n", out)
    assert "without exact_repeat wins: d-alarmed" in out
    assert max(map(len, out.splitlines())) <= 120

    _, out, _ = evaluate(capsys, "--cases", cases, "--traces", traces, "--verbose")
    assert "ok     a-caught" in out
    assert "missed       missed" in out
    assert "false alarm  alarm  nudge at event 6 by exact_repeat" in out


def test_a_policy_file_is_judged_in_enforce(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy that only warns today is judged by what it would do."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: mine\nmode: shadow\nexact_repeat: {mode: off}\n")
    told = figures(capsys, "--traces", traces, "--policy", policy)

    assert told["policy"] == "mine"
    assert told["detectors"]["exact_repeat"]["first"] == 0
    assert told["traces"]["mixed"]["loop"]["killed"] >= 1


def test_wrong_files_are_named_and_the_others_judged(
    cases: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is normal: file, place and remedy, and on with the rest."""
    (cases / "e-broken.yaml").write_text("id: [")
    labels = traces / "mixed" / "labels.jsonl"
    lines = labels.read_text().splitlines()
    labels.write_text("\n".join([*lines, '{"run_id": "nobody", "label": "lop"}', '{"run_id": "gone"}', "", lines[0]]))
    (traces / "plain" / "labels.jsonl").unlink()
    steps = traces / "plain" / "steps.jsonl"
    steps.write_bytes(b'{"v": 1, "type"\n' + steps.read_bytes())
    status, out, err = evaluate(capsys, "--json", "--cases", cases, "--traces", traces)
    told = json.loads(out)

    assert status == 0
    assert len(told["cases"]) == 4
    assert (told["traces"]["mixed"]["runs"], told["traces"]["plain"]["broken"]) == (8, 1)
    assert told["traces"]["plain"]["other"]["runs"] == 1
    assert [error["file"].rpartition("/")[2] for error in told["errors"]] == [
        "e-broken.yaml",
        *["labels.jsonl"] * 4,
        "steps.jsonl",
    ]
    assert re.search(r"e-broken.yaml: line \d, column \d: not YAML", err)
    assert re.search(r"mixed/labels.jsonl: line 8: Invalid enum value 'lop'", err)
    assert "line 11: run 'loop' is labelled twice" in err
    assert "1 labelled runs have no events (gone)" in err
    assert "plain/labels.jsonl: cannot be read" in err
    assert "plain/steps.jsonl: line 1: no step event: not_json" in err


def test_strict_makes_a_wrong_case_or_file_fail(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For continuous integration."""
    assert evaluate(capsys, "--cases", cases)[0] == 0
    assert evaluate(capsys, "--cases", cases, "--strict")[0] == 1
    assert evaluate(capsys, "--cases", cases / "a-caught.yaml", "--strict")[0] == 0
    broken = cases / "broken.yaml"
    broken.write_text("- 1\n")
    assert evaluate(capsys, "--cases", broken, "--strict")[0] == 1


def test_damaged_steps_end_in_status_2_after_the_rest(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a recording gives half the figures: it is left out, and said."""
    packed = traces / "mixed" / "steps.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    status, out, err = evaluate(capsys, "--json", "--traces", traces)

    assert status == 2
    assert [*json.loads(out)["traces"]] == ["plain"]
    assert "gzip that was cut off" in err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "give --cases DIR, --traces DIR or both"),
        (["--cases", "nowhere"], "no such file or folder: 'nowhere'"),
        (["--traces", "nowhere"], "no such folder: 'nowhere'"),
        (["--traces", "."], "no steps.jsonl.gz in '.'"),
        (["--cases", "."], "holds no *.yaml"),
        (["--cases", "a.txt", "--jobs", "0"], "--jobs = 0 must be at least 1"),
        (["--cases", "a.txt", "--policy", "a.txt"], "policy file 'a.txt'"),
    ],
)
def test_wrong_usage_is_status_2(
    args: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what to do instead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a text")
    status, _, err = evaluate(capsys, *args)

    assert status == 2
    assert text in err


def test_a_step_that_cannot_be_judged_is_told_and_passed_over(
    cases: Path, traces: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a detector is being written, one fault of it must not hide the figures of the others."""
    observe = watch.observe

    def failing(tree: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        if step.run_id in ("fine", "r1") and step.seq == 1:
            raise ZeroDivisionError
        return observe(tree, step, *args, **kwargs)

    monkeypatch.setattr(watch, "observe", failing)
    told = figures(capsys, "--cases", cases, "--traces", traces)
    places = {(error["file"].rpartition("/")[2], error["place"]) for error in told["errors"]}

    assert ("a-caught.yaml", "event 2") in places
    assert told["traces"]["mixed"]["broken"] == 1
    assert all("ZeroDivisionError" in error["text"] for error in told["errors"])


def test_every_key_is_documented() -> None:
    """Whoever reads the JSON reads docs/eval.md."""
    guide = (ROOT / "docs" / "eval.md").read_text(encoding="utf-8")
    missing = [key for key in _keys(evaluate_score.Evaluation) if f"`{key}`" not in guide]

    assert missing == []


def _keys(kind: type[msgspec.Struct]) -> Iterator[str]:
    def walk(node: Any, seen: set[str]) -> Iterator[str]:
        if isinstance(node, dict):
            yield from node.get("properties", {})
            for value in node.values():
                yield from walk(value, seen)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value, seen)

    yield from walk(msgspec.json.schema(kind), set())


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the shared folder is not beside this repository")
def test_the_shared_folders_are_judged_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case and every run that is there is counted, on two processes."""
    told = figures(capsys, "--cases", SHARED / "cases", "--traces", SHARED / "traces", "--jobs", 2)
    labels = {path.parent.name: path.read_bytes().count(b"\n") for path in (SHARED / "traces").glob("*/labels.jsonl")}

    assert told["errors"] == []
    assert len(told["cases"]) == len(list((SHARED / "cases").glob("*.yaml")))
    assert {name: folder["runs"] for name, folder in told["traces"].items()} == labels
    named = [case for case in told["cases"] if "pattern" in case["expected"]]
    assert [case for case in told["cases"] if case["pattern_ok"] is not None] == named
    assert 0 < sum(case["ok"] for case in told["cases"]) <= len(told["cases"])
    assert sum(folder["loop"]["nudged"] for folder in told["traces"].values()) > 0
