"""Calls that could do nothing at all."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only

from loopwarden_detectors.void_calls import is_echo, is_misunderstood, is_null_command
from loopwarden_models.events import AnyStep, ToolEnd

STILL = only("no_progress")


def ended(**fields: Any) -> ToolEnd:
    """Return one finished call."""
    step = Run().call(**fields)
    assert isinstance(step, ToolEnd)
    return step


@pytest.mark.parametrize(
    "message",
    [
        "bash: eval: line 1: syntax error near unexpected token `}'",
        "/bin/bash: line 1: unexpected EOF while looking for matching `\"'",
        "Exit code 127\n/bin/bash: line 1: :ls: command not found",
        "sh: 1: pyton3: not found",
        "'grep' is not recognized as an internal or external command",
        '  File "<string>", line 1\nSyntaxError: invalid syntax',
        "bash: pippo: comando non trovato",
        "bash: foo: orden no encontrada",
        "bash: foo: Kommando nicht gefunden.",
        "InputValidationError: query must have 2 characters",
        "Invalid URL",
    ],
)
def test_what_nobody_understood(message: str) -> None:
    """Shells, interpreters and schemas, whatever language they speak."""
    assert is_misunderstood(ended(fails=message), "error")


@pytest.mark.parametrize(
    "message",
    [
        "FAIL 5 of 9",
        "file not found",
        "src/main.c:14: error: 'n' undeclared",
        "exit code 1",
        "404 Not Found",
        "permission denied",
        "customer C-17 was not found: check the number",
    ],
)
def test_what_was_understood_and_failed(message: str) -> None:
    """A failure of the task itself is no misunderstanding."""
    assert not is_misunderstood(ended(fails=message), "error")


def test_the_result_is_read_where_there_is_no_message() -> None:
    """Some runtimes put the text of an error into the result."""
    step = ended(outcome="error", result="bash: }: command not found")

    assert is_misunderstood(step, "error")


@pytest.mark.parametrize("outcome", ["invalid_args", "unknown_tool"])
def test_some_outcomes_say_it(outcome: str) -> None:
    """No text is needed then."""
    assert is_misunderstood(ended(outcome=outcome, result=None), outcome)


@pytest.mark.parametrize("outcome", ["timeout", "denied", "blocked", "cached", "cancelled"])
def test_other_outcomes_do_not(outcome: str) -> None:
    """Somebody understood very well."""
    assert not is_misunderstood(ended(outcome=outcome, result="command not found"), outcome)


@pytest.mark.parametrize(
    ("args", "is_null"),
    [
        ({"command": ": ls -la"}, True),
        ({"command": ":"}, True),
        ({"cmd": " :\nls"}, True),
        ({"command": "ls :"}, False),
        ({"command": ":ls"}, False),
        ({"command": "true"}, False),
        (None, False),
    ],
)
def test_the_null_command(args: Any, is_null: bool) -> None:
    """What follows a colon and a space is never run."""
    assert is_null_command(ended(args=args, result="")) is is_null


@pytest.mark.parametrize(
    ("command", "result", "echoes"),
    [
        ("echo 'Creo la migrazione'", "Creo la migrazione", True),
        ("echo one; echo two", "one\ntwo", True),
        ("printf 'ready\\n'", "ready", True),
        ("echo $LANG", "it_IT.UTF-8", False),
        ("echo start && ls migrations", "start\n0041.sql", False),
        ("cat notes", "notes", False),
        ("echo hello > hello.txt", "", False),
    ],
)
def test_an_echo_tells_nothing(command: str, result: str, echoes: bool) -> None:
    """Every line of the answer stood in the command."""
    assert is_echo(ended(args={"command": command}, result=result)) is echoes


def colons(run: Run, n: int) -> list[AnyStep]:
    """Return commands behind a colon, each another one."""
    return [run.call("sh", {"command": f": ls {run.seq}"}, "") for _ in range(n)]


def test_five_of_six_are_nudged() -> None:
    """Four are a slip of the tongue."""
    assert levels(decide(colons(Run(), 4), STILL)) == []
    assert levels(decide(colons(Run(), 5), STILL)) == ["nudge"]


def test_work_between_them_makes_room() -> None:
    """Four in six, for ever, are no stretch."""
    run = Run()
    steps = [
        step for _ in range(6) for step in (*colons(run, 4), run.call("ls", run.seq, "a"), run.call("ls", "b", "c"))
    ]

    assert "nudge" not in levels(decide(steps, STILL))


def test_a_compilers_next_error_is_work() -> None:
    """Seven failures in a row, each another one: a healthy port begins like that."""
    run = Run()
    steps = [run.call("make", f"all {n}", fails=f"unit_{chr(97 + n)}.c: undeclared {'x' * n}") for n in range(7)]

    assert levels(decide(steps, STILL)) == ["observe"]
