"""Calls that a person has to approve: asked once for one action, obeyed, and never taken for approved by mistake."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec import Raw, convert
from msgspec.structs import replace

from loopwarden import Action, Approvals, Decision, Limits, RunGuard, SafetyNet
from loopwarden.approvals import MAX_OPEN_QUESTIONS
from loopwarden.testing import START_MS, GuardBench, answer, kill, pause, run_record
from loopwarden_models.codec import encode
from loopwarden_models.control_state import BlockedTool
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import AnyStep, ApprovalEnd, ApprovalWait, RunEnd, ToolEnd, ToolStart, UserInput
from loopwarden_models.questions import QuestionRecord, question_key

PAY = {"to": "kim", "sum": 300}


def bench_of(**options: Any) -> GuardBench:
    """Return a guard for whose tool `pay` people are asked."""
    return GuardBench(approvals=Approvals(tools={"pay"}, timeout_s=600.0), **options)


def published(bench: GuardBench, kind: type[AnyStep]) -> list[Any]:
    """Return the events of one type so far."""
    bench.pump()
    return [step for step in bench.transport.steps if isinstance(step, kind)]


def waits(bench: GuardBench) -> list[ApprovalWait]:
    """Return what was asked so far."""
    return published(bench, ApprovalWait)


def decisions(bench: GuardBench) -> list[str | None]:
    """Return how questions ended so far."""
    return [step.decision for step in published(bench, ApprovalEnd)]


def say(bench: GuardBench, decision: str, wait: ApprovalWait | None = None, **fields: Any) -> None:
    """Answer the newest question, or another one."""
    wait = waits(bench)[-1] if wait is None else wait
    assert wait.question_id is not None
    assert wait.action_hash is not None
    bench.transport.state(answer(wait.question_id, decision, **{"action_hash": wait.action_hash, **fields}))
    bench.pump()


def close(bench: GuardBench, wait: ApprovalWait, state: str) -> None:
    """Say of a question, as the detector does, how it ended."""
    key = question_key("acme", wait.question_id or "")
    record = QuestionRecord(
        v=1, key=key, version=[42, 1], kind="action", state=state, run_id="r-42", root_run_id="r-42", incarnation="a"
    )
    bench.transport.state(record)
    bench.pump()


def test_an_approved_call_is_made_once() -> None:
    """It waits, is allowed when a person says so, and the same call once more is another question."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        first = run.before_tool("pay", PAY, "c1")
        assert (first.action, first.reason) == (Action.PAUSE, "pay waits for a person's approval")
        assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE
        assert published(bench, ToolStart) == []
        (wait,) = waits(bench)
        assert (wait.call_id, wait.tool, wait.timeout_ms) == ("c1", "pay", 600_000)
        assert bytes(cast("Raw", wait.args)) == b'{"sum":300,"to":"kim"}'

        say(bench, "approved")
        allowed = run.before_tool("pay", PAY, "c1")
        assert (allowed.allowed, allowed.question_id) == (True, wait.question_id)
        run.after_tool("c1", result="done")

        assert run.before_tool("pay", PAY, "c2").action is Action.PAUSE
        assert len({one.question_id for one in waits(bench)}) == 2
        assert decisions(bench) == ["approved"]


def test_other_tools_ask_nobody() -> None:
    """One look at a set; nothing is reported."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        assert run.before_tool("search", PAY, "c1").allowed

    assert waits(bench) == []


def test_changed_arguments_are_asked_for_again() -> None:
    """An approval of 300 is none of 3,000; the question about what is not to be done any more is taken back."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        (first,) = waits(bench)
        assert run.before_tool("pay", {**PAY, "sum": 3_000}, "c1").action is Action.PAUSE
        say(bench, "approved", first)

        assert run.before_tool("pay", {**PAY, "sum": 3_000}, "c1").action is Action.PAUSE
        assert decisions(bench) == ["expired"]
        assert published(bench, ToolStart) == []


def test_an_answer_for_another_action_counts_for_nothing() -> None:
    """Whoever answers says what was seen: an answer cannot be carried to other arguments."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "approved", action_hash="0123456789abcdef")

        assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE


def test_the_order_of_keys_makes_no_other_action() -> None:
    """Equal arguments are equal, however they are written."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", {"to": "kim", "sum": 300}, "c1")
        say(bench, "approved")

        assert run.before_tool("pay", {"sum": 300, "to": "kim"}, "c1").allowed


