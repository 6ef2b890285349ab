"""The guard of one run, as an agent or an adapter uses it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from loopwarden import Action, Limits, LoopwardenStopped, RunGuard, Usage, tool
from loopwarden.testing import GuardBench, kill, pause, resume
from loopwarden.tool_calls import MAX_REPORTED_REFUSALS
from loopwarden_models.events import (
    AnyStep,
    ApprovalEnd,
    ApprovalWait,
    Compaction,
    Message,
    ModelEnd,
    Progress,
    RunEnd,
    RunStart,
    ToolEnd,
    ToolStart,
    UserInput,
)
from loopwarden_models.hashes import content_hash


def published(bench: GuardBench) -> list[AnyStep]:
    """Return all events so far."""
    bench.pump()
    return bench.transport.steps


def ends(bench: GuardBench) -> list[tuple[str | None, str | None]]:
    """Return call id and outcome of every `tool_end` so far."""
    return [(step.call_id, step.outcome) for step in published(bench) if isinstance(step, ToolEnd)]


def end_status(bench: GuardBench) -> str | None:
    """Return the status of the last event, which has to be `run_end`."""
    end = published(bench)[-1]
    assert isinstance(end, RunEnd)
    return end.status


def stop(bench: GuardBench, run: RunGuard) -> None:
    """Let the detector kill the run."""
    bench.transport.command(kill(run.key))
    bench.pump()


def test_every_step_is_reported_in_order() -> None:
    """`seq` is strictly increasing, and a call is visible while it is in flight."""
    bench = GuardBench()
    with bench.guard.run("r-42", agent="researcher", limits=Limits(max_steps=9)) as run:
        run.user_input()
        run.before_model()
        run.after_model(model="m", text="I search.", usage=Usage(10, 5), cost_usd=0.01, tool_calls=1)
        run.before_tool("search", {"q": "x"}, "c1", effect="read")
        bench.clock.advance(40)
        run.after_tool("c1", result=["hit"])
        run.approval_wait("c2")
        run.approval_end("c2", "approved")
        run.compaction(tokens_before=9_000, tokens_after=900)
        run.progress("page 2 of 9")
        run.message(to_agent="writer", text="done")
    steps = published(bench)

    kinds = [RunStart, UserInput, ModelEnd, ToolStart, ToolEnd, ApprovalWait, ApprovalEnd, Compaction, Progress]
    assert [type(step) for step in steps] == [*kinds, Message, RunEnd]
    assert [step.seq for step in steps] == list(range(11))
    assert {(s.tenant, s.run_id, s.root_run_id, s.agent) for s in steps} == {("acme", "r-42", "r-42", "researcher")}
    assert len({step.incarnation for step in steps}) == 1
    end = steps[4]
    assert isinstance(end, ToolEnd)
    assert (end.call_id, end.effect, end.outcome, end.duration_ms) == ("c1", "read", "ok", 40.0)


def test_a_tool_that_returns_nothing_is_not_a_tool_whose_result_is_unknown() -> None:
    """Nothing, again and again, is a repetition; what nobody reported equals nothing."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.after_tool("c1", tool="click", result=None)
        run.after_tool("c2", tool="click")
        run.after_tool("c3", tool="click", outcome="error", result=None, error="gone")
    hashes = [step.result_hash for step in published(bench) if isinstance(step, ToolEnd)]

    assert hashes == [content_hash(None), None, None]


def test_seq_follows_the_order_of_the_queue_from_any_thread() -> None:
    """Parallel tools report from their own threads; a repeated or lower `seq` would be taken for a duplicate."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:

        def work(name: str) -> None:
            for n in range(200):
                run.before_tool("t", {}, f"{name}{n}")
                run.after_tool(f"{name}{n}")

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert [step.seq for step in published(bench)] == list(range(802))


def test_an_incarnation_is_new_for_each_start() -> None:
    """A restarted run is not hit by what was ordered for its former life."""
    bench = GuardBench()
    keys = {bench.guard.run("r-42").key.incarnation for _ in range(50)}

    assert len(keys) == 50
    assert all(0 < len(key) <= 32 for key in keys)


def test_once_stopped_every_step_is_refused_for_ever() -> None:
    """Frameworks swallow exceptions and go on: the gate does not depend on their good will."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        stop(bench, run)
        for n in range(3):
            assert run.before_model().action is Action.STOP
            decision = run.before_tool("search", {}, f"c{n}")
            assert (decision.action, decision.command_id) == (Action.STOP, "c1")
            assert "This run was stopped" in (decision.message or "")
        with pytest.raises(LoopwardenStopped) as stopped:
            run.raise_if_stopped()

    assert (stopped.value.command_id, stopped.value.status) == ("c1", "killed")
    assert ends(bench) == [("c0", "cancelled"), ("c1", "cancelled"), ("c2", "cancelled")]


