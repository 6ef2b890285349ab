"""The same error again and again, whatever the arguments."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, verdicts

from loopwarden_detectors.same_error import MAX_SIGNATURES
from loopwarden_models.events import AnyStep

ERRORS = only("same_error")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, ERRORS))


def failures(run: Run, n: int, message: str = "401 unauthorised", tool: str = "search", **fields: Any) -> list[AnyStep]:
    """Return `n` calls with other arguments each and the same error."""
    return [run.call(tool, {"q": run.seq}, fails=message, **fields) for _ in range(n)]


def test_levels_rise_with_the_failures_of_a_declared_tool() -> None:
    """Observe 2, nudge 3, break 5, kill 8."""
    for n, expected in {1: 0, 2: 1, 3: 2, 5: 3, 7: 3, 8: 4}.items():
        assert said(failures(Run(), n, effect="read")) == ["observe", "nudge", "break", "kill"][:expected]


def test_an_undeclared_tool_is_nudged_later_and_never_killed() -> None:
    """A meaningful exit code looks like an error, and digits are masked: this would kill a healthy edit-test run."""
    assert said(failures(Run(), 4)) == ["observe"]
    assert said(failures(Run(), 5)) == ["observe", "break"]
    assert "kill" not in said(failures(Run(), 200))


def test_one_undeclared_call_among_the_failures_is_enough() -> None:
    """The kill asks for a declared effect of every call of the streak."""
    run = Run()

    assert "kill" not in said([*failures(run, 1), *failures(run, 20, effect="read")])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("FAIL 5 of 9", "FAIL 4 of 9"),
        ("at 0x7f3a", "at 0x81bc"),
        ("invalid key (req 7f1a09)", "invalid key (req 7f1a3c)"),
        ("no session 0a8f2c3e-11aa-4b5c-8d7e-00ff11ee22dd", "no session 9b1c2d3e-aaaa-4bbb-8ccc-00ff11ee22dd"),
        ("commit deadbeefcafe", "commit cafedeadbeef"),
        ("no  such\n file", "no such file"),
    ],
    ids=["digits", "addresses", "short ids", "uuids", "hashes", "white space"],
)
def test_what_differs_by_numbers_and_spaces_is_one_error(first: str, second: str) -> None:
    """An id in the message makes no other error of it."""
    run = Run()

    assert said([*failures(run, 1, first), *failures(run, 1, second)]) == ["observe"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("no such file", "permission denied"), ("bad cafe", "bad face")],
    ids=["words", "words of hexadecimal letters"],
)
def test_other_words_are_another_error(first: str, second: str) -> None:
    """Two walls are not one."""
    run = Run()

    assert said([*failures(run, 1, first), *failures(run, 1, second)]) == []


def test_another_tool_class_or_status_is_another_error() -> None:
    """The signature is tool, class, status and message."""
    run = Run()
    errors = [
        {"class": "A", "message": "no"},
        {"class": "B", "message": "no"},
        {"class": "A", "message": "no", "status": 401},
    ]

    assert (
        said([*[run.call(fails="", error=error) for error in errors], run.call("fetch", fails="", error=errors[0])])
        == []
    )


def test_a_message_that_says_nothing_is_no_error_to_compare() -> None:
    """`which wget`, `which curl`: three times "exit 1" and no output are three answers, not one error."""
    run = Run()

    assert said([run.call("bash", n, fails="exit 1") for n in range(9)]) == []
    assert said([run.call("bash", n, "", outcome="error", error={"message": "exit 1"}) for n in range(9)]) == []


def test_then_the_result_says_what_went_wrong() -> None:
    """Shells report "exit 2" and print the reason."""
    run = Run()
    steps = [
        run.call("bash", n, "ERROR: wrong password", outcome="error", error={"message": "exit 2"}, effect="read")
        for n in range(8)
    ]

    assert said(steps)[-1] == "kill"


def test_an_error_that_is_not_reported_is_none() -> None:
    """Missing evidence never matches."""
    run = Run()

    assert said([run.call("bash", n, "ERROR: wrong password", outcome="error") for n in range(9)]) == []


def test_the_end_of_a_stack_trace_names_the_error() -> None:
    """Its head is the same for every failure of a program."""
    run = Run()
    head = "Traceback (most recent call last)\n" + "  File main.py, in run\n" * 40
    steps = [
        run.call("bash", n, fails=f"{head}{error}") for n, error in enumerate(["KeyError: tide", "OSError: disk full"])
    ]

    assert said(steps) == []


@pytest.mark.parametrize(
    ("reset", "is_reset"),
    [
        ({"tool": "search", "result": "3 hits"}, True),
        ({"tool": "other", "result": "3 hits"}, False),
        ({"tool": "other", "result": "saved", "effect": "write"}, True),
        ({"tool": "other", "result": None, "effect": "write"}, True),
        ({"tool": "search", "result": None}, False),
        ({"tool": "search", "result": "", "effect": "read"}, False),
        ({"tool": "search", "result": "3 hits", "outcome": "cached"}, False),
        ({"tool": "search", "result": "3 hits", "outcome": "teleported"}, False),
    ],
    ids=[
        "own success",
        "other success",
        "write",
        "silent write",
        "no answer",
        "empty read",
        "cached",
        "unknown outcome",
    ],
)
def test_what_disproves_an_error_resets_it(reset: dict[str, Any], is_reset: bool) -> None:
    """A productive success of the same tool, or a new write of any tool: then the next failure is a new one."""
    run = Run()
    steps = [*failures(run, 7, effect="read"), run.call(args="else", **reset), *failures(run, 1, effect="read")]

    assert ("kill" in said(steps)) is not is_reset


def test_silence_is_work_unless_nothing_worked_before() -> None:
    """A shell that did its job says nothing, and so does one that did nothing: the third silence in a row is none."""
    run = Run()
    error = {"fails": "syntax error", "effect": "unknown"}
    #        error, silent (reset)          error, error, silent (no reset)
    healthy = [step for n in range(6) for step in (run.call("bash", n, **error), run.call("bash", f"sed {n}", ""))]
    stuck = [
        step
        for n in range(6)
        for step in (run.call("bash", n, **error), run.call("bash", -n, **error), run.call("bash", f": {n}", ""))
    ]

    assert said(healthy) == []
    assert "break" in said(stuck)


def test_a_write_that_was_made_before_resets_nothing() -> None:
    """The same write again moves nothing: write, compile, same error is a loop."""
    run = Run()
    steps = [
        step
        for n in range(9)
        for step in (
            run.call("write", "a.c", "saved", effect="write"),
            *failures(run, 1, "missing ;", "cc", effect="read"),
        )
    ]

    assert said(steps)[-1] == "kill"


def test_refusals_of_one_batch_are_one() -> None:
    """Five parallel edits refused for one reason are one mistake, made once."""
    run = Run()
    batch = [run.model(5), *failures(run, 5, "read the file first", "edit", effect="write")]

    assert said(batch) == []


def test_a_failure_counts_in_every_batch_wherever_it_stands() -> None:
    """`read, edit!` in every turn: the failure is second in its batch, and the same every time."""
    run = Run()
    turns = [
        step
        for n in range(8)
        for step in (
            run.model(2),
            run.call("read", n, f"text {n}"),
            *failures(run, 1, "no match", "edit", effect="write"),
        )
    ]

    assert said(turns)[-1] == "kill"


def test_an_answer_that_changes_turns_the_kill_into_a_nudge() -> None:
    """`FAIL 5`, `FAIL 4`: one signature, because digits are masked, and yet the tests get better."""
    run = Run()
    steps = [run.call("test", "", fails=f"FAIL {20 - n}", effect="read") for n in range(9)]
    found = verdicts(decide(steps, ERRORS))

    assert {verdict.level for verdict in found} == {"observe", "nudge"}
    assert [verdict.vetoed_from for verdict in found if verdict.vetoed_from] == ["break", "kill"]


def test_only_so_many_errors_are_remembered() -> None:
    """The one that came longest ago leaves: eight walls at once are more than any run has met."""
    run = Run()
    walls = [f"wall {'x' * n}" for n in range(MAX_SIGNATURES + 1)]
    steps = [step for wall in walls for step in failures(run, 1, wall)]

    assert said([*steps, *failures(run, 1, walls[0])]) == []
    assert said([*steps, *failures(run, 1, walls[1])]) == ["observe"]


def test_a_remembered_error_is_the_one_that_came_last() -> None:
    """A wall that is met again and again stays known, however many others are met in between."""
    run = Run()
    steps = [step for n in range(40) for step in (*failures(run, 1, "the wall"), *failures(run, 1, f"other {'x' * n}"))]

    assert said(steps)[:2] == ["observe", "break"]


def test_a_huge_message_costs_no_more_than_its_ends() -> None:
    """A megabyte of error must not be searched by a regular expression at every event."""
    run = Run()

    assert said([run.call("cc", n, fails="error: " + "x" * 500_000) for n in range(2)]) == ["observe"]
