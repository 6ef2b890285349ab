"""What people on call type, on Apache Kafka, with a worker and a runtime that hosts the runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests._support.kafka import ApacheKafka, OutRecord
from tests._support.keys import DETECTOR, OPERATOR, ring
from tests._support.operators import TENANT, Agent, answers, guard_of, told, wait_listed
from tests._support.workers import Deployment, wait_until

from loopwarden import Guard
from loopwarden.testing import kill, resume, run_record
from loopwarden_models.codec import encode
from loopwarden_models.commands import Command
from loopwarden_models.ids import control_partition

WHY = ("--why", "writes to the wrong account", "--who", "kim")


@pytest.fixture(scope="module")
def deployment(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One worker for all tests of the module; each has runs of its own."""
    with Deployment(apache_kafka.bootstrap, tmp_path_factory.mktemp("operators"), mode="enforce") as made:
        made.start().ready()
        yield made


@pytest.fixture(scope="module")
def guard(deployment: Deployment) -> Iterator[Guard]:
    """The runtime that hosts the runs of all tests."""
    made = guard_of(deployment)
    assert made.start(barrier_s=30.0)
    yield made
    made.close(flush_s=30.0)


def actions(deployment: Deployment, **fields: Any) -> list[dict[str, Any]]:
    """Return the audit records with these fields."""
    said = [record for record in deployment.messages("verdicts") if record.get("type") == "operator_action"]
    return [record for record in said if fields.items() <= record.items()]


def record_of(deployment: Deployment, run_id: str) -> list[tuple[str, str]]:
    """Return state and writer of all that was written of a run, in order."""
    key = f"{TENANT}|run|{run_id}"
    return [
        (said["state"], said.get("writer", "detector"))
        for said in deployment.messages("control.state")
        if said["key"] == key
    ]


def order(deployment: Deployment, command: Command) -> None:
    """Send a command of the detector."""
    partition = control_partition(TENANT, deployment.settings().control_partitions)
    record = OutRecord(partition, f"{TENANT}|{command.run_id}".encode(), encode(command))
    deployment.write([record], topic="control.commands")


def now_ms() -> int:
    """Return Unix milliseconds."""
    return time.time_ns() // 1_000_000


def test_a_kill_lands_is_audited_and_holds_until_it_is_released(deployment: Deployment, guard: Guard) -> None:
    """The whole life of a person's order: gate, code, record, the next start, and the release."""
    with Agent(guard, "r-kill").begun() as agent:
        row = wait_listed(deployment, "r-kill")
        assert (row["tenant"], row["agent"], row["status"], row["bound_by"]) == (TENANT, "clerk", "live", [])
        assert row["steps"] > 0

        events = told(deployment, "run", "kill", TENANT, "r-kill", *WHY)

        assert agent.wait_ended() == "stopped"
    assert [event["event"] for event in events] == ["ordered", "answer", "answer", "answer", "outcome"]
    assert answers(events) == ["received", "applied", "confirmed_dead"]
    assert events[-1]["outcome"] == "confirmed"
    assert record_of(deployment, "r-kill") == [("kill_wanted", "operator"), ("killed", "operator")]
    (action,) = actions(deployment, run_id="r-kill")
    assert (action["action"], action["who"], action["why"]) == ("kill_run", "kim", "writes to the wrong account")
    assert action["action_id"] == events[0]["command_id"]

    with Agent(guard, "r-kill") as again:
        assert again.wait_ended() == "refused"
    released = told(deployment, "run", "resume", TENANT, "r-kill", *WHY)
    assert released[-1]["outcome"] == "confirmed"
    with Agent(guard, "r-kill").begun() as again:
        again.is_done.set()
        assert again.wait_ended() == "completed"

    (story,) = told(deployment, "run", "show", TENANT, "r-kill")
    assert [one["action"] for one in story["actions"]] == ["kill_run", "resume_run"]
    assert {one["status"] for one in story["acks"]} >= {"received", "applied", "confirmed_dead"}
    assert (story["record"]["state"], story["record"]["writer"]) == ("released", "operator")