def test_a_framework_that_catches_exceptions_does_not_catch_the_stop() -> None:
    """Tool wrappers hand the text of any `Exception` to the model as a result."""
    bench = GuardBench()

    def swallowing(run: RunGuard) -> str:
        try:
            run.raise_if_stopped()
        except Exception:  # noqa: BLE001 - what such wrappers do
            return "Error, try again"
        return "ok"

    def agent() -> None:
        with bench.guard.run("r-42") as run:
            assert swallowing(run) == "ok"
            stop(bench, run)
            swallowing(run)

    with pytest.raises(LoopwardenStopped):
        agent()
    assert end_status(bench) == "killed"


def test_a_stop_in_the_middle_of_a_batch_gives_every_call_an_end() -> None:
    """Three of eight are done, two run, three have not begun: a provider refuses a resume with calls left open."""
    #  a b c     done     d e   running     f g h   not begun
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        for call_id in "abcde":
            run.before_tool("t", {}, call_id)
        for call_id in "abc":
            run.after_tool(call_id, result="r")
        stop(bench, run)
        for call_id in "fgh":
            assert run.before_tool("t", {}, call_id).action is Action.STOP
        run.after_tool("d", result="late")

    outcomes = dict(ends(bench))
    assert outcomes == dict.fromkeys("abc", "ok") | dict.fromkeys("defgh", "cancelled")
    assert end_status(bench) == "killed"


def test_a_call_without_an_answer_is_reported_as_unknown() -> None:
    """A payment was sent: a later incarnation must not take it for undone."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("pay", {"amount": 5}, "c1", effect="write")
        stop(bench, run)

    end = next(step for step in published(bench) if isinstance(step, ToolEnd))
    assert end.outcome == "cancelled"
    assert end.error is not None
    assert "outcome unknown" in (end.error.message or "")


def test_tokens_of_a_model_call_under_way_still_count() -> None:
    """The answer is discarded; what it cost is not."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_model()
        stop(bench, run)
        run.after_model(usage={"input_tokens": 100, "output_tokens": 7})

    model_end = next(step for step in published(bench) if isinstance(step, ModelEnd))
    assert model_end.usage == Usage(100, 7)


def test_an_approval_after_the_stop_is_expired() -> None:
    """The person answers a minute late: the approved call is not made."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.approval_wait("c1")
        stop(bench, run)
        run.approval_end("c1", "approved")
        assert run.before_tool("pay", {}, "c1").action is Action.STOP

    assert [s.decision for s in published(bench) if isinstance(s, ApprovalEnd)] == ["expired"]


def test_a_framework_that_never_gives_up_does_not_fill_the_queue() -> None:
    """Refusals of a stopped run are reported up to a bound and then counted: other runs need the queue."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        stop(bench, run)
        for n in range(MAX_REPORTED_REFUSALS + 50):
            run.before_tool("t", {}, f"c{n}")

    assert len(ends(bench)) == MAX_REPORTED_REFUSALS
    assert bench.guard.stats()["calls_refused"] == MAX_REPORTED_REFUSALS + 50


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "completed"),
        (ValueError("x"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
        (LoopwardenStopped("a child was stopped"), "cancelled"),
    ],
)
def test_the_status_tells_how_the_run_ended(error: BaseException | None, status: str) -> None:
    """The caller's exception goes on its way; the detector learns the kind of the end."""
    bench = GuardBench()

    def body() -> None:
        with bench.guard.run("r-42"):
            if error is not None:
                raise error

    if error is None:
        body()
    else:
        with pytest.raises(type(error)):
            body()
    assert end_status(bench) == status


def test_finish_tells_what_leaving_the_context_cannot() -> None:
    """A loop that ends without an answer has not completed."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.finish("failed")

    assert end_status(bench) == "failed"


def test_nothing_follows_the_end() -> None:
    """A tool's thread that comes back late must not bring a dead run to life."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("t", {}, "c1")
    run.after_tool("c1", result="late")
    run.progress("still here")
    run.__exit__(None, None, None)

    assert end_status(bench) == "completed"
    assert bench.guard.stats()["late_events"] == 2


