"""Case files: how they expand, and what is said of one that is wrong."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

from loopwarden_models.events import ToolEnd
from loopwarden_models.policy import Policy
from loopwarden_streams.evaluate_cases import expand, find_cases, load
from loopwarden_streams.evaluate_problems import BadFileError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "cases"

LOOP = """
id: miss-1
kind: missed_loop
title: The same search
policy: {attended: false}
tools: {search: read}
events:
  - {type: run_start, goal: Find it}
  - repeat: 9
    events:
      - {type: tool_end, tool: search, args: {q: x}, result: nothing}
expect: {min_level: nudge, by_event: 4, kill_by_event: 9, pattern: tool_repetition}
why: It asks again and again.
"""


def write(folder: Path, text: str, name: str = "miss-1.yaml") -> Path:
    """Write a case file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> tuple[str, str]:
    """Return place and text of what is wrong with a case."""
    with pytest.raises(BadFileError) as caught:
        load(write(folder, text))
    assert caught.value.problem.file.endswith("miss-1.yaml")
    return caught.value.problem.place, caught.value.problem.text


def test_what_a_case_leaves_out_is_filled_in(tmp_path: Path) -> None:
    """A case shows what matters; the rest is the same everywhere."""
    case = load(write(tmp_path, LOOP))
    end = case.steps[2]

    assert (case.name, case.kind, len(case.steps)) == ("miss-1", "missed_loop", 10)
    assert isinstance(end, ToolEnd)
    assert (end.seq, end.run_id, end.effect, end.outcome, end.call_id) == (2, "r1", "read", "ok", "c2")
    assert end.ts_ms - case.steps[1].ts_ms == 2_000
    assert case.problems == []


def test_placeholders_are_of_the_innermost_repeat(tmp_path: Path) -> None:
    """`{i}` counts from 1, `{i0}` from 0, and every position has a nonce of its own."""
    text = """
id: miss-1
kind: limit
events:
  - repeat: 2
    events:
      - {type: user_input, text: "{i} {i0} {a..z}"}
      - repeat: 2
        events: [{type: tool_end, tool: "t{i}", args: {"{i}": ["{hex}"]}}]
expect: {max_level: observe}
"""
    events = [json.loads(msgspec.json.encode(step)) for step in load(write(tmp_path, text)).steps]
    tools = [event for event in events if event["type"] == "tool_end"]

    assert [event["tool"] for event in tools] == ["t1", "t2", "t1", "t2"]
    assert [*tools[1]["args"]] == ["2"]
    assert len({str(event["args"].values()) for event in tools}) == 4