def test_a_pause_holds_the_run_and_only_a_person_lifts_it(deployment: Deployment, guard: Guard) -> None:
    """Lifecycle 25: the detector sees its loop dissolve and resumes; what a person ordered stays."""
    with Agent(guard, "r-pause").begun() as agent:
        wait_listed(deployment, "r-pause")
        assert answers(told(deployment, "run", "pause", TENANT, "r-pause", *WHY)) == ["received", "applied"]
        made = agent.calls
        order(deployment, resume("r-pause", command_id="d1", seq=5, writer="detector", issued_at_ms=now_ms()))
        wait_until(
            lambda: [ack for ack in deployment.messages("acks") if ack["command_id"] == "d1"], "the detector's answer"
        )
        assert wait_listed(deployment, "r-pause", "--state", "paused")["bound_by"] == [
            "paused by operator: writes to the wrong account (kim)"
        ]
        assert agent.calls == made

        assert answers(told(deployment, "run", "resume", TENANT, "r-pause")) == ["received", "applied"]
        wait_until(lambda: agent.calls > made, "the run to go on")
    assert [ack["status"] for ack in deployment.messages("acks") if ack["command_id"] == "d1"] == ["noop"]


def test_two_kills_with_one_aim_end_the_run_once(deployment: Deployment, guard: Guard) -> None:
    """Lifecycle 15: the first is applied, the second is a noop, both are answered, and there is one end."""
    with Agent(guard, "r-twice").begun() as agent:
        wait_listed(deployment, "r-twice")
        order(deployment, kill("r-twice", command_id="d2", seq=5, issued_at_ms=now_ms()))
        assert agent.wait_ended() == "stopped"

        events = told(deployment, "run", "kill", TENANT, "r-twice", *WHY)

    assert answers(events) == ["noop"]
    assert events[-1]["outcome"] == "nothing_to_do"
    wait_until(
        lambda: [
            step for step in deployment.messages("steps") if step["run_id"] == "r-twice" and step["type"] == "run_end"
        ],
        "the end of the run",
    )
    ends = [step for step in deployment.messages("steps") if step["run_id"] == "r-twice" and step["type"] == "run_end"]
    assert [(end["status"], end["command_id"]) for end in ends] == [("killed", "d2")]


def test_a_run_is_killed_before_it_begins(deployment: Deployment, guard: Guard) -> None:
    """Lifecycle 19: it waits in a queue; the record is there before its first step, and its runtime confirms."""
    events = told(deployment, "run", "kill", TENANT, "r-queued", "--wait", "0", *WHY)
    life_ms = events[0]["expires_at_ms"] - events[0]["issued_at_ms"]

    with Agent(guard, "r-queued") as agent:
        assert agent.wait_ended() == "refused"
    wait_until(
        lambda: (
            [
                ack["status"]
                for ack in deployment.messages("acks")
                if ack["command_id"] == events[0]["command_id"] and ack["status"] != "noop"
            ]
            == ["received", "applied", "confirmed_dead"]
        ),
        "the answers of a run that was not started",
    )
    assert life_ms == 6 * 3_600_000


def test_nobody_answers_for_a_run_that_nobody_hosts(deployment: Deployment) -> None:
    """A script must not take silence for success."""
    done = deployment.command("run", "kill", TENANT, "r-nowhere", "--wait", "1", *WHY)

    assert done.returncode == 1
    assert "no runtime answered; the order stands until" in done.stdout


def test_with_enforcement_off_a_kill_is_a_noop(deployment: Deployment, guard: Guard) -> None:
    """Lifecycle 73: the big switch lets agents go on whatever is ordered, and says so to whoever orders."""
    with Agent(guard, "r-switch").begun() as agent:
        wait_listed(deployment, "r-switch")
        (off,) = told(deployment, "enforcement", "off", *WHY)
        try:
            wait_until(lambda: guard.stats()["enforcing"] == 0, "the runtime to know")
            events = told(deployment, "run", "kill", TENANT, "r-switch", *WHY, status=1)
            made = agent.calls
            wait_until(lambda: agent.calls > made, "the run to go on")
            wait_until(lambda: deployment.workers[0].metric("loopwarden_enforcing") == 0, "the gauge")
        finally:
            (on,) = told(deployment, "enforcement", "on", *WHY)
        assert answers(events) == ["noop"]
        assert (off["state"], off["why"]) == ("observe_only", "writes to the wrong account (kim)")
        (status,) = told(deployment, "enforcement", "status")
        assert status == on
        wait_until(lambda: guard.stats()["enforcing"] == 1, "the runtime to know")
        assert answers(told(deployment, "run", "kill", TENANT, "r-switch", *WHY))[-1] == "confirmed_dead"
    assert [one["state"] for one in actions(deployment, action="set_enforcement")] == ["observe_only", "enforce"]


