"""`loopwarden replay` as it is called."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests._support.replay_runs import cycle, exact_repeat, healthy_fix, jsonl, same_error

from loopwarden_streams.cli import main
from loopwarden_streams.replay_sources import read_file

EVENTS = [*exact_repeat(), *cycle(), *healthy_fix()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two looping runs and a healthy one."""
    path = tmp_path / "steps.jsonl"
    path.write_bytes(jsonl(EVENTS))
    return path


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)


def replay(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Return the exit status and what was printed to standard output and error."""
    status = main(["replay", *map(str, args)])
    out, err = capsys.readouterr()
    return status, out, err


def replay_json(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the verdicts and the summary without what depends on the machine."""
    status, out, _ = replay(capsys, *args, "--json")
    assert status == 0
    *verdicts, last = map(json.loads, out.splitlines())
    last["summary"].pop("seconds")
    return verdicts, last["summary"]


def ids(verdicts: list[dict[str, Any]]) -> list[str]:
    """Return the ids, which say what is equal."""
    return [verdict["verdict_id"] for verdict in verdicts]


def test_the_table_and_the_sum(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a person gets: each run with its verdicts, and what they add up to."""
    status, out, err = replay(capsys, file)

    assert (status, err) == (0, "")
    assert f"acme/report-1  researcher  2026-01-05  {file}:3" in out
    told = re.sub(" +", " ", out)  # how wide the columns are is the longest name's affair
    assert " 09:00:18 nudge exact_repeat 3/3 2-6 -> nudge search was called 3 times in a row" in told
    assert " 09:00:48 kill exact_repeat 8/8 2-16 warn" in told
    assert "observe  exact" not in out
    assert "runs      3: 2 with a verdict, 1 without" in out
    assert "2 runs would have been stopped; they went on for 26 more steps" in out
    assert "\x1b" not in out


def test_every_source_gives_the_same_verdicts(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain, gzip, a folder, standard input plain and gzip: the bytes count, not where they come from."""
    expected, summary = replay_json(capsys, file)
    folder = tmp_path / "folder"
    folder.mkdir()
    half = len(EVENTS) // 2
    (folder / "1.jsonl").write_bytes(jsonl(EVENTS[:half]))
    (folder / "2.jsonl.gz").write_bytes(gzip.compress(jsonl(EVENTS[half:])))
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(file.read_bytes()))

    for source, piped in ((zipped, b""), (folder, b""), ("-", file.read_bytes()), ("-", zipped.read_bytes())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        verdicts, again = replay_json(capsys, source)
        assert ids(verdicts) == ids(expected)
        assert again == summary


def test_json_has_one_verdict_a_line_and_the_summary_last(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every verdict unless --level asks for less, as the contract writes them on the topic."""
    verdicts, summary = replay_json(capsys, file)

    assert {verdict["level"] for verdict in verdicts} == {"observe", "nudge", "break", "kill"}
    assert verdicts[0] == {
        "v": 1,
        "verdict_id": verdicts[0]["verdict_id"],
        "tenant": "acme",
        "run_id": "report-1",
        "root_run_id": "report-1",
        "incarnation": "",
        "at_ms": 1_767_603_612_000,
        "detector": "exact_repeat",
        "pattern": "tool_repetition",
        "level": "observe",
        "mode": "warn",
        "loop_id": verdicts[0]["loop_id"],
        "episode": 1,
        "evidence": {
            "count": 2,
            "threshold": 2,
            "first_seq": 2,
            "last_seq": 4,
            "window_ms": 6_000,
            "tools": ["search"],
            "note": "search was called 2 times in a row with the same arguments and the same answer",
        },
        "source": {"topic": str(file), "partition": 0, "offsets": [2, 4]},
    }
    assert list(summary) == [
        "events",
        "unknown_types",
        "runs",
        "runs_with_verdict",
        "first_ms",
        "last_ms",
        "broken",
        "verdicts",
        "runs_by_level",
        "orders",
        "causes",
        "stopped",
        "almost_stopped",
        "evicted_runs",
        "policy",
        "mode",
        "interrupted",
    ]
    assert (summary["events"], summary["runs"], summary["mode"]) == (len(EVENTS), 3, "warn")
    assert sum(count for levels in summary["verdicts"].values() for count in levels.values()) == len(verdicts)


def test_twice_gives_the_same_output(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay has no clock and no chance in it."""
    assert replay_json(capsys, file) == replay_json(capsys, file)


@pytest.mark.parametrize("flag", [["--level", "kill"], ["--tenant", "nobody"], ["--run", "refactor-3"]])
def test_filters_select_from_the_whole(flag: list[str], file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown with a filter is what is shown without it, less the others."""
    every, _ = replay_json(capsys, file)
    verdicts, _ = replay_json(capsys, file, *flag)

    name = {"--level": "level", "--tenant": "tenant", "--run": "run_id"}[flag[0]]
    assert ids(verdicts) == ids([verdict for verdict in every if verdict[name] == flag[1]])


def test_limit_cuts_what_is_shown_but_not_the_sum(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table keeps the earliest and says how many more there are."""
    _, whole = replay_json(capsys, file)
    verdicts, summary = replay_json(capsys, file, "--limit", 2)
    _, out, _ = replay(capsys, file, "--limit", 2)

    assert len(verdicts) == 2
    assert summary == whole
    assert re.search(r"\n[1-9]\d* later verdicts not shown", out)
    assert out.count("-> nudge") == 2


def test_mode_and_policy_decide_the_orders(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What if this policy had been in force?"""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: strict-7\nexact_repeat: {kill: 5, break_at: 4}\ncycle: {mode: 'off'}\n")

    _, warned = replay_json(capsys, file)
    _, enforced = replay_json(capsys, file, "--mode", "enforce")
    _, strict = replay_json(capsys, file, "--policy", policy, "--mode", "shadow")
    nothing, _ = replay_json(capsys, file, "--mode", "off")

    assert set(warned["orders"]) == {"nudge"}
    assert enforced["orders"]["kill_run"] == 2
    assert set(enforced["orders"]) == {"kill_run", "nudge"}
    assert (strict["policy"], strict["mode"], strict["orders"]) == ("strict-7", "shadow", {})
    assert strict["verdicts"]["cycle"] == {}
    assert strict["stopped"][0]["seq"] == 10
    assert nothing == []


def test_broken_lines_are_named_and_counted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With file and line, reason and field; the verdicts stay those of the good lines."""
    good, _ = replay_json(capsys, file)
    lines = file.read_bytes().splitlines()
    lines[4:4] = [b"not json at all", b'{"v":1,"type":"run_end","tenant":"a/b","run_id":"r","seq":1,"ts_ms":1}', b""]
    lines[9:9] = [b'{"v":1,"type":"dream","tenant":"acme","run_id":"r","seq":1,"ts_ms":1}']
    file.write_bytes(b"\n".join(lines))

    status, out, err = replay(capsys, file)
    verdicts, summary = replay_json(capsys, file)

    assert status == 0
    assert err.splitlines()[0].startswith(f"{file}:5: not_json: ")
    assert err.splitlines()[1] == f"{file}:6: bad_value: tenant: 'a/b' does not match [A-Za-z0-9._-]{{1,64}}"
    assert "broken    2 records: 1 bad_value, 1 not_json" in out
    assert "unknown   1 event of a type" in out
    assert (summary["broken"], summary["unknown_types"]) == ({"bad_value": 1, "not_json": 1}, 1)
    assert ids(verdicts) == ids(good)


def test_strict_fails_on_a_broken_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a pipeline that must not swallow anything."""
    assert replay(capsys, file, "--strict")[0] == 0
    file.write_bytes(b"?\n" + file.read_bytes())
    assert replay(capsys, file, "--strict")[0] == 1
    assert replay(capsys, file)[0] == 0


@pytest.mark.parametrize(("flag", "named"), [([], 20), (["--broken", "3"], 3), (["--broken", "0"], 30)])
def test_a_file_of_something_else_does_not_flood(
    flag: list[str], named: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first few tell what is wrong; all can be asked for."""
    path = tmp_path / "access.jsonl"
    path.write_text("GET /\n" * 30)

    status, out, err = replay(capsys, path, *flag)

    assert status == 0
    assert err.count("not_json") == named
    assert (f"{30 - named} more broken records" in err) == (named < 30)
    assert "broken    30 records" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give files, a folder or - for standard input, or else --topic NAME"),
        (["FILE", "--topic", "loopwarden.steps"], "or else --topic"),
        (["nowhere.jsonl"], "no such file or folder: 'nowhere.jsonl'"),
        (["FILE", "--from", "2026-01-05"], "--from and --to select records of a topic"),
        (["FILE", "--limit", "-1"], "--limit = -1 must not be negative"),
        (["FILE", "--policy", "nowhere.yaml"], "policy file 'nowhere.yaml'"),
        (["FILE", "--mode", "panic"], "mode = 'panic' is not one of"),
        (["FILE", "--max-runs", "0"], "max_runs = 0 must be at least 1"),
    ],
)
def test_wrong_usage_is_status_2(args: list[str], says: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what to do, and no traceback."""
    status, out, err = replay(capsys, *[str(file) if arg == "FILE" else arg for arg in args])

    assert (status, out) == (2, "")
    assert says in err
    assert err.startswith("loopwarden replay: ")
    assert err.count("\n") == 1


def test_wrong_times_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the parser, which names the flag."""
    with pytest.raises(SystemExit) as caught:
        main(["replay", str(file), "--topic", "steps", "--from", "yesterday"])

    assert caught.value.code == 2
    assert "--from" in capsys.readouterr().err


def test_unreadable_gzip_is_status_2_after_the_sum_so_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that broke off is worth what arrived; the status still says that it is not all."""
    path = tmp_path / "steps.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(EVENTS))[:-20])

    status, out, err = replay(capsys, path)

    assert status == 2
    assert err == f"loopwarden replay: {str(path)!r} is gzip that was cut off before its end\n"
    assert "-> nudge" in out
    assert "Summary" in out


def test_a_full_memory_warns(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verdicts may be missing then, so it is said twice."""
    status, out, err = replay(capsys, file, "--max-runs", 1)

    assert status == 0
    assert "2 runs were forgotten for want of room" in err
    assert "forgotten  2 runs" in out


def test_progress_goes_to_standard_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for, it is drawn even where nobody looks; standard output stays what it was."""
    _, quiet, err = replay(capsys, file, "--level", "kill")
    status, out, err_with = replay(capsys, file, "--level", "kill", "--progress")

    assert status == 0
    assert err == ""
    assert "replaying" in err_with
    assert _without_speed(out) == _without_speed(quiet)


def _without_speed(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("events", "recorded"))]


def test_interrupted_in_a_file_gives_the_sum_so_far(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C asks for what is known by now."""

    def interrupted(*args: Any, **named: Any) -> Any:
        yield from read_file(*args, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr("loopwarden_streams.replay.read_file", interrupted)

    status, out, _ = replay(capsys, file)

    assert status == 130
    assert "Interrupted: the sum so far" in out
    assert "runs      3: " in out


def test_ctrl_c_in_a_pipe_gives_the_sum_so_far() -> None:
    """A pipe that flows is judged as it flows: verdicts come at once, the sum at Ctrl-C."""
    with _started("-", "--json", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        events = exact_repeat(times=8)[:-1]
        process.stdin.write(jsonl(events))
        process.stdin.flush()
        while json.loads(process.stdout.readline())["level"] != "kill":
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().splitlines()

        assert process.wait(30) == 130
        summary = json.loads(rest[-1])["summary"]
        assert summary["interrupted"] is True
        assert summary["events"] == len(events)


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`| head -1`: no traceback, and the status that a shell gives a command whose reader went away."""
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"".join(jsonl(same_error(f"run-{number}")) for number in range(2_000)))
    with _started(path, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()

        assert process.wait(30) == 141
        assert process.stderr.read() == b""


def _started(*args: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loopwarden_streams.cli", "replay", *map(str, args)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
