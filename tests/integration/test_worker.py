"""One `loopwarden worker` as an operator sees it: starts, judges, answers for its health, and stops."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests._support.fleet import GAP_MS, Event, differences, fleet, heard, judged, looping, records
from tests._support.kafka import ApacheKafka, EmbeddedKafka
from tests._support.workers import Deployment, ack_of, wait_until

from loopwarden_models.policy import Policy
from loopwarden_streams import cli
from loopwarden_streams.embedded_broker import free_port

ENFORCE = Policy(mode="enforce")


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def judged_by_worker(deployment: Deployment, events: list[Event]) -> str:
    """Write events, wait until they are applied, and return what differs from the detectors in this process."""
    deployment.write(records(events, deployment.partitions))
    deployment.wait_applied()
    said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
    return differences(judged(events, ENFORCE), said)


def test_a_fleet_is_judged_as_in_one_process(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The property that everything leans on: the same events, the same verdicts and commands, wherever they run."""
    events = [event for run in fleet(60, seed=1) for event in run]

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start().ready()

        assert judged_by_worker(deployment, events) == ""
        wait_until(lambda: worker.metric("loopwarden_steps_consumed_total") == len(events), "the steps to be counted")
        assert worker.stop() == 0


def test_the_embedded_broker_is_enough_for_a_demonstration(tmp_path: Path) -> None:
    """`loopwarden demo` needs Python and nothing else, so a worker starts, judges and stops on the wheel's broker."""
    events = looping("r1", 12, start_ms=now_ms() - 13 * GAP_MS)

    with (
        EmbeddedKafka() as broker,
        Deployment(broker.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment,
    ):
        worker = deployment.start().ready()

        assert judged_by_worker(deployment, events) == ""
        assert worker.stop() == 0


def test_a_kill_is_ordered_with_its_run_record_and_fence(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A kill is an edge for who listens now and a level for who takes the run up later; both carry the epoch."""
    events = looping("r1", 12, start_ms=now_ms() - 13 * GAP_MS)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        deployment.start().ready()
        deployment.write(records(events, deployment.partitions))
        deployment.wait_applied()

        (kill,) = [command for command in deployment.messages("control.commands") if command["type"] == "kill_run"]
        state = {record["key"]: record for record in deployment.messages("control.state")}
        partition = deployment.partition_of(b"acme|r1")
        assert state["acme|run|r1"]["state"] == "kill_wanted"
        assert state["acme|run|r1"]["command_id"] == kill["command_id"]
        assert state[f"*|fence|{partition}"]["epoch"] == kill["epoch"]
        # The first of the equal calls, and the step that decided; `seq` is the offset of that.
        offsets = [1, kill["seq"]]
        assert kill["evidence"] == {"topic": deployment.topic("steps"), "partition": partition, "offsets": offsets}


def test_an_applied_kill_becomes_a_record_that_outlives_the_run(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """`killed` binds every later incarnation until a person releases it: the runtime's answer makes it so."""
    events = looping("r1", 12, start_ms=now_ms() - 13 * GAP_MS)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start().ready()
        deployment.write(records(events, deployment.partitions))
        deployment.wait_applied()
        (kill,) = [command for command in deployment.messages("control.commands") if command["type"] == "kill_run"]

        deployment.write([ack_of(deployment, kill, "received"), ack_of(deployment, kill, "applied")], topic="acks")
        deployment.wait_applied()

        states = [record["state"] for record in deployment.messages("control.state") if "run|r1" in record["key"]]
        assert states == ["kill_wanted", "killed"]
        assert worker.metric("loopwarden_command_acks_total", status="applied") == 1


def test_a_nudge_that_did_not_help_blocks_the_tool_for_the_run(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Level break is state: whoever takes the run up reads which of its tools are shut, and until when."""
    events = looping("r1", 7, start_ms=now_ms() - 9 * GAP_MS)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        deployment.start().ready()
        deployment.write(records(events[:4], deployment.partitions))
        deployment.wait_applied()
        (nudge,) = deployment.messages("control.commands")
        deployment.write([ack_of(deployment, nudge, "received"), ack_of(deployment, nudge, "applied")], topic="acks")
        deployment.wait_applied()
        deployment.write(records(events[4:], deployment.partitions))
        deployment.wait_applied()

        record = {record["key"]: record for record in deployment.messages("control.state")}["acme|run|r1"]
        broken = [verdict for verdict in deployment.messages("verdicts") if verdict["level"] == "break"]
        assert record["state"] == "open"
        (blocked,) = record["blocked_tools"]
        assert blocked["tool"] == events[1]["tool"]
        assert blocked["verdict_id"] in {verdict["verdict_id"] for verdict in broken}
        assert blocked["until_ms"] - now_ms() > 0


def test_sigterm_leaves_a_checkpoint(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A rolling deployment replays nothing: what was read is saved and committed before the process ends."""
    events = [event for run in fleet(40, seed=2) for event in run]

    # No checkpoint by the clock, so that what is committed at the end was committed by the stop.
    with Deployment(
        apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, checkpoint_ms=600_000
    ) as deployment:
        first = deployment.start().ready()
        deployment.write(records(events, deployment.partitions))
        wait_until(
            lambda: first.metric("loopwarden_steps_consumed_total") == len(events), "all steps", context=first.log
        )
        assert first.stop() == 0, first.log()
        assert deployment.committed() == deployment.ends()

        second = deployment.start().ready()
        last = looping("new", 2, start_ms=now_ms())
        deployment.write(records(last, deployment.partitions))
        wait_until(lambda: second.metric("loopwarden_steps_consumed_total") == len(last), "new steps")

        assert second.metric("loopwarden_events_replayed_total") == 0


def test_old_steps_are_judged_in_shadow(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A loop in last week's topic must not stop a run of today: what is old is said, and nothing is ordered."""
    events = looping("r1", 12, start_ms=now_ms() - 86_400_000)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce") as deployment:
        deployment.start().ready()
        deployment.write(records(events, deployment.partitions))
        deployment.wait_applied()

        assert {verdict["mode"] for verdict in deployment.messages("verdicts")} == {"shadow"}
        assert deployment.messages("control.commands") == []


def test_the_metrics_satisfy_promtool(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A page that Prometheus cannot read is no page; its own tool also knows the rules for names."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the path")

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start().ready()
        assert judged_by_worker(deployment, looping("r1", 12, start_ms=now_ms())) == ""
        page = worker.get("/metrics").body

    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_worker_is_not_ready_before_it_has_recovered(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Ready means that the partitions are served, not that a port is open: a rollout goes by it."""
    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        worker = deployment.start()
        answers: list[int] = []

        def look() -> bool:
            # The first answers come before any partition is owned.
            answer = worker.get("/readyz")
            if answer.status:
                answers.append(answer.status)
                assert (answer.status == 200) == (len(answer.json()["partitions"]) == deployment.partitions)
            return answer.status == 200

        wait_until(look, "the worker to be ready", context=worker.log)

        assert answers[0] == 503
        assert worker.get("/livez").status == 200


def test_a_worker_that_is_stopped_while_it_starts_ends_in_good_order(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A recovery may take long, and whoever rolls back a deployment does not wait for it."""
    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        worker = deployment.start()
        wait_until(lambda: worker.get("/livez").status, "the worker to answer", context=worker.log)

        assert worker.stop() == 0, worker.log()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LOOPWARDEN_PARTITIONS": "many"}, "LOOPWARDEN_PARTITIONS = 'many' is not an integer"),
        ({"LOOPWARDEN_MODE": "kill"}, "mode = 'kill' is not one of policy, off, shadow, warn, enforce"),
        (
            {"LOOPWARDEN_CHECKPOINT": "5"},
            "LOOPWARDEN_CHECKPOINT is not a setting; did you mean LOOPWARDEN_CHECKPOINT_MS?",
        ),
        ({"LOOPWARDEN_BROKERS": "kafka"}, "brokers = 'kafka': 'kafka' is not host:port"),
        ({"LOOPWARDEN_POLICY": "/nowhere/policy.yaml"}, "policy file '/nowhere/policy.yaml': No such file"),
    ],
)
def test_a_wrong_setting_is_told_and_exits_with_2(
    environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An orchestrator must not start it again and again, and a person must see at once which setting it is."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert cli.main(["worker"]) == 2

    assert message in capsys.readouterr().err


def test_a_wrong_policy_is_told_and_exits_with_2(tmp_path: Path) -> None:
    """A threshold that can never fire must not be found out about in the night that it was meant for."""
    found = Deployment("127.0.0.1:1", tmp_path, policy="exact_repeat: {nudge: 9, kill: 8}").command("worker")

    assert found.returncode == 2
    assert "exact_repeat.observe, nudge, break_at, kill" in found.stderr
    assert "Traceback" not in found.stderr


def test_unreachable_brokers_are_told_and_exit_with_1(tmp_path: Path) -> None:
    """Not 2: the setting may be right and Kafka late, so an orchestrator should try again."""
    address = f"127.0.0.1:{free_port()}"

    found = Deployment(address, tmp_path).command("worker")

    assert found.returncode == 1
    assert f"cannot start on brokers {address}" in found.stderr
    assert "Traceback" not in found.stderr


def test_missing_topics_are_told_and_exit_with_1(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Faust passes over them: the worker would own nothing, see nothing, and call itself ready."""
    found = Deployment(apache_kafka.bootstrap, tmp_path).command("worker")

    assert found.returncode == 1
    assert "steps does not exist" in found.stderr
    assert "run `loopwarden topics`" in found.stderr
    assert "Traceback" not in found.stderr


def test_another_number_of_partitions_is_told_and_exits_with_1(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A worker that expects fewer would never own the rest; runs of those would be watched by nobody."""
    with Deployment(apache_kafka.bootstrap, tmp_path, partitions=4) as deployment:
        found = deployment.command("worker", environ={"LOOPWARDEN_PARTITIONS": "3"})

    assert found.returncode == 1
    assert f"{deployment.topic('steps')} has 4 partitions, expected 3" in found.stderr
    assert "Traceback" not in found.stderr
