"""Policies as data, on Apache Kafka: a running worker follows the topic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests._support.fleet import GAP_MS, looping, records
from tests._support.kafka import ApacheKafka, OutRecord
from tests._support.operators import told
from tests._support.workers import Deployment, Worker, wait_until

WHY = ("--why", "too eager for this tenant", "--who", "kim")


def judged(deployment: Deployment, run_id: str) -> list[dict[str, Any]]:
    """Let a run loop five times, and return what is said of it."""
    start_ms = time.time_ns() // 1_000_000 - 6 * GAP_MS
    deployment.write(records(looping(run_id, 5, start_ms=start_ms), deployment.partitions))
    deployment.wait_applied()
    return [said for said in deployment.messages("verdicts") if said.get("run_id") == run_id]


def levels(verdicts: list[dict[str, Any]]) -> list[str]:
    """Return the levels of verdicts."""
    return [said["level"] for said in verdicts]


def versions(worker: Worker, tenant: str = "acme") -> str:
    """Return the part of the metrics that says what is in force for a tenant."""
    lines = worker.get("/metrics").body.splitlines()
    found = [line for line in lines if line.startswith("loopwarden_policy_in_force") and f'tenant="{tenant}"' in line]
    return "\n".join(found)


def test_a_change_reaches_a_running_worker_and_an_invalid_one_is_refused(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """Lifecycle 74, and the life of a document: written, followed, shown, refused, deleted, read again at a start."""
    file = tmp_path / "acme.yaml"
    file.write_text("version: acme-2\nmode: shadow\nexact_repeat: {observe: 4, nudge: 5, break_at: 6}\n")
    # The worker's file and the document make one policy together: the file is under it here, too.
    with Deployment(apache_kafka.bootstrap, tmp_path, policy="version: file-1\nmode: enforce\n") as deployment:
        under = ("--policy", deployment.environ["LOOPWARDEN_POLICY"])
        worker = deployment.start().ready()
        before = judged(deployment, "r-1")
        assert "nudge" in levels(before)
        assert {said["mode"] for said in before} == {"enforce"}
        assert {said["policy"].partition("@")[0] for said in before} == {"file-1"}

        (action,) = told(deployment, "policy", "set", "acme", str(file), *WHY, *under)
        wait_until(lambda: action["policy"] in versions(worker), "the worker to follow", context=worker.log)
        after = judged(deployment, "r-2")
        assert {said["evidence"]["count"] for said in after if said["level"] == "nudge"} == {5}
        assert {(said["mode"], said["policy"]) for said in after} == {("shadow", action["policy"])}
        assert action["policy"].startswith("acme-2@")
        listed = {row["key"]: row for row in told(deployment, "policy", "list", *under)}
        assert listed["acme"]["in_force"] == action["policy"]
        assert listed["acme"]["document"] == action["state"]

        bad = OutRecord(0, b"acme", b'{"version":"acme-3","exact_repeat":{"nudge":"five"}}')
        deployment.write([bad], topic="policies")
        wait_until(lambda: worker.metric("loopwarden_policies_refused") == 1, "the alarm", context=worker.log)
        still = judged(deployment, "r-3")
        assert {said["policy"] for said in still} == {action["policy"]}
        assert "exact_repeat.nudge = 'five'" in worker.log()

        # Before compaction a new worker finds the one before it as well.
        assert worker.stop() == 0
        worker = deployment.start().ready()
        assert action["policy"] in versions(worker)
        assert worker.metric("loopwarden_policies_refused") == 1

        (gone,) = told(deployment, "policy", "unset", "acme", *WHY, *under)
        wait_until(lambda: worker.metric("loopwarden_policies_refused") == 0, "the worker to follow")
        assert {said["policy"] for said in judged(deployment, "r-4")} == {before[0]["policy"]} == {gone["policy"]}

        audited = [said for said in deployment.messages("verdicts") if said.get("action") == "set_policy"]
        assert [(one["who"], one["key"], one["state"]) for one in audited] == [
            ("kim", "policies|acme", action["state"]),
            ("kim", "policies|acme", "deleted"),
        ]


def test_what_is_wrong_is_said_before_anything_is_written(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The same errors as of a file, whether a document is wrong alone or with what is there."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("cycle: {kill_laps: five}\n")
    good = tmp_path / "good.yaml"
    good.write_text("exact_repeat: {nudge: 9, break_at: 10, kill: 12}\ncycle: {mode: off, until: 2030-01-31}\n")
    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        refused = deployment.command("policy", "set", "acme", str(wrong), *WHY)
        valid = deployment.command("policy", "validate", str(good), "--for", "acme")
        assert (refused.returncode, valid.returncode) == (2, 0)
        assert "policy: tenants.acme.cycle.kill_laps = 'five': wrong type; write a whole number" in refused.stderr
        assert deployment.read("policies") == []
        assert deployment.read("verdicts") == []

        assert deployment.command("policy", "set", "acme", str(good), *WHY).returncode == 0
        unknown = deployment.command("policy", "unset", "umbrella", *WHY)
        same = deployment.command("policy", "diff", "acme", str(good))
        other = deployment.command("policy", "diff", "*", str(good))
        document = deployment.command("policy", "get", "acme")
        effective = deployment.command("policy", "get", "acme", "--effective")

        assert (unknown.returncode, same.returncode, other.returncode) == (2, 0, 1)
        assert "no document of umbrella" in unknown.stderr
        assert same.stdout == ""
        assert "+  nudge: 9" in other.stdout
        assert "until: '2030-01-31'" in document.stdout
        again = tmp_path / "again.yaml"
        again.write_text(effective.stdout)
        assert deployment.command("policy", "validate", str(again)).returncode == 0
