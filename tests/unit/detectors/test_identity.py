"""When are two steps the same?"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from tests._support.steps import Run

from loopwarden_detectors.identity import (
    call_key,
    effect_of,
    is_empty,
    is_wait,
    keys_of,
    result_key,
    set_key,
    tool_key,
)
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import ToolEnd
from loopwarden_models.hashes import content_hash
from loopwarden_models.policy import DEFAULT_POLICY, Policy


def end(tool: str = "search", args: Any = "q", result: Any = "r", **fields: Any) -> ToolEnd:
    """Return one finished call."""
    step = Run().call(tool, args, result, **fields)
    assert isinstance(step, ToolEnd)
    return step


def test_the_order_of_arguments_does_not_matter() -> None:
    """Some frameworks sort the keys of their arguments and some do not."""
    assert call_key(end(args={"a": 1, "b": 2})) == call_key(end(args={"b": 2, "a": 1.0}))


def test_another_tool_or_another_argument_is_another_call() -> None:
    """Reading lines 1 to 100 and then 101 to 200 is no repetition."""
    calls = [end(args={"from": 1}), end(args={"from": 101}), end("grep", args={"from": 1}), end(args={})]

    assert len({call_key(call) for call in calls}) == 4


def test_a_hash_stands_for_the_content_that_it_was_made_of() -> None:
    """A runtime that sends no content is seen as well as one that does."""
    args, result = {"q": "tides"}, ["high", "low"]
    hashed = end(args=None, result=None, args_hash=content_hash(args), result_hash=content_hash(result))
    full = end(args=args, result=result)

    assert (call_key(hashed), result_key(hashed)) == (call_key(full), result_key(full))


def test_what_a_runtime_normalised_wins() -> None:
    """Behind a fresh id in every answer only the runtime can see that nothing changed."""
    first = end(result="id 7", result_hash="aa", result_norm_hash="cc", args_hash="11", args_norm_hash="33")
    again = end(result="id 8", result_hash="bb", result_norm_hash="cc", args_hash="22", args_norm_hash="33")

    assert call_key(first) == call_key(again)
    assert result_key(first) == result_key(again)


def test_what_is_missing_has_no_key() -> None:
    """`null` and an absent field are the same: neither was reported."""
    absent, null = end(args=None, result=None), end()
    null.args = null.result = Raw(b"null")

    assert [call_key(step) for step in (absent, null)] == [0, 0]
    assert [result_key(step) for step in (absent, null)] == [0, 0]


def test_an_echo_of_the_arguments_is_a_result_like_any_other() -> None:
    """If the keys were only combined by exclusive or, a tool that echoes would cancel them out."""
    echoes = [end(args=word, result=word) for word in ("ebb", "flow")]

    assert len({(call_key(step), result_key(step)) for step in echoes}) == 2


def test_an_error_stands_in_for_a_result() -> None:
    """The same failure of the same call is a repetition, another failure is not."""
    keys = [result_key(end(result=None, error=error)) for error in ({"class": "A"}, {"class": "A"}, {"class": "B"}, {})]

    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == 0


@pytest.mark.parametrize("text", ["xyz", " 12", "+12", "1_2", "-1"])
def test_a_hash_that_is_not_hexadecimal_is_refused(text: str) -> None:
    """Python would read most of these as numbers; two runtimes would then differ about equality."""
    with pytest.raises(InvalidEvent, match="hexadecimal"):
        call_key(end(args_hash=text))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"args_hash": "a1", "result_hash": "b2"},
        {"args_hash": "a1", "result_hash": "b2", "args_norm_hash": "c3", "result_norm_hash": "d4"},
        {"args_hash": "0", "result_hash": "0"},
        {"args_hash": "a1"},
        {"args": None, "result": None},
    ],
)
def test_both_keys_at_once_are_the_two_keys(fields: dict[str, Any]) -> None:
    """The short way for the usual event must not know another equality; not at a tool's first call either."""
    step = end(f"tool of {sorted(fields)}", **fields)

    assert [keys_of(step), keys_of(step)] == [(call_key(step), result_key(step))] * 2


