"""Commands that land, on Kafka: what goes out once more, what is alarmed, what a run's record says in the end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests._support.fleet import GAP_MS, Event, looping, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, ack_of, wait_until

# The shortest times that a policy may ask for.
QUICK = "ladder: {receive_timeout_ms: 1000, confirm_timeout_ms: 1000, kill_grace_ms: 0}\n"


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def quick(kafka: ApacheKafka, directory: Path, policy: str = QUICK, **settings: Any) -> Deployment:
    """Return a deployment that waits for answers as shortly as it may, and acts on what it reads."""
    return Deployment(kafka.bootstrap, directory, policy=policy, mode="enforce", **{"max_action_age_ms": 0, **settings})


def loop(run_id: str = "r1", laps: int = 12) -> list[Event]:
    """Return a run that loops until now."""
    return looping(run_id, laps, start_ms=now_ms() - (laps + 1) * GAP_MS)


def kills(deployment: Deployment) -> list[Event]:
    """Return the kills that went out."""
    return [command for command in deployment.messages("control.commands") if command["type"] == "kill_run"]


def alarms(deployment: Deployment) -> list[Event]:
    """Return what was said of orders that do not land."""
    return [verdict for verdict in deployment.messages("verdicts") if verdict["detector"] == "landing"]


def states(deployment: Deployment, run_id: str = "r1") -> list[str]:
    """Return what the record of a run has said, in order."""
    found = deployment.messages("control.state")
    return [record["state"] for record in found if record["key"] == f"acme|run|{run_id}"]


def test_what_nobody_answers_goes_out_once_more_then_a_person_is_told(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """The same command with the same end of its life; also over a crash no third, and no second alarm under an id."""
    with quick(apache_kafka, tmp_path) as deployment:
        first = deployment.start(instance="one").ready()
        deployment.write(records(loop(), deployment.partitions))
        told = wait_until(lambda: alarms(deployment), "the alarm", context=deployment.logs)

        sent = kills(deployment)
        same = ("command_id", "expires_at_ms", "issued_at_ms", "run_id", "incarnation", "scope", "grace_ms")
        assert len(sent) == 2
        assert [sent[0].get(field) for field in same] == [sent[1].get(field) for field in same]
        assert [(verdict["pattern"], verdict["run_id"]) for verdict in told] == [("order_unanswered", "r1")]
        assert first.metric("loopwarden_command_alarms_total", reason="unanswered") == 1
        assert first.metric("loopwarden_commands_resent_total") == 1
        assert set(states(deployment)) == {"kill_wanted"}

        deployment.wait_applied()
        first.kill()
        second = deployment.start(instance="one").ready()
        wait_until(lambda: second.metric("loopwarden_commands_open", state="sent"), "the kill to be waited for")
        assert len({verdict["verdict_id"] for verdict in alarms(deployment)}) == 1
        assert {kill["command_id"] for kill in kills(deployment)} == {sent[0]["command_id"]}


def test_a_kill_that_is_not_confirmed_is_told_and_a_confirmed_one_is_counted(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """`applied` is never shown as stopped."""
    with quick(apache_kafka, tmp_path) as deployment:
        worker = deployment.start().ready()
        paid = [
            {**event, "cost_usd": 0.01} if event["type"] == "tool_end" else event
            for event in (*loop("r1"), *loop("r2"))
        ]
        deployment.write(records(paid, deployment.partitions))
        deployment.wait_applied()
        by_run = {kill["run_id"]: kill for kill in kills(deployment)}
        said = {"r1": ("received", "applied"), "r2": ("received", "applied", "confirmed_dead")}
        answers = [ack_of(deployment, by_run[run_id], status) for run_id, all_of in said.items() for status in all_of]
        deployment.write(answers, topic="acks")

        (told,) = wait_until(lambda: alarms(deployment), "the alarm", context=deployment.logs)
        assert (told["pattern"], told["run_id"]) == ("kill_unconfirmed", "r1")
        assert worker.metric("loopwarden_kills_confirmed_total") == 1
        assert 0 < worker.metric("loopwarden_saved_cost_usd_total") <= 6, "two runs, three dollars each at most"
        deployment.write([ack_of(deployment, by_run["r1"], "confirmed_dead")], topic="acks")
        wait_until(lambda: worker.metric("loopwarden_kills_confirmed_total") == 2, "the end to be counted")


def test_a_step_after_the_kill_is_answered_once_and_the_record_stays_in_force(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """The run and all below it, in any incarnation; `killed` must not become a wish that expires."""
    with quick(apache_kafka, tmp_path) as deployment:
        worker = deployment.start().ready()
        events = loop()
        deployment.write(records(events, deployment.partitions))
        deployment.wait_applied()
        (kill,) = kills(deployment)
        deployment.write([ack_of(deployment, kill, "received"), ack_of(deployment, kill, "applied")], topic="acks")
        deployment.wait_applied()
        late = {**events[-1], "args": {"query": "another"}, "duration_ms": 1}
        last = events[-1]["seq"]
        later = [{**late, "seq": last + n, "ts_ms": now_ms() + 5_000 + n, "call_id": f"late-{n}"} for n in range(1, 4)]
        deployment.write(records(later, deployment.partitions))
        deployment.wait_applied()

        first, wider = kills(deployment)
        assert first["command_id"] == kill["command_id"]
        assert (wider["scope"], wider.get("incarnation", "*"), wider["run_id"]) == ("tree", "*", "r1")
        assert states(deployment) == ["kill_wanted", "killed", "killed"]
        assert [told["pattern"] for told in alarms(deployment)] == ["step_after_kill"]
        wait_until(lambda: worker.metric("loopwarden_steps_after_kill_total", tenant="acme") == 3, "the count")

        # A gate that is shut has nothing to do: nobody is asked again.
        deployment.write([ack_of(deployment, wider, "noop")], topic="acks")
        deployment.wait_applied()
        assert len(kills(deployment)) == 2


def test_the_record_of_a_run_that_completed_first_is_withdrawn(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The next run of the conversation is not touched."""
    with quick(apache_kafka, tmp_path) as deployment:
        worker = deployment.start().ready()
        events = loop()
        end = {name: events[-1][name] for name in ("v", "tenant", "run_id", "incarnation")}
        end |= {"type": "run_end", "status": "completed", "seq": events[-1]["seq"] + 1, "ts_ms": now_ms()}
        deployment.write(records([*events, end], deployment.partitions))
        deployment.wait_applied()
        (kill,) = kills(deployment)
        deployment.write([ack_of(deployment, kill, "noop")], topic="acks")
        deployment.wait_applied()

        assert states(deployment) == ["kill_wanted", "open"]
        found = [record for record in deployment.messages("control.state") if record["key"] == "acme|run|r1"]
        # Equal for two records of one chunk: there the later one binds.
        assert found[0]["version"] <= found[1]["version"]
        assert worker.metric("loopwarden_command_alarms_total") == 0


