"""A worker with models of texts, on Apache Kafka: what it finds, what it says of itself, and that it can do without."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from tests._support.fleet import Event, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, Worker, wait_until

from loopwarden_streams.evaluate_cases import load

CASES = Path(__file__).parent / "cases" / "later"
GAP_MS = 5_000
LOAD_S = 180.0


def said_in(name: str, run_id: str) -> list[Event]:
    """Return the events of a case as those of a run that is under way now."""
    steps = load(CASES / name).steps
    start_ms = time.time_ns() // 1_000_000 - GAP_MS * len(steps)
    events: list[Event] = [msgspec.json.decode(msgspec.json.encode(step)) for step in steps]
    for k, event in enumerate(events):
        event |= {"run_id": run_id, "root_run_id": run_id, "ts_ms": start_ms + GAP_MS * k}
    return events


def up(worker: Worker, kind: str) -> bool:
    """Return whether a model is loaded."""
    return worker.metric("loopwarden_embedding_up", kind=kind) == 1


def model_process(worker: Worker) -> psutil.Process:
    """Return the process of the second model."""
    children = psutil.Process(worker.pid).children(recursive=True)
    [found] = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return found


def test_a_loop_in_other_words_is_found_confirmed_and_ended(
    apache_kafka: ApacheKafka, tmp_path: Path, static: str, transformer: str
) -> None:
    """From events on the broker to a kill; the verdicts name the models."""
    events = said_in("loop-en-grey-button-goes-on.yaml", "r1")

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start(semantic_model=static, semantic_confirm_model=transformer).ready()
        wait_until(
            lambda: up(worker, "static") and up(worker, "confirm"),
            "both models",
            timeout_s=LOAD_S,
            context=deployment.logs,
        )
        for event in events:
            # An agent takes seconds for a step: the second model has answered before the next one comes.
            deployment.write(records([event], deployment.partitions))
            time.sleep(0.25)
        deployment.wait_applied()
        verdicts = [one for one in deployment.messages("verdicts") if one["detector"] == "semantic_repeat"]

        assert {"nudge", "kill"} <= {verdict["level"] for verdict in verdicts}
        assert all("@" in verdict["model"] and "-int8@" in verdict["model"] for verdict in verdicts)
        assert worker.metric("loopwarden_embedding_texts_total", kind="static") > 0
        assert worker.metric("loopwarden_embedding_texts_total", kind="confirm") > 0
        child = model_process(worker)
        assert worker.stop() == 0
        wait_until(lambda: not child.is_running(), "the model's process to end")


def test_without_its_second_model_a_worker_advises_and_goes_on(
    apache_kafka: ApacheKafka, tmp_path: Path, static: str, transformer: str
) -> None:
    """The process of the model is killed: nothing is confirmed, so nothing ends, and everything else is judged."""
    events = said_in("loop-en-grey-button-goes-on.yaml", "r1")

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start(semantic_model=static, semantic_confirm_model=transformer).ready()
        wait_until(lambda: up(worker, "confirm"), "the second model", timeout_s=LOAD_S, context=deployment.logs)
        os.kill(model_process(worker).pid, signal.SIGKILL)
        deployment.write(records(events, deployment.partitions))
        deployment.wait_applied()
        levels = {one["level"] for one in deployment.messages("verdicts") if one["detector"] == "semantic_repeat"}

        assert "kill" not in levels
        wait_until(lambda: worker.metric("loopwarden_embedding_late_total", kind="down") > 0, "it to be counted")
        assert worker.stop() == 0


@pytest.mark.parametrize("model", ["/nowhere/at/all", ""])
def test_a_worker_without_a_model_judges_by_all_other_rules(
    model: str, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """A wrong path must not keep a fleet unguarded."""
    events = said_in("loop-en-grey-button-goes-on.yaml", "r1")

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", semantic_model=model) as deployment:
        worker = deployment.start().ready()
        deployment.write(records(events, deployment.partitions))
        deployment.wait_applied()

        wait_until(lambda: worker.metric("loopwarden_steps_consumed_total") == len(events), "the steps to be counted")
        assert not up(worker, "static")
        if model:
            wait_until(lambda: "rules over meaning are off" in deployment.logs(), "the log to say so", timeout_s=LOAD_S)
        assert worker.stop() == 0
