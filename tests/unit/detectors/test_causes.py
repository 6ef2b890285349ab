"""What a verdict says of the cause, and of what is done."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, orders, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import DETECTORS
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict


def alone(*rules: str) -> Policy:
    """Return a policy that enforces these rules, all others off."""
    off = {name: {"mode": "off"} for name in DETECTORS if name not in rules}
    return Policy.from_builtins({"mode": "enforce", **off})


def told(steps: list[AnyStep], *rules: str) -> list[Verdict]:
    """Return what these rules alone say on the steps."""
    return verdicts(decide(steps, alone(*rules)))


def causes(steps: list[AnyStep], *rules: str) -> set[str | None]:
    """Return the causes that are named by verdicts of a nudge or more."""
    return {verdict.probable_cause for verdict in told(steps, *rules) if verdict.level != "observe"}


def far(run: Run, calls: int = 20) -> list[AnyStep]:
    """Return the work that lies between a goal and a loop that has nothing to do with it."""
    return [run.call("fetch", run.seq, f"page {run.seq}", effect="write") for _ in range(calls)]


# --- recovery and its level


def test_recovery_rises_from_advice_over_a_block_to_the_end() -> None:
    """L1 the first nudge, L2 a later one or a break, L3 the end."""
    run = Run()
    said = told([run.start(), *run.calls(9, effect="read")], "exact_repeat")

    assert [(one.level, one.recovery, one.recovery_level) for one in said] == [
        ("observe", None, None),
        ("nudge", "state_latch", "L1"),
        ("break", "circuit_breaker", "L2"),
        ("break", "circuit_breaker", "L2"),
        ("nudge", "state_latch", "L2"),
        ("kill", "end_with_a_report", "L3"),
        ("kill", "end_with_a_report", "L3"),
    ]


def test_a_person_who_watches_is_asked() -> None:
    """The same end of an attended run is a pause."""
    run = Run()
    said = told([run.start(attended=True), *run.calls(9, effect="read")], "exact_repeat")

    assert {one.recovery for one in said if one.recovery_level == "L3"} == {"ask_a_person"}


def test_a_hard_limit_ends_an_attended_run_as_well() -> None:
    """It was agreed on."""
    run = Run()
    steps = [run.start(attended=True, limits={"max_steps": 3}), *(run.call(args=n, result=n) for n in range(5))]
    said = told(steps, "budget")

    assert ("kill", "end_with_a_report") in [(one.level, one.recovery) for one in said]


def test_a_mode_that_holds_back_tells_what_would_be_done() -> None:
    """That is what a first week in shadow is for."""
    run = Run()
    shadow = Policy.from_builtins({"mode": "shadow"})
    said = verdicts(decide([run.start(), *run.calls(6, effect="read")], shadow))

    assert {(one.level, one.recovery_level) for one in said if one.detector == "exact_repeat"} == {
        ("observe", None),
        ("nudge", "L1"),
        ("break", "L2"),
    }


def test_nobody_is_advised_who_would_not_hear_it() -> None:
    """A silent run gets no nudge, so its verdict names none."""
    run = Run()
    run.fidelity = "low"
    steps = [run.start(), *run.calls(9, effect="read")]
    said = told(steps, "exact_repeat")

    assert {one.recovery_level for one in said} == {None, "L1", "L2"}
    assert "kill" not in {one.level for one in said}


# --- probable causes


def test_reads_that_are_repeated_were_not_remembered() -> None:
    """And of anything else nothing is known but that the calls are identical."""
    for effect, cause in (("read", "no_memory_of_results"), ("write", "identical_calls"), (None, "identical_calls")):
        run = Run()
        assert causes([*far(run), *run.calls(6, effect=effect)], "exact_repeat") == {cause}


def test_results_that_nobody_reports_show_no_cause() -> None:
    """Whether the answers are equal is not known."""
    run = Run()

    assert causes(run.calls(6, result=None, effect="read"), "exact_repeat") == {None}


def test_what_is_only_observed_has_no_cause() -> None:
    """Twice is no loop: there is nothing to explain."""
    run = Run()

    assert [one.probable_cause for one in told(run.calls(2, effect="read"), "exact_repeat")] == [None]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"outcome": "timeout"}, "tool_down"),
        ({"outcome": "invalid_args"}, "broken_schema"),
        ({"error": {"class": "HTTPError", "message": "no", "status": 503}}, "tool_down"),
        ({"error": {"class": "HTTPError", "message": "no", "status": "502 Bad Gateway"}}, "tool_down"),
        ({"error": {"class": "OSError", "message": "[Errno 111] Connection refused"}}, "tool_down"),
        ({"error": {"class": "ConnectTimeout", "message": "gave up"}}, "tool_down"),
        ({"error": {"class": "ApiError", "message": "request failed: HTTP 500"}}, "tool_down"),
        ({"error": {"class": "HTTPError", "message": "no", "status": 404}}, None),
        ({"error": {"class": "Failed", "message": "1 test failed: timeout after 5 s, line 503"}}, None),
    ],
)
def test_an_error_tells_whether_the_tool_or_its_schema_is_broken(fields: dict[str, Any], cause: str | None) -> None:
    """A failing test is neither, whatever words are in it."""
    run = Run()
    steps = [*far(run), *(run.call("api", 1, fails="no", effect="read", **fields) for _ in range(6))]

    for rule in ("same_error", "same_error_raw"):
        assert causes(steps, rule) == {cause}, rule


def test_a_storm_against_what_is_down() -> None:
    """The finding that the fleet's breaker is for."""
    run = Run()
    steps = [run.call("api", 1, fails="connection refused", effect="read") for _ in range(7)]

    assert causes(steps, "retry_storm") == {"tool_down"}