def test_records_that_bind_nothing_any_more_are_deleted(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A compacted topic keeps the last word of every run that ever was ordered anything; `killed` stays."""
    policy = QUICK.replace("kill_grace_ms: 0", "kill_grace_ms: 0, command_ttl_ms: 2000")
    with quick(apache_kafka, tmp_path, policy, run_record_ttl_ms=500) as deployment:
        deployment.start().ready()
        deployment.write(records([*loop("dead"), *loop("lost")], deployment.partitions))
        deployment.wait_applied()
        by_run = {kill["run_id"]: kill for kill in kills(deployment)}
        deployment.write([ack_of(deployment, by_run["dead"], "applied")], topic="acks")

        def deleted() -> set[bytes | None]:
            return {record.key for record in deployment.read("control.state") if record.value is None}

        wait_until(deleted, "the record to be deleted", context=deployment.logs)
        assert deleted() == {b"acme|run|lost"}
        assert states(deployment, "dead")[-1] == "killed"


def test_kills_beyond_the_blast_radius_are_kept_back_also_after_a_crash(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """Verdicts are said as before. A worker that is started anew does not begin at nothing."""
    policy = "blast_radius: {kills_per_min: 2, killed_percent: 100}\n"
    with quick(apache_kafka, tmp_path, policy) as deployment:
        first = deployment.start(instance="one").ready()
        runs = {f"r{number}": loop(f"r{number}") for number in range(6)}
        deployment.write(records([event for run in runs.values() for event in run], deployment.partitions))
        deployment.wait_applied()

        sent = {kill["run_id"] for kill in kills(deployment)}
        assert len(sent) == 2
        said = {verdict["run_id"] for verdict in deployment.messages("verdicts") if verdict["level"] == "kill"}
        assert said == set(runs)
        assert first.metric("loopwarden_commands_suppressed_total", reason="kill_budget") >= 4
        wait_until(lambda: first.metric("loopwarden_commands_open", state="withheld") == 4, "the kept ones to be shown")
        assert {state for run_id in runs.keys() - sent for state in states(deployment, run_id)} <= {"open"}

        first.kill()
        second = deployment.start(instance="one").ready()
        more = [{**run[-1], "seq": run[-1]["seq"] + 1, "ts_ms": now_ms(), "call_id": "again"} for run in runs.values()]
        deployment.write(records(more, deployment.partitions))
        deployment.wait_applied()
        assert second.metric("loopwarden_commands_suppressed_total", reason="kill_budget") == 4
        assert {kill["run_id"] for kill in kills(deployment)} == sent


def test_a_loop_that_outlives_a_backlog_gets_the_rung_that_is_due(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The worker was away for four hours: what is old is said in shadow, and the first fresh lap brings a nudge."""
    with quick(apache_kafka, tmp_path, max_action_age_ms=60_000) as deployment:
        deployment.start().ready()
        old = looping("r1", 20, start_ms=now_ms() - 4 * 3_600_000)
        deployment.write(records(old, deployment.partitions))
        deployment.wait_applied()
        assert deployment.messages("control.commands") == []
        assert {verdict["mode"] for verdict in deployment.messages("verdicts")} == {"shadow"}

        fresh = {**old[-1], "seq": old[-1]["seq"] + 1, "ts_ms": now_ms(), "call_id": "fresh"}
        deployment.write(records([fresh], deployment.partitions))
        deployment.wait_applied()
        assert [command["type"] for command in deployment.messages("control.commands")] == ["nudge"]
