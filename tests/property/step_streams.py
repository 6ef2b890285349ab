"""Streams of step events of several runs, trees and tenants, with loops in them, for Hypothesis.

A stream is played from a script, a list of scenes: a run works in peace, repeats itself, fails, speaks to a person, is
resumed. Scripts are what a failing test prints: a stream would fill pages.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from tests._support.steps import Run

from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

# Low numbers, so that short streams climb the whole ladder.
EAGER = Policy.from_builtins(
    {
        "mode": "enforce",
        "exact_repeat": {"kill": 6},
        "changing_repeat": {"observe": 4, "nudge": 6, "clock_observe": 3, "clock_nudge": 4},
        "cycle": {"kill_laps": 4},
        "same_error": {"kill": 6},
        "frozen_poll": {"observe": 3, "nudge": 4, "kill": 6},
        "interleaved_repeat": {"kill": 5},
        "same_output": {"observe": 3, "nudge": 4, "kill": 6},
        "resweep": {"min_calls": 3},
        "self_append": {"kill": 6},
        "param_walk": {"observe": 3, "nudge": 4, "break_at": 5, "kill": 6},
        "no_progress": {"observe": 3, "observe_window": 4, "nudge": 4, "nudge_window": 6, "kill": 6, "kill_window": 8},
        "text_chant": {"nudge": 3, "kill": 4},
        "near_text": {"observe": 4, "nudge": 4, "nudge_undeclared": 5, "kill": 5},
        "semantic_repeat": {"observe": 2, "nudge": 3, "nudge_text": 3, "kill": 4},
        "context_rot": {"drift_steps": 2, "drift_percent": 1},
        "reflection": {"observe": 2, "nudge": 3, "observe_tokens": 1_000, "nudge_tokens": 5_000, "kill_tokens": 20_000},
        "rate": {"observe_per_min": 30, "nudge_per_min": 40, "kill_per_min": 50},
        "budget": {"observe_steps": 20, "nudge_steps": 30, "max_steps_if_stuck": 40, "limits": {"max_steps": 60}},
        "ladder": {"ack_timeout_ms": 10_000, "command_ttl_ms": 20_000},
    }
)

# (tenant, run, root): a tree of three, one of the same name at another tenant, and one alone.
RUNS = (
    ("acme", "boss", "boss"),
    ("acme", "left", "boss"),
    ("acme", "right", "boss"),
    ("other", "boss", "boss"),
    ("acme", "alone", "alone"),
)

Scene = Callable[[Run, int], list[AnyStep]]

_EFFECTS = ("read", "write", "poll", "clock", "unknown", None)


def _work(run: Run, n: int) -> list[AnyStep]:
    return [run.call(f"tool {k % 3}", run.seq, f"new {run.seq}", effect=_EFFECTS[n % 6]) for k in range(n)]


def _repeat(run: Run, n: int) -> list[AnyStep]:
    return run.calls(n, args="the same", effect=_EFFECTS[n % 6])


def _repeat_bare(run: Run, n: int) -> list[AnyStep]:
    return run.calls(n, result=None)


def _change(run: Run, n: int) -> list[AnyStep]:
    return [run.call("look", "x", f"state {run.seq}", effect=_EFFECTS[n % 6]) for _ in range(n)]


def _turn(run: Run, n: int) -> list[AnyStep]:
    period = 2 + n % 5
    return [run.call(f"turn {k % period}", k % period, "same", effect="read") for k in range(period * 4)]


def _fail(run: Run, n: int) -> list[AnyStep]:
    return [run.call("edit", run.seq, fails=f"no match in line {k}", effect=_EFFECTS[n % 6]) for k in range(n)]


def _hammer(run: Run, n: int) -> list[AnyStep]:
    return [run.call("deploy", "again", fails="no route to host", effect=_EFFECTS[n % 6]) for _ in range(n)]


def _hurry(run: Run, n: int) -> list[AnyStep]:
    usual, run.gap_ms = run.gap_ms, 40
    steps = [run.call("fetch", run.seq, run.seq) for _ in range(28 + 2 * n)]
    run.gap_ms = usual
    return steps


def _batches(run: Run, n: int) -> list[AnyStep]:
    calls = [("read", "a", "A"), ("edit", "b", "no"), ("read", "a", "A")][: 1 + n % 3]
    return [step for k in range(4) for step in run.batch(*(calls if k % 2 else calls[::-1]), effect="read")]


def _refused(run: Run, n: int) -> list[AnyStep]:
    outcomes = ("blocked", "cached", "denied", "unknown_tool", "cancelled", "timeout", "invalid_args", "teleported")
    return [run.call(outcome=outcomes[(n + k // 3) % len(outcomes)]) for k in range(n)]


def _wait_between(run: Run, n: int) -> list[AnyStep]:
    return [step for _ in range(n) for step in (run.call(args="the same"), run.call("bash", "sleep 5", ""))]


def _poll(run: Run, n: int) -> list[AnyStep]:
    words = [{"job": k % 2 if k < 8 or n % 2 else k} for k in range(12)]
    polls = [run.call("status", word, "running", effect="poll") for word in words]
    return [step for poll in polls for step in ((poll, run.call("sleep", 5, "")) if n % 3 else (poll,))]


def _ask_around(run: Run, n: int) -> list[AnyStep]:
    return [
        run.call("grep", run.seq, "no match" if n % 2 else "available", effect="read")
        if k % 3
        else run.call("think", k % 2, "ok", effect="read")
        for k in range(12)
    ]


def _sleep(run: Run, n: int) -> list[AnyStep]:
    return [run.call("sleep", {"seconds": 5 * n**2}, "") for _ in range(n)]


def _in_flight(run: Run, n: int) -> list[AnyStep]:
    ids = [f"f{run.seq}-{k}" for k in range(n)]
    starts = [run.step("tool_start", tool="fetch", call_id=own) for own in ids]
    return [*starts, *[run.call("fetch", own, own, call_id=own, cost_usd=0.1) for own in ids[::2]]]


def _retried(run: Run, n: int) -> list[AnyStep]:
    return [run.call(args="the same", call_id=f"retry {n}") for _ in range(n)]


def _speak(run: Run, n: int) -> list[AnyStep]:
    tokens = {"input_tokens": 100 * n, "output_tokens": n}
    return [run.model(usage=tokens, cost_usd=0.1, tool_calls=n % 3), run.user() if n % 2 else run.step("progress")]


def _approve(run: Run, n: int) -> list[AnyStep]:
    decision = ("approved", "rejected", None)[n % 3]
    call_id = f"a{run.seq}" if n % 2 else None
    steps = [run.step("approval_wait", call_id=call_id), run.step("approval_end", call_id=call_id, decision=decision)]
    return [*steps[: 1 + n % 4], run.call(args="the same", call_id=call_id)]


def _resume(run: Run, n: int) -> list[AnyStep]:
    incarnation = f"i{n}-{run.seq}" if n % 3 else "a"
    return [run.resume(incarnation, attended=n % 2 == 0, limits={"max_steps": 40 + n} if n % 4 else None)]


def _end(run: Run, n: int) -> list[AnyStep]:
    return [run.end(("completed", "failed", "killed")[n % 3])]


def _start(run: Run, n: int) -> list[AnyStep]:
    limits = ({"max_cost_usd": 1.0}, {"max_tokens": 900}, {"max_duration_ms": 120_000}, {"max_model_calls": 2}, None)[
        n % 5
    ]
    goal = ("Never give up.", "Say hello.", None)[n % 3]
    return [run.start(attended=n % 2 == 0, limits=limits, goal=goal)]


def _page(run: Run, n: int) -> list[AnyStep]:
    effect = "unknown" if n % 2 else "read"
    return [
        run.call("read", {"path": "a.py", "offset": at, "limit": 10}, f"page {at}", effect=effect)
        for shift in (10, 10, 14)
        for at in range(shift, shift + 60, 10)
    ]


def _append(run: Run, n: int) -> list[AnyStep]:
    texts = ["make the thing; " * (k + 1) for k in range(9)]
    return [
        run.call("sh", {"cmd": text}, k if n % 3 else "done", effect=_EFFECTS[n % 6]) for k, text in enumerate(texts)
    ]


def _find_nothing(run: Run, n: int) -> list[AnyStep]:
    answer = ("no results found", "", "[]")[n % 3]
    steps = [run.call("find", f"{run.seq}", answer, effect="unknown" if n % 2 else "read") for _ in range(6 + n)]
    return [*steps, run.call("find", "there", "it is")] if n % 5 == 0 else steps


def _stand_still(run: Run, n: int) -> list[AnyStep]:
    return [
        step
        for k in range(6 + n)
        for step in (
            run.batch(("sh", f"{run.seq}", ""), ("see", f"{run.seq}", "" if k % 4 else k), effect="read")
            if n % 3 == 0
            else [run.call("sh", f": {run.seq}", "") if k % 2 else run.call("sh", run.seq, fails=f"wall {'x' * k}")]
        )
    ]


def _talk(run: Run, n: int) -> list[AnyStep]:
    other = Run(f"t{run.seq}", root=run.root or run.run_id, tenant=run.tenant)
    pair = (run, other)
    steps = []
    for k in range(12):
        text = None if n % 3 == 0 else f"Please look at point {n} again." if n % 3 == 1 else f"{k * k * 7919} {k}" * 9
        steps.append(pair[k % 2].step("message", to_run_id=pair[1 - k % 2].run_id, text=text))
        if k % 4 == n % 4 and n > 6:
            steps.append(pair[k % 2].call("inbox", k, "", effect="poll"))
    return steps


def _hang(run: Run, n: int) -> list[AnyStep]:
    args = {"timeout_s": 3_600 + n}
    return [run.step("tool_start", tool="make", call_id=f"h{run.seq}-{k}", args=args) for k in range(n)]


def _chant(run: Run, n: int) -> list[AnyStep]:
    text = "Let me look again. " * (3 + 2 * n)
    return [run.model(text=text if k % 2 else None, reasoning=text, tool_calls=0) for k in range(1 + n % 4)]


def _say_again(run: Run, n: int) -> list[AnyStep]:
    words = ("Still", "Once more", "Again")
    text = f"{{}} the tests of module {n % 3} fail, so I will look at its imports {{}} and then run the tests again."
    steps = []
    for k in range(5 + n % 5):
        said = text.format(words[k % 3] if n % 2 else words[0], "closely " * (k % 2))
        steps.append(run.model(text=said if n % 4 else None, reasoning=said, tool_calls=1))
        if n > 2:
            effect = _EFFECTS[n % 6]
            steps.append(run.call("run", k if n % 2 else "tests", run.seq if n > 6 else "2 failed", effect=effect))
    return steps


def _reword(run: Run, n: int) -> list[AnyStep]:
    asked = ["please", "look", "through", "the", "long", "list", "of", "bridges", "for", "the", "oldest", "one"]
    told = ["there", "is", "nothing", "more", "to", "be", "seen", "here", "than", "the", "footer", "of", "it"]
    steps = []
    for k in range(4 + n):
        question, answer = (
            " ".join([*words[k % 5 :], *words[: k % 5], *words[k % 3 : k % 4]]) for words in (asked, told)
        )
        fact = f" {run.seq}" if n % 4 == 0 else ""
        if n % 3 == 0:
            steps.append(run.step("message", to_run_id=f"r{n % 2}", text=answer + fact))
        elif n % 5 == 0:
            steps.append(run.model(text=answer + fact, tool_calls=0))
        else:
            steps.append(run.call("ask", {"task": question, "of": n % 2}, answer + fact))
        if n > 6:
            steps.append(run.call("look", k % n, f"state {k % 3}", effect=_EFFECTS[n % 6]))
    return steps


def _lose_the_goal(run: Run, n: int) -> list[AnyStep]:
    goal = "Write the quarterly report on the traffic of the harbour, with a table for each of its four berths"
    other = "The linter wants another order of the imports, and the pipeline another version of the linter itself. "
    return [
        run.start(goal=goal),
        *[run.model(text=f"{goal}: part {k}.") for k in range(5)],
        *([run.user()] if n % 5 == 0 else []),
        *[run.model(text=other * (1 + k % 2) + f"{k * 7919 * n}") for k in range(3 + n)],
    ]


def _ponder(run: Run, n: int) -> list[AnyStep]:
    usage = {"input_tokens": 10, "output_tokens": 9_000 * (n % 3)}
    return [run.model(text=f"Thought {run.seq}.", usage=usage, tool_calls=0, duration_ms=n * 90_000) for _ in range(n)]


def _squeeze(run: Run, n: int) -> list[AnyStep]:
    after = 95_000 if n % 2 else 9_000
    return [
        step
        for k in range(2 + n % 4)
        for step in (
            run.call("read", {"page": k % 2 if n % 3 else 0}, "as before", effect="read"),
            run.step("compaction", tokens_before=100_000, tokens_after=after),
            run.model(usage={"input_tokens": after + 1_000 * n * n, "output_tokens": 5}, tool_calls=1),
            *[run.call("read", {"page": page}, "as before", effect="read") for page in range(n % 4)],
        )
    ]


def _many_loops(run: Run, n: int) -> list[AnyStep]:
    return [step for k in range(14) for step in run.calls(2 + n % 2, args=f"question {k}", effect="read")]


def _from_spans(run: Run, n: int) -> list[AnyStep]:
    run.fidelity = "low" if n % 2 else None
    return run.calls(2, args="seen in spans")


SCENES: dict[str, Scene] = {
    scene.__name__.strip("_"): scene
    for scene in (
        _work,
        _repeat,
        _repeat_bare,
        _change,
        _turn,
        _fail,
        _hammer,
        _hurry,
        _batches,
        _refused,
        _wait_between,
        _poll,
        _ask_around,
        _sleep,
        _in_flight,
        _retried,
        _speak,
        _approve,
        _resume,
        _end,
        _start,
        _page,
        _append,
        _find_nothing,
        _stand_still,
        _talk,
        _hang,
        _chant,
        _say_again,
        _reword,
        _lose_the_goal,
        _ponder,
        _squeeze,
        _many_loops,
        _from_spans,
    )
}

# Who, what, and how much of it.
Script = list[tuple[int, str, int]]


def scripts(*, max_scenes: int = 8, runs: int = len(RUNS)) -> st.SearchStrategy[Script]:
    """Draw what the first `runs` of `RUNS` do, scene by scene."""
    scene = st.tuples(st.integers(0, runs - 1), st.sampled_from(sorted(SCENES)), st.integers(1, 9))
    return st.lists(scene, min_size=2, max_size=max_scenes)


def play(script: Script, runs: tuple[tuple[str, str, str], ...] = RUNS) -> list[AnyStep]:
    """Return the steps of a script in the order of their source: `seq` and time of each run rise."""
    cast = [Run(run_id, root=root, tenant=tenant) for tenant, run_id, root in runs]
    return [step for actor, scene, size in script for step in SCENES[scene](cast[actor], size)]