def test_polls_and_waits_have_no_event_to_wait_for() -> None:
    """What they need is a callback, or one long wait."""
    run = Run()
    assert causes([run.call("status", 1, "RUNNING", effect="poll") for _ in range(12)], "frozen_poll") == {
        "no_event_to_wait_for"
    }
    run = Run()
    assert causes([run.call("sleep", {"seconds": 5}, "") for _ in range(5)], "sleep_only") == {"no_event_to_wait_for"}


@pytest.mark.parametrize(
    ("real", "called", "cause"),
    [
        ("read_file", "reed_file", "broken_schema"),
        ("read_file", "ReadFile", "broken_schema"),
        ("read_file", "fs.read_file", "broken_schema"),
        ("read_file", "send_mail", None),
        ("ls", "cat", None),
    ],
)
def test_a_tool_that_is_nearly_called_by_its_name(real: str, called: str, cause: str | None) -> None:
    """The name is in the schema, and the schema is not clear."""
    run = Run()
    steps = [run.call(real, 1, "text"), *(run.call(called, n, None, outcome="unknown_tool") for n in range(5))]

    assert causes(steps, "unknown_tool") == {cause}


def test_a_name_that_only_the_run_invented_is_like_no_tool() -> None:
    """Two spellings of one invention prove nothing."""
    run = Run()
    names = ("reed_file", "red_file", "read_fil", "reedfile", "raed_file")

    assert causes([run.call(name, 1, None, outcome="unknown_tool") for name in names], "unknown_tool") == {None}


def test_a_walk_in_which_nothing_is_found_may_be_after_what_is_not_there() -> None:
    """Unless the run finds other things meanwhile."""
    run = Run()
    walk = [run.call("grep", n, "no matches", effect="read") for n in range(10)]
    assert causes(walk, "param_walk") == {"impossible_goal"}
    run = Run()
    mixed = [
        step
        for n in range(10)
        for step in (run.call("grep", n, "no matches", effect="read"), run.call("open", n, f"page {n}", effect="read"))
    ]
    assert causes(mixed, "param_walk") <= {None}


def test_several_tools_that_bring_nothing_in_ever_other_ways() -> None:
    """One error in common would be the cause instead, and calls that nobody understands are another matter."""

    def stuck(fails: str, **fields: Any) -> list[AnyStep]:
        run = Run()
        words = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet")
        return [
            run.call(("open", "fetch")[n % 2], n, fails=fails.replace("?", word), effect="read", **fields)
            for n, word in enumerate(words)
        ]

    assert causes(stuck("? is not there"), "no_progress", "same_error") >= {"impossible_goal"}
    assert "impossible_goal" not in causes(stuck("no such page"), "no_progress", "same_error")
    assert "impossible_goal" not in causes(stuck("?", outcome="invalid_args"), "no_progress", "same_error")