def test_a_rejected_call_is_refused_and_never_asked_for_again() -> None:
    """The model reads a refusal, the step is `denied`, and a second try costs no person a thought."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "rejected")
        refused = run.before_tool("pay", PAY, "c1")
        again = run.before_tool("pay", PAY, "c2")

        assert (refused.action, again.action) == (Action.BLOCK, Action.BLOCK)
        assert refused.message is not None
        assert '"reason":"rejected"' in refused.message
        ends = published(bench, ToolEnd)
        assert [(end.call_id, end.outcome, end.error.error_class) for end in ends] == [
            ("c1", "denied", "approval:rejected"),
            ("c2", "denied", "approval:rejected"),
        ]
        assert len(waits(bench)) == 1
        assert decisions(bench) == ["rejected"]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_an_instruction_reaches_the_model_where_free_text_is_allowed(is_allowed: bool) -> None:
    """Else the model reads that a person decided against it, and no word of the record."""
    bench = bench_of(allow_free_text=is_allowed)
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "instructed", instruction="Ask the buyer for the invoice first.")
        refused = run.before_tool("pay", PAY, "c1")

        assert refused.action is Action.BLOCK
        assert refused.message is not None
        assert ("Ask the buyer" in refused.message) is is_allowed
        assert decisions(bench) == ["rejected"]
        assert len(published(bench, UserInput)) == 1


def test_nobody_answers() -> None:
    """When the time is over the call is refused; asked again, it is another question."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        bench.clock.advance(599_000)
        assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE
        bench.clock.advance(2_000)
        refused = run.before_tool("pay", PAY, "c1")

        assert (refused.action, refused.reason) == (Action.BLOCK, "nobody approved it in time")
        assert decisions(bench) == ["expired"]
        say(bench, "approved")
        assert run.before_tool("pay", PAY, "c2").action is Action.PAUSE


def test_an_answer_that_is_too_old_is_none() -> None:
    """Lifecycle 81: by the broker's clock, so that a record from yesterday approves nothing today."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "approved", expires_at_ms=START_MS - 1)

        assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE


def test_killed_while_a_person_is_asked() -> None:
    """Lifecycle 32: the approved call is not made, and the question ends as `expired`."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        bench.transport.command(kill(run.key))
        bench.pump()
        say(bench, "approved")
        assert run.before_tool("pay", PAY, "c1").action is Action.STOP
        assert run.wait_if_paused_sync(1.0).action is Action.STOP

    assert decisions(bench) == ["expired"]
    assert published(bench, ToolStart) == []
    (end,) = published(bench, RunEnd)
    assert end.status == "killed"


def test_a_run_that_is_left_while_it_waits_is_not_completed() -> None:
    """Its question stays open, and the next incarnation finds what was answered meanwhile."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
    (end,) = published(bench, RunEnd)
    assert end.status == "awaiting_approval"
    assert decisions(bench) == []
    say(bench, "approved")

    with bench.guard.run("r-42") as run:
        assert run.before_tool("pay", PAY, "other-id").allowed
    first, second = waits(bench)
    assert first.question_id == second.question_id
    assert decisions(bench) == ["approved"]


def test_a_paused_run_that_is_left_is_not_completed() -> None:
    """Lifecycle 8: it waits for a person, whatever the framework made of it."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        bench.transport.command(pause(run.key))
        bench.pump()
        assert run.before_model().action is Action.PAUSE

    (end,) = published(bench, RunEnd)
    assert end.status == "awaiting_approval"


def test_another_process_finds_the_answer_and_what_was_used_up() -> None:
    """What the detector says of a question outlives the process that asked: an approval is not used twice."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "approved")
        assert run.before_tool("pay", PAY, "c1").allowed
    (wait,) = waits(bench)
    close(bench, wait, "approved")

    other = bench_of(transport=bench.transport)
    bench.transport._position = 0
    other.pump()
    with other.guard.run("r-42") as run:
        assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE
    assert len({one.question_id for one in waits(other)}) == 2


def test_another_process_does_not_ask_for_what_was_rejected() -> None:
    """A restart is no way round a person's no."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        (wait,) = waits(bench)
    close(bench, wait, "rejected")

    with bench.guard.run("r-42") as run:
        assert run.before_tool("pay", PAY, "c1").action is Action.BLOCK
    assert len(waits(bench)) == 1


