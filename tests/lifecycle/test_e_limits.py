"""Limits: who counts what, what is given back, and what is told."""

from __future__ import annotations

import time

from tests._support.hosts import Host, RemoteRun
from tests._support.stage import Message, Stage


def over(stage: Stage, run_id: str) -> Message:
    """Wait for the verdict that a limit of a run is used up."""
    found: list[Message] = stage.until(
        lambda: [one for one in stage.verdicts(run_id) if one["detector"] == "budget" and one["level"] == "kill"],
        f"the verdict on {run_id}",
    )
    return found[0]


def work(run: RemoteRun, n: int) -> list[str]:
    """Make `n` different calls, and return what was answered."""
    return [run.call("fetch", {"page": f"{run.number}-{number}"}, f"page {number}") for number in range(n)]


def test_48_the_limit_is_announced(stage: Stage, host: Host, run_id: str) -> None:
    """Nobody has to guess why a run ended: which limit, how much of it, and not a success."""
    watched = host.run(f"{run_id}-policy", tenant="frugal")
    assert work(watched, 6) == ["allow"] * 6
    stage.settle()
    assert stage.commands(f"{run_id}-policy", "kill_run") == []
    work(watched, 1)
    stage.until(lambda: watched.is_stopped, "the kill")
    watched.leave()
    evidence = over(stage, f"{run_id}-policy")["evidence"]
    assert (evidence["limit"], evidence["used"], evidence["allowed"]) == ("max_steps", 7, 6)

    own = host.run(f"{run_id}-own", limits={"max_steps": 5})
    assert work(own, 6) == ["allow"] * 5 + ["stop"]
    own.leave()
    evidence = over(stage, f"{run_id}-own")["evidence"]
    assert (evidence["limit"], evidence["allowed"]) == ("max_steps", 5)
    stage.settle()
    assert stage.steps(f"{run_id}-policy")[-1]["status"] == "killed"
    assert stage.steps(f"{run_id}-own")[-1]["status"] == "limit"


def test_49_the_bill_comes_late(stage: Stage, host: Host, run_id: str) -> None:
    """Calls under way have a price that nobody knows yet: it is reserved, so that none is started on credit."""
    root = host.run(run_id, limits={"max_cost_usd": 1.5})
    children = [host.run(f"{run_id}-{name}", child_of=root) for name in "abcdefgh"]
    for child in children:
        child.prompt(cost_usd=0.125)

    # One dollar is spent: four more of the price that calls had up to now are what is left.
    answers = [child.tell("before_model")["action"] for child in children]
    assert answers == ["allow"] * 4 + ["stop"] * 4
    assert root.tell("before_model")["action"] == "stop"
    for child in children[:4]:
        child.tell("after_model", cost_usd=0.25)
    for run in (*children, root):
        run.leave()

    # They were dearer than those before. What is overspent is at most what was under way: half a dollar.
    evidence = over(stage, run_id)["evidence"]
    assert (evidence["limit"], evidence["allowed"]) == ("max_cost_usd", 1.5)
    stage.settle()
    spent = [step.get("cost_usd", 0.0) for name in "abcdefgh" for step in stage.steps(f"{run_id}-{name}")]
    assert sum(spent) == 2.0


def test_50_waiting_is_not_working_and_approval_is_no_gift(stage: Stage, host: Host, run_id: str) -> None:
    """The time in which a person thinks counts against nothing, and the answer gives nothing back."""
    run = host.run(run_id, attended=True, limits={"max_steps": 10, "max_duration_ms": 2_000})
    assert work(run, 8) == ["allow"] * 8
    run.tell("approval_wait", "pay-1")
    # Longer than the whole run may work.
    time.sleep(2.5)
    run.tell("approval_end", "pay-1", "approved")
    assert work(run, 3) == ["allow"] * 2 + ["stop"]
    run.leave()

    evidence = over(stage, run_id)["evidence"]
    stage.settle()
    assert evidence["limit"] == "max_steps"
    limits = {one["evidence"]["limit"] for one in stage.verdicts(run_id) if one["detector"] == "budget"}
    assert limits == {"max_steps"}
    assert stage.steps(run_id)[-1]["status"] == "limit"


def test_51_the_next_message(stage: Stage, host: Host, run_id: str) -> None:
    """What a person asks next is another piece of work, with an allowance of its own."""
    for message in ("first", "second"):
        run = host.run(f"{run_id}-{message}", limits={"max_steps": 8})
        assert work(run, 9) == ["allow"] * 8 + ["stop"]
        run.leave()
        stage.settle()
    ends = [stage.steps(f"{run_id}-{message}")[-1]["status"] for message in ("first", "second")]
    assert ends == ["limit", "limit"]


def test_52_a_limit_raised_by_a_person(stage: Stage, host: Host, run_id: str) -> None:
    """What was used stays used: raised from ten to fifteen means five more, and not fifteen."""
    first = host.run(run_id, limits={"max_steps": 10})
    assert work(first, 10) == ["allow"] * 10
    first.leave()
    stage.settle()
    second = host.run(run_id, limits={"max_steps": 15})
    assert work(second, 5) == ["allow"] * 5
    stage.settle()
    assert stage.commands(run_id, "kill_run") == []

    second.repeat(until=lambda: second.is_stopped, what="the kill")
    second.leave()
    evidence = over(stage, run_id)["evidence"]
    assert (evidence["limit"], evidence["used"], evidence["allowed"]) == ("max_steps", 16, 15)


def test_53_no_price(stage: Stage, host: Host, run_id: str) -> None:
    """A provider without prices is not free of charge: the limit in tokens holds."""
    run = host.run(run_id, tenant="unpriced", limits={"max_cost_usd": 1.0, "max_tokens": 1_000})
    for _ in range(4):
        assert run.tell("before_model")["action"] == "allow"
        run.tell("after_model", usage={"input_tokens": 200, "output_tokens": 50})
    assert run.tell("before_model")["action"] == "stop"
    run.leave()

    evidence = over(stage, run_id)["evidence"]
    assert (evidence["limit"], evidence["used"]) == ("max_tokens", 1_000)
    stage.settle()
    assert not any("cost_usd" in step for step in stage.steps(run_id))
    stage.until(
        lambda: stage.worker.metric("loopwarden_tokens_total", tenant="unpriced") == 1_000, "the tokens to be counted"
    )
    assert "unpriced" not in "".join(
        line for line in stage.worker.get("/metrics").body.splitlines() if "loopwarden_cost_usd_total" in line
    )


def test_54_not_while_a_call_is_out(stage: Stage, host: Host, run_id: str) -> None:
    """Forty minutes are silence for a run that hangs, and work for a call that said that it takes forty minutes."""
    patient = host.run(run_id, tenant="quiet")
    assert patient.begin("build", {"target": "all", "timeout_s": 2_400}, call_id="c1") == "allow"
    # One that says nothing of the kind, and was begun later: when it is asked for, both are.
    name = stage.beside(run_id, "quiet")
    hanging = host.run(name, tenant="quiet")
    assert hanging.begin("build", {"target": "all"}, call_id="c1") == "allow"

    stage.until(lambda: stage.verdicts(name), "the silence of the other run")
    stage.settle()
    assert stage.verdicts(run_id) == []
    for run in (patient, hanging):
        run.end("c1", result="built")
        run.leave()