def test_a_goal_that_insists_is_the_cause_of_what_begins_right_after_it() -> None:
    """Later it is not: then the run had begun to work."""
    for goal, distance, cause in (
        ("Try until it works, never give up", 0, "insisting_prompt"),
        ("Try until it works, never give up", 20, "no_memory_of_results"),
        ("Try it", 0, "no_memory_of_results"),
    ):
        run = Run()
        steps = [run.start(goal=goal), *far(run, distance), *run.calls(6, effect="read")]
        assert causes(steps, "exact_repeat") == {cause}


def test_refusals_right_after_a_goal_that_insists() -> None:
    """Who is told never to give up knocks at a closed door."""
    run = Run()
    error = {"class": "PolicyDenied"}
    steps = [run.start(goal="Riprova finché non funziona")]
    steps += [run.call("sh", n, None, outcome="denied", error=error) for n in range(6)]

    assert causes(steps, "denied") == {"insisting_prompt"}


def test_a_goal_that_insists_is_not_the_cause_of_a_tool_that_is_down() -> None:
    """What the error says comes first."""
    run = Run()
    steps = [run.start(goal="never give up"), *(run.call("api", 1, fails="connection refused") for _ in range(8))]

    assert causes(steps, "same_error") == {"tool_down"}


def test_of_the_goal_nothing_but_its_place_is_remembered() -> None:
    """The state of a run is no place for what a person wrote. A resume has the same goal, until there is a new one."""
    run = Run()
    tree = tree_of(first := run.start(goal="never give up on Project Nightjar"))
    decide([first], tree=tree)
    assert b"Nightjar" not in tree.to_bytes()
    assert tree.runs["r1"].insist_seq == 0
    decide([run.call(), run.resume("b")], tree=tree)
    assert tree.runs["r1"].insist_seq == 0
    decide([run.start(goal="Say hello")], tree=tree)
    assert tree.runs["r1"].insist_seq == -1
    assert TreeState.from_bytes(tree.to_bytes()) == tree


def test_repeats_right_after_a_compaction_come_of_a_lost_context() -> None:
    """The run does not know any more what it has read; long after it, another cause is likelier."""
    for distance, cause in ((0, "lost_context"), (20, "no_memory_of_results")):
        run = Run()
        steps = [
            *far(run),
            run.step("compaction", tokens_before=100_000, tokens_after=20_000),
            *far(run, distance),
            *run.calls(6, effect="read"),
        ]
        assert causes(steps, "exact_repeat") == {cause}


def test_context_rot_is_a_lost_context_unless_nothing_was_freed() -> None:
    """A context that stays full is not lost."""
    run = Run()
    again = [
        step
        for _ in range(3)
        for step in (run.call("read", "a", "A", effect="read"), run.step("compaction", tokens_before=9, tokens_after=1))
    ]
    assert causes(again, "context_rot") == {"lost_context"}
    run = Run()
    full = [run.step("compaction", tokens_before=100, tokens_after=95) for _ in range(3)]
    assert causes(full, "context_rot") == {None}


# --- the run of a blocked tool that is ended by `denied`


def test_a_run_that_hammers_a_blocked_tool_is_told_why_it_was_blocked() -> None:
    """A person who reads "denied" alone does not learn that the tool failed."""
    run = Run()
    steps = [run.start(), *(run.call("deploy", n, fails="connection refused", effect="read") for n in range(6))]
    steps += [run.call("deploy", n, None, outcome="blocked", effect="read") for n in range(10, 17)]
    decisions = decide(steps, alone("same_error", "denied"))
    said = [one for one in verdicts(decisions) if one.detector == "denied" and one.level != "observe"]

    assert orders(decisions)[-1] == "kill_run"
    assert {one.probable_cause for one in said} == {"tool_down"}
    assert all("deploy was blocked because of error_loop (same_error counted 5)" in one.evidence.note for one in said)
    kill = next(one.order for one in reversed(decisions) if one.order is not None)
    assert "error_loop" in (kill.reason.note or "")


def test_a_block_that_nobody_here_ordered_is_told_as_it_is() -> None:
    """A runtime has breakers of its own."""
    run = Run()
    said = told([run.call("deploy", n, None, outcome="blocked") for n in range(3)], "denied")

    assert said[-1].evidence.note == "deploy was blocked; calls refused by the same rule: 2"
    assert said[-1].probable_cause is None


def test_a_tool_with_braces_in_its_name_is_told_as_well() -> None:
    """Names come from agents."""
    run = Run()
    said = told([run.call("{0}{x}", n, None, outcome="denied") for n in range(3)], "denied")

    assert said[-1].evidence.note.startswith("{0}{x} was denied")
