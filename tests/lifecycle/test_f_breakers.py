"""Breakers: opened by what runs of two runtimes report, obeyed by all, and closed by their probes."""

from __future__ import annotations

import time
from functools import partial

from tests._support.hosts import LAP_S, PATIENCE_S, Host, RemoteRun
from tests._support.stage import Stage

AWAY = {"class": "HTTPError", "message": "upstream is away", "status": 503}


def fail(run: RemoteRun, number: int, tool: str = "flights") -> str:
    """Call a tool that is down, if it may be called; returns what was answered."""
    action = run.begin(tool, {"page": number}, call_id=f"f{number}")
    if action == "allow":
        run.end(f"f{number}", outcome="error", error=AWAY)
    return action


def test_57_58_probes_close_it_and_refusals_do_not_hold_it_open(
    stage: Stage, host: Host, other_host: Host, run_id: str
) -> None:
    """A tool is down and comes back: what runs try at the closed door in between counts neither way."""
    runs = [each.run(f"{run_id}-{n}", tenant="shaky") for n, each in enumerate(8 * (host, other_host))]
    for number in range(2):
        for run in runs:
            fail(run, number)
    opened = stage.until(lambda: stage.breakers("shaky", "flights"), "the breaker to open")[0]
    assert (opened["state"], opened["reason"]["detector"]) == ("open", "fleet_breaker")
    for run in runs[:2]:
        stage.until(partial(is_shut, run), "the first refusal")

    # The tool is up again; nobody stops trying.
    answers: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while stage.breakers("shaky", "flights")[-1]["state"] != "closed":
        answers += [run.call("flights", {"page": len(answers)}, f"page {len(answers)}") for run in runs]
        assert time.monotonic() < deadline, stage.breakers("shaky", "flights")
        time.sleep(LAP_S)
    stage.settle()

    states = list(dict.fromkeys(one["state"] for one in stage.breakers("shaky", "flights")))
    assert states == ["open", "half_open", "closed"]
    assert {"allow", "block"} <= set(answers)
    refused = [step for name in {run.key.run_id for run in runs} for step in stage.steps(name) if blocked(step)]
    assert len(refused) >= answers.count("block")
    assert stage.worker.metric("loopwarden_breaker_transitions_total", tenant="shaky", to="closed") == 1
    for run in runs:
        stage.until(partial(is_open, run), "the open door")
        run.leave()


def is_shut(run: RemoteRun) -> bool:
    """Return whether the tool is refused to a run."""
    return run.call("flights", {"page": "first"}, "the first page") == "block"


def is_open(run: RemoteRun) -> bool:
    """Return whether a run may call the tool."""
    return run.call("flights", {"page": "last"}, "the last page") == "allow"


def blocked(step: dict[str, object]) -> bool:
    """Return whether a step is a call that was refused by the breaker."""
    return step["type"] == "tool_end" and step.get("outcome") == "blocked"


def test_62_63_one_runs_trouble_and_one_tenants(stage: Stage, host: Host, run_id: str) -> None:
    """A run that fails alone is dealt with alone: the tool stays open for all others, of this tenant and of any."""
    troubled = host.run(run_id, tenant="steady")
    others = [host.run(f"{run_id}-{number}", tenant="steady") for number in range(5)]
    for number in range(30):
        fail(troubled, number)
    for run in others:
        assert run.call("flights", {"of": run.number}, f"flights of {run.number}") == "allow"
    stage.settle()

    assert stage.breakers("steady", "flights") == []
    assert {one["tenant"] for one in stage.verdicts("*") if one["detector"] == "fleet_breaker"} <= {"shaky"}
    assert {one["evidence"]["tools"][0] for one in stage.verdicts(run_id)} == {"flights"}
    for run in (troubled, *others):
        run.leave()