def test_a_call_that_was_started_ends_under_its_id(tmp_path: Path) -> None:
    """The end of a call belongs to the start before it, of the same tool and run."""
    text = """
id: miss-1
kind: limit
events:
  - {type: tool_start, tool: build}
  - {type: tool_end, tool: look}
  - {type: tool_end, tool: build}
expect: {max_level: observe}
"""
    ids = [step.call_id for step in load(write(tmp_path, text)).steps if isinstance(step, ToolEnd)]

    assert ids == ["c2", "c1"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder with all cases is not beside this repository")
def test_every_shared_case_expands_as_the_published_script_has_it() -> None:
    """The format is not ours alone: whoever reads a case with its own script must see the same steps."""
    script = _script()
    paths = find_cases([str(SHARED)])
    differing = []
    for path in paths:
        data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        ours = list(expand(data))
        attended = data.get("policy", {}).get("attended")
        for event in ours:
            if event["type"] == "run_start" and event.get("attended") == attended:
                event.pop("attended", None)
        theirs = script.expand(data)
        for event in theirs:
            if event["type"] == "run_start" and event.get("attended") == attended:
                event.pop("attended", None)
        if ours != theirs:
            differing.append(path.name)

    assert len(paths) > 100
    assert differing == []
    assert [path.name for path in paths if load(path).problems] == []


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published_expand", SHARED / "expand.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("old", "new", "place", "text"),
    [
        ("min_level: nudge", "min_level: shout", "expect.min_level", "Invalid enum value 'shout'"),
        ("min_level: nudge", "minlevel: nudge", "expect", "unknown field `minlevel`"),
        ("by_event: 4", "by_event: 0", "expect.by_event", ">= 1"),
        ("search: read", "search: reads", "tools.search", "not one of read, write"),
        ("repeat: 9", "repeat: many", "events[1]", "'many' is not a number of times"),
        ("repeat: 9", "repeat: 1000000000", "events[1].events[0]", "lower a `repeat`"),
        ("type: tool_end", "type: tool_ended", "event 2 (events[1].events[0])", "'tool_ended' is not one of"),
        ("tool: search,", "", "event 2 (events[1].events[0])", "tool: required"),
        ("result: nothing", "outcome: 7", "event 2 (events[1].events[0])", "outcome: "),
        ("result: nothing", "dt_ms: soon", "events[1].events[0]", "whole milliseconds"),
        ("{q: x}", "{no: x}", "events[1].events[0]", "quote yes, no"),
        ("{q: x}", "{q: 2026-01-05}", "event 2 (events[1].events[0])", "takes for a date"),
        ("{attended: false}", "{attended: 3}", "policy.attended", "not true or false"),
        ("{attended: false}", "{exact_repaet: {kill: 3}}", "policy", "exact_repaet"),
        ("{attended: false}", "[a]", "policy", "Expected `object`"),
        ("title: The", 'title: "The', "line ", "not YAML"),
    ],
)
def test_a_wrong_case_says_where_and_what_to_do(tmp_path: Path, old: str, new: str, place: str, text: str) -> None:
    """Its author has the file open and wants the line, not a traceback."""
    at, said = refusal(tmp_path, LOOP.replace(old, new))

    assert at.startswith(place)
    assert text in said


@pytest.mark.parametrize("text", ["", "- a\n", "just text", "&a [*a]\n"])
def test_what_is_no_case_at_all_is_refused(tmp_path: Path, text: str) -> None:
    """An empty file is the most frequent one."""
    assert "expected a mapping with id, kind, events" in refusal(tmp_path, text)[1]


def test_bytes_that_are_no_text_and_aliases_without_end_are_refused(tmp_path: Path) -> None:
    """Neither may end in a traceback."""
    path = tmp_path / "miss-1.yaml"
    path.write_bytes(b"id: \xff\xfe\n")
    with pytest.raises(BadFileError, match="byte 4: not UTF-8"):
        load(path)

    endless = LOOP.replace("args: {q: x}", "args: &a {q: *a}")
    assert refusal(tmp_path, endless)[1].startswith("nested without end")


def test_odd_files_are_told_of_and_judged(tmp_path: Path) -> None:
    """A misspelt key must not pass in silence, but one more key is no reason to leave a case out."""
    text = LOOP.replace("tools:", "tolls:").replace("kill_by_event: 9", "kill_by_event: 90")
    case = load(write(tmp_path, text, "other.yaml"))

    assert len(case.steps) == 10
    assert [problem.place for problem in case.problems] == ["tolls", "id", "expect.kill_by_event"]


def test_a_case_lays_its_settings_over_the_policy(tmp_path: Path) -> None:
    """A bare `off` is the mode that was meant, although YAML reads it as false."""
    text = LOOP.replace("{attended: false}", "{attended: true, exact_repeat: {nudge: 4}, rate: {mode: off}}")
    policy = load(write(tmp_path, text)).policy(Policy(mode="enforce"))

    assert (policy.mode, policy.exact_repeat.nudge, policy.exact_repeat.kill) == ("enforce", 4, 8)
    assert policy.mode_of("rate") == "off"


def test_folders_and_files_are_found_in_order(tmp_path: Path) -> None:
    """The same file named twice is judged once."""
    paths = [write(tmp_path, LOOP, name) for name in ("b.yaml", "a.yml")]
    write(tmp_path, "no case", "README.md")

    assert find_cases([str(tmp_path), str(paths[0])]) == [paths[1], paths[0]]