def test_a_limit_stops_the_run_without_kafka() -> None:
    """The limits a run was started with hold with the connection cut; the rest follows when it is back."""
    bench = GuardBench()
    bench.transport.is_down = True
    with bench.guard.run("r-42", limits=Limits(max_steps=2)) as run:
        assert run.before_tool("t", {}, "c1").allowed
        assert run.before_tool("t", {}, "c2").allowed
        decision = run.before_tool("t", {}, "c3")
        assert (decision.action, decision.reason) == (Action.STOP, "limit max_steps reached: 2 of 2")
        assert run.before_model().action is Action.STOP
    bench.pump()
    assert bench.transport.steps == []

    bench.transport.is_down = False
    steps = published(bench)
    assert end_status(bench) == "limit"
    assert [step.seq for step in steps] == list(range(len(steps)))
    assert ends(bench)[0] == ("c3", "cancelled")
    start = steps[0]
    assert isinstance(start, RunStart)
    assert start.limits == Limits(max_steps=2)


def test_children_draw_on_the_limits_of_their_tree() -> None:
    """A child's library brings its own generous default; the root's limit stops the tree."""
    bench = GuardBench()
    with bench.guard.run("r-42", limits=Limits(max_model_calls=3)) as root:
        with root.child("r-43", limits=Limits(max_model_calls=50)) as child:
            assert child.before_model().allowed
            assert root.before_model().allowed
        with bench.guard.run("r-44", parent=root.key) as other:
            assert other.before_model().allowed
            assert other.before_model().action is Action.STOP
            assert root.before_model().action is Action.STOP
    assert end_status(bench) == "limit"


def test_a_childs_own_limit_does_not_stop_its_parent() -> None:
    """The parent goes on and can report what it has."""
    bench = GuardBench()
    with bench.guard.run("r-42") as root:
        with root.child("r-43", limits=Limits(max_steps=1)) as child:
            child.before_tool("t", {}, "c1")
            assert child.before_tool("t", {}, "c2").action is Action.STOP
        assert root.before_tool("t", {}, "c1").allowed


def test_a_child_knows_its_tree() -> None:
    """The whole tree lands in one partition, and its budgets add up in one place."""
    bench = GuardBench()
    with bench.guard.run("r-42") as root, root.child("r-43") as child, child.child("r-44") as grandchild:
        key = grandchild.key

    assert (key.root_run_id, key.parent_run_id) == ("r-42", "r-43")
    assert key.ancestors == (("r-42", root.key.incarnation), ("r-43", child.key.incarnation))
    bench.pump()
    assert {record.key for record in bench.transport.records} == {b"acme|r-42"}


def test_waiting_for_a_person_does_not_use_up_the_time() -> None:
    """Approvals, and pauses, are not work."""
    bench = GuardBench()
    with bench.guard.run("r-42", limits=Limits(max_duration_ms=1_000)) as run:
        run.approval_wait("c1")
        run.approval_wait("c2")
        bench.clock.advance(3_600_000)
        run.approval_end("c1", "approved")
        bench.clock.advance(3_600_000)
        run.approval_end("c2", "approved")
        assert run.before_model().allowed
        bench.clock.advance(1_000)
        assert run.before_model().action is Action.STOP


def test_a_call_that_others_refused_is_reported_without_a_start() -> None:
    """Guardrails reject before our hook is reached; the refusal must count all the same."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.after_tool("c1", outcome="denied", tool="search", args={"q": 1}, error="not allowed")
        run.after_tool("c2")
    steps = [step for step in published(bench) if isinstance(step, ToolEnd)]

    assert [(step.tool, step.outcome) for step in steps] == [("search", "denied"), ("unknown", "ok")]
    assert steps[0].args_hash is not None
    assert bench.guard.stats()["unpaired_calls"] == 1


@pytest.mark.parametrize(
    ("error", "kind", "message", "status"),
    [
        (TimeoutError("30 s"), "TimeoutError", "30 s", None),
        ("no such file", None, "no such file", None),
        ({"class": "HTTPError", "message": "gone", "status": 410}, "HTTPError", "gone", 410),
    ],
)
def test_errors_keep_what_tells_them_apart(error: Any, kind: str | None, message: str, status: int | None) -> None:
    """Class, message and status are the signature by which equal failures are counted."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("t", {}, "c1")
        run.after_tool("c1", outcome="error", error=error)

    end = next(step for step in published(bench) if isinstance(step, ToolEnd))
    assert end.error is not None
    assert (end.error.error_class, end.error.message, end.error.status) == (kind, message, status)