def test_the_agents_code_asks() -> None:
    """For any tool, with words for the person."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        decision = run.before_tool("mail", {}, "c1", ask="Send this to 4,000 customers?")
        assert decision.action is Action.PAUSE

    assert [(wait.tool, wait.question) for wait in waits(bench)] == [("mail", "Send this to 4,000 customers?")]


def test_hashes_leave_the_process_and_no_content() -> None:
    """With `fidelity="hash"` a person sees tool and run, and neither words nor arguments."""
    bench = bench_of(fidelity="hash")
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1", ask="Pay kim?")

    (wait,) = waits(bench)
    assert wait.question is None
    assert b"kim" not in b"".join(record.value for record in bench.transport.records)
    assert wait.action_hash


def test_a_rule_decides_by_the_arguments() -> None:
    """And where it fails a person is asked: this door does not fail open."""

    def rule(tool: str, args: object) -> str | None:
        assert isinstance(args, dict)
        return f"{tool} {args['sum']}?" if args["sum"] > 100 else None

    bench = GuardBench(approvals=Approvals(ask=rule))
    with bench.guard.run("r-42") as run:
        assert run.before_tool("pay", {"sum": 3}, "c1").allowed
        assert run.before_tool("pay", {"sum": 300}, "c2").action is Action.PAUSE
        assert run.before_tool("pay", {}, "c3").action is Action.PAUSE

    first, second = waits(bench)
    assert first.question == "pay 300?"
    assert second.question is not None
    assert "KeyError" in second.question


def test_a_fault_of_ours_lets_no_unapproved_call_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else fails open."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        monkeypatch.setattr(run, "_before_tool", _fail)
        assert run.before_tool("pay", PAY, "c1").action is Action.BLOCK
        assert run.before_tool("search", PAY, "c2").action is Action.ALLOW


def _fail(*_: object) -> Decision:
    raise RuntimeError("a fault of ours")


def test_a_call_that_would_be_refused_anyway_asks_nobody() -> None:
    """A blocked tool stays blocked, whatever a person says."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        block = [{"tool": "pay", "until_ms": START_MS + 60_000, "verdict_id": "v"}]
        bench.transport.raw("state", "acme|run|r-42", _record_with(run, block))
        bench.pump()
        assert run.before_tool("pay", PAY, "c1").action is Action.BLOCK

    assert waits(bench) == []


def _record_with(run: RunGuard, blocked: list[dict[str, Any]]) -> bytes:
    record = run_record("r-42", "open", incarnation=run.key.incarnation)
    return encode(replace(record, blocked_tools=convert(blocked, list[BlockedTool])))


def test_asking_spends_no_steps_and_no_time() -> None:
    """Lifecycle 50: 80 of 100 steps stay 80, and an hour of waiting is no hour of work."""
    bench = bench_of()
    limits = Limits(max_steps=1, max_duration_ms=60_000)
    with bench.guard.run("r-42", limits=limits) as run:
        for _ in range(5):
            assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE
        bench.clock.advance(500_000)
        say(bench, "approved")
        assert run.before_tool("pay", PAY, "c1").allowed
        run.after_tool("c1", result="done")
        assert run.before_tool("search", {}, "c2").action is Action.STOP


def test_waiting_ends_with_the_answer() -> None:
    """Both ways of waiting return when a person has spoken, and at once when nothing is asked."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        assert run.wait_if_paused_sync().allowed
        run.before_tool("pay", PAY, "c1")
        assert run.wait_if_paused_sync(0.05).action is Action.PAUSE
        assert asyncio.run(run.wait_if_paused(0.05)).action is Action.PAUSE
        say(bench, "approved")
        assert run.wait_if_paused_sync().allowed
        assert asyncio.run(run.wait_if_paused()).allowed
        assert run.before_tool("pay", PAY, "c1").allowed


def test_questions_of_one_run_are_bounded() -> None:
    """A loop that asks without waiting must not bury a person."""
    bench = bench_of(safety_net=SafetyNet())
    with bench.guard.run("r-42") as run:
        for n in range(MAX_OPEN_QUESTIONS):
            assert run.before_tool("pay", {"n": n}, f"c{n}").action is Action.PAUSE
        refused = run.before_tool("pay", {"n": "more"}, "more")

        assert (refused.action, refused.reason) == (Action.BLOCK, "too many calls of this run wait for a person")


def test_a_decision_of_a_later_version_leaves_the_question_open() -> None:
    """It is counted; it is no yes."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "approved_with_conditions")
        assert run.before_tool("pay", PAY, "c1").action is Action.PAUSE

    assert bench.guard.stats()["answers_unknown"] == 1


def test_of_two_answers_the_newer_counts() -> None:
    """Whatever the order in which they are read."""
    bench = bench_of()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", PAY, "c1")
        say(bench, "rejected", version=(7, 0))
        say(bench, "approved", version=(6, 9))

        assert run.before_tool("pay", PAY, "c1").action is Action.BLOCK


@pytest.mark.parametrize("wrong", [{"timeout_s": 0.0}, {"tools": "pay"}])
def test_wrong_settings_are_refused_at_the_start(wrong: dict[str, Any]) -> None:
    """And say which."""
    with pytest.raises(ConfigError, match="approvals: "):
        Approvals(**wrong)