def test_a_breaker_is_held_listed_and_given_back(deployment: Deployment, guard: Guard) -> None:
    """Forced states are records of a person, refuse calls in the runtime, and are audited with who and why."""
    with guard.run("r-tool") as run:
        for action in ("open", "disable", "observe", "close"):
            (row,) = told(deployment, "breakers", action, TENANT, "search", *WHY)
            assert (row["writer"], row["why"]) == ("operator", "writes to the wrong account (kim)")
            is_open = action == "open"
            wait_until(
                lambda is_open=is_open: run.before_tool("search", {}, "c").allowed != is_open,  # type: ignore[misc]  # mypy does not infer a lambda with a default
                f"{action} to bind",
            )

    (row,) = told(deployment, "breakers", "list", "--tenant", TENANT)
    assert (row["tool"], row["state"], row["is_held"]) == ("search", "closed", False)
    records = [said for said in deployment.messages("control.state") if said["key"] == f"{TENANT}|breaker|search"]
    assert [said["state"] for said in records] == ["forced_open", "disabled", "observe_only", "closed"]
    assert sorted(said["version"] for said in records) == [said["version"] for said in records]
    audited = [(one["before"], one["state"]) for one in actions(deployment, tool="search") if "before" in one]
    assert audited == [("forced_open", "disabled"), ("disabled", "observe_only"), ("observe_only", "closed")]


def test_what_a_person_ordered_survives_a_record_of_the_detector(deployment: Deployment) -> None:
    """Lifecycle 21 and 25: both write one key, and compaction keeps the last record only."""
    told(deployment, "run", "pause", TENANT, "r-covered", "--wait", "0", *WHY)
    covers = run_record("r-covered", "open", version=(42, 9))
    number = control_partition(TENANT, deployment.settings().control_partitions)
    deployment.write([OutRecord(number, covers.key.encode(), encode(covers))], topic="control.state")

    wait_until(lambda: len(record_of(deployment, "r-covered")) == 3, "the worker to write it again")
    assert record_of(deployment, "r-covered")[0] == record_of(deployment, "r-covered")[2] == ("paused", "operator")
    told(deployment, "run", "resume", TENANT, "r-covered", "--wait", "0", *WHY)


def test_an_order_is_signed_where_runtimes_believe_nothing_else(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """With the person's own key: the detector's is refused under a person's word, and so is none."""
    own, detector = tmp_path / "operator-1.key", tmp_path / "detector-1.key"
    own.write_bytes(OPERATOR.to_pem())
    detector.write_bytes(DETECTOR.to_pem())
    own.chmod(0o600)
    detector.chmod(0o600)
    with Deployment(apache_kafka.bootstrap, tmp_path) as bare:  # no worker: nothing of this needs one
        strict = guard_of(bare, key_ring=ring())
        assert strict.start(barrier_s=30.0)
        with Agent(strict, "r-signed").begun() as agent:
            for flags in ((), ("--signing-key-file", str(detector))):
                refused = told(bare, "run", "kill", TENANT, "r-signed", "--wait", "5", *WHY, *flags, status=1)
                assert answers(refused) == ["failed"]
            events = told(bare, "run", "kill", TENANT, "r-signed", "--signing-key-file", str(own), *WHY)
            assert answers(events) == ["received", "applied", "confirmed_dead"]
            assert agent.wait_ended() == "stopped"
        strict.close(flush_s=30.0)


def test_a_wrong_word_costs_nothing(deployment: Deployment) -> None:
    """Usage errors write no record, name the argument, and have a status of their own."""
    before = len(deployment.read("control.state"))

    no_why = deployment.command("run", "kill", TENANT, "r-1")
    bad_tenant = deployment.command("run", "kill", "ac|me", "r-1", *WHY)
    long_why = deployment.command("breakers", "open", TENANT, "search", "--why", "x" * 300)
    no_topic = deployment.command("runs", environ={"LOOPWARDEN_TOPIC_PREFIX": "elsewhere."})

    assert [done.returncode for done in (no_why, bad_tenant, long_why, no_topic)] == [2, 2, 2, 2]
    assert "--why" in no_why.stderr
    assert "tenant 'ac|me'" in bad_tenant.stderr
    assert "at most 256 fit" in long_why.stderr
    assert "elsewhere.control.state" in no_topic.stderr
    assert len(deployment.read("control.state")) == before