def test_a_declared_effect_is_used_and_can_be_overruled() -> None:
    """Effects matter more than any threshold; the call knows best."""

    @tool(name="lookup_in_test", effect="read")
    def lookup() -> None: ...

    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("lookup_in_test", {}, "c1")
        run.before_tool("lookup_in_test", {}, "c2", effect="poll")
        run.before_tool("never_declared", {}, "c3")

    assert [s.effect for s in published(bench) if isinstance(s, ToolStart)] == ["read", "poll", "unknown"]


def test_ids_and_names_beyond_the_contract_are_fitted() -> None:
    """A long id must not cost the event, and two long ids must stay two."""
    bench = GuardBench()
    with bench.guard.run("r" * 500, agent="a" * 500) as run:
        run.before_tool("t" * 500, {}, "c" * 500 + "1")
        run.before_tool("t" * 500, {}, "c" * 500 + "2")
        run.after_tool("c" * 500 + "1", result=1)
        run.after_tool("c" * 500 + "2", result=2)

    assert "events_invalid" not in bench.guard.stats()
    assert len({call_id for call_id, _ in ends(bench)}) == 2
    assert {outcome for _, outcome in ends(bench)} == {"ok"}


@pytest.mark.parametrize("call", ["before_tool", "after_tool", "after_model", "progress"])
def test_nothing_of_ours_raises_into_the_agent(call: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever an adapter hands over, and whatever fails in us, the agent goes on."""
    bench = GuardBench()
    nonsense: dict[str, Any] = {
        "before_tool": lambda run: run.before_tool(None, {}, "c1"),
        "after_tool": lambda run: run.after_tool(None),
        "after_model": lambda run: run.after_model(usage=7),
        "progress": lambda run: run.progress(7),
    }
    with bench.guard.run("r-42") as run:
        for _ in range(3):
            answer = nonsense[call](run)
        if call == "before_tool":
            assert answer.allowed

    assert end_status(bench) == "completed"
    assert len(caplog.records) <= 1


def test_a_fault_while_stopped_does_not_open_the_gate() -> None:
    """Failing open is for faults of ours, not for runs that were stopped."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        stop(bench, run)
        nothing: Any = None

        assert run.before_tool(nothing, {}, nothing).action is Action.STOP


async def waits_for_resume(bench: GuardBench, run: RunGuard) -> Action:
    """Wait in a task, and lift the pause meanwhile."""
    waiting = asyncio.create_task(run.wait_if_paused())
    await asyncio.sleep(0)
    bench.transport.command(resume(run.key, command_id="s1", seq=101))
    bench.pump()
    return (await waiting).action


def test_a_paused_run_waits_without_blocking_the_loop() -> None:
    """Other runs share the event loop."""
    bench = GuardBench()

    async def agent() -> Action:
        async with bench.guard.run("r-42") as run:
            assert (await run.wait_if_paused()).allowed
            bench.transport.command(pause(run.key, command_id="p1"))
            bench.pump()
            return await waits_for_resume(bench, run)

    assert asyncio.run(agent()) is Action.ALLOW


def test_waiting_ends_with_the_stop_and_with_its_bound() -> None:
    """A pause that nobody lifts must not hang a worker for ever."""
    bench = GuardBench(max_pause_s=0.001)
    with bench.guard.run("r-42") as run:
        assert run.wait_if_paused_sync().allowed
        bench.transport.command(pause(run.key, command_id="p1"))
        bench.pump()
        assert run.wait_if_paused_sync().action is Action.PAUSE
        bench.transport.command(kill(run.key, command_id="k1", seq=101))
        bench.pump()
        assert run.wait_if_paused_sync(timeout_s=60.0).action is Action.STOP


def test_a_call_that_is_out_when_the_pause_comes_keeps_its_result() -> None:
    """Resuming goes on from it without making the call again."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("t", {}, "c1")
        bench.transport.command(pause(run.key, command_id="p1"))
        bench.pump()
        run.after_tool("c1", result="kept")

    assert ends(bench) == [("c1", "ok")]