@pytest.mark.parametrize("field", ["args_hash", "result_hash"])
def test_the_short_way_refuses_the_same(field: str) -> None:
    """And names the field that is wrong."""
    hashes = {"args_hash": "a1", "result_hash": "b2", field: "xyz"}
    for _ in range(2):
        with pytest.raises(InvalidEvent) as refused:
            keys_of(end(**hashes))

        assert refused.value.field == field


@pytest.mark.parametrize(
    ("content", "reason"), [("[" * 200 + "]" * 200, "too_deep"), ("1e999", "out_of_range")], ids=["deep", "infinite"]
)
def test_content_without_a_canonical_form_is_refused(content: str, reason: str) -> None:
    """Refused as a whole: a call whose keys cannot be made must not count as missing."""
    step = end()
    step.args = Raw(content.encode())

    with pytest.raises(InvalidEvent) as refused:
        call_key(step)

    assert refused.value.reason == reason


def test_a_loop_has_one_identity_wherever_its_lap_began() -> None:
    """Escalation counts against it, and a lap may be seen from any of its calls."""
    assert set_key({1, 2, 3}) == set_key({3, 1, 2})
    assert len({set_key(keys) for keys in ({1, 4}, {2, 3}, {5})}) == 3


def test_the_key_of_a_tool_is_the_same_on_every_machine() -> None:
    """A snapshot may be read by another process: `hash()` would differ."""
    assert tool_key("search") == 0x19C0DBA203848F0A
    assert tool_key("search") != tool_key("Search")


@pytest.mark.parametrize(
    ("tool", "sent", "declared", "effect"),
    [
        ("grep", "read", {}, "read"),
        ("grep", "read", {"grep": "write"}, "write"),
        ("grep", "read", {"grep": "unknown"}, "unknown"),
        ("grep", "telepathy", {}, "unknown"),
        ("grep", None, {}, "unknown"),
        ("job_status", None, {}, "poll"),
        ("job_status", "unknown", {}, "poll"),
        ("job_status", "read", {}, "read"),
        ("job_status", None, {"job_status": "unknown"}, "unknown"),
    ],
)
def test_policy_wins_over_runtime_and_both_over_the_name(
    tool: str, sent: str | None, declared: dict[str, str], effect: str
) -> None:
    """A name that sounds like polling counts only where nobody declared anything."""
    assert effect_of(end(tool, effect=sent), Policy(effects=declared)) == effect


@pytest.mark.parametrize(
    ("tool", "args", "effect", "waits"),
    [
        ("sleep", {"s": 5}, "unknown", True),
        ("wait", {}, "unknown", True),
        ("now", {}, "clock", True),
        ("shell", {"command": "sleep 5"}, "unknown", True),
        ("shell", "sleep 0.5m", "unknown", True),
        ("shell", {"command": "sleep 5 && make"}, "unknown", False),
        ("shell", {"command": "echo sleep 5"}, "unknown", False),
        ("shell", {"command": "sleep 5", "note": "x" * 200}, "unknown", False),
        ("shell", None, "unknown", False),
    ],
)
def test_a_wait_only_lets_time_pass(tool: str, args: Any, effect: str, waits: bool) -> None:
    """A shell that only sleeps waits as well; one that then does something does not."""
    assert is_wait(end(tool, args), effect) is waits


@pytest.mark.parametrize(
    ("result", "empty"), [("", True), ([], True), ({}, True), ("-", False), ([0], False), (0, False), (None, False)]
)
def test_an_empty_answer_is_there_and_holds_nothing(result: Any, empty: bool) -> None:
    """A missing answer is not an empty one."""
    assert is_empty(end(result=result)) is empty
    assert is_empty(end(result=None, result_bytes=0))


def test_equal_keys_need_no_content_at_all() -> None:
    """`fidelity: hash` is judged like the rest."""
    step = end(args=None, result=None, args_hash="a1", result_hash="b2", fidelity="hash")

    assert call_key(step) != 0
    assert result_key(step) != 0
    assert effect_of(step, DEFAULT_POLICY) == "unknown"
