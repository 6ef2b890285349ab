"""Breakers of tools on a broker: many runs of three tenants, one tool that is down for one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests._support.clients import OutRecord
from tests._support.fleet import Event, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, wait_until

from loopwarden_models.codec import decode_health
from loopwarden_models.control_state import breaker_key
from loopwarden_models.ids import control_partition
from loopwarden_models.tool_health import PartialSum

pytestmark = pytest.mark.kafka

# Pauses of about a second; a probe may come from any run, for who may try is the runtime's affair.
POLICY = "fleet_breaker: {pause_ms: 1000, max_pause_ms: 1000, probe_share: 1.0, lease_ms: 15000}\n"
TENANTS = ("acme", "globex", "initech")


def calls(name: str, *, down: Sequence[str] = (), runs: int = 6, age_ms: int = 0) -> list[Event]:
    """Return two calls of `search` by each of some runs of every tenant, all of them a moment ago."""
    now_ms = time.time_ns() // 1_000_000 - age_ms
    events = []
    for tenant in TENANTS:
        for run in range(runs):
            common = {"v": 1, "tenant": tenant, "run_id": f"{name}-{run}", "ts_ms": now_ms, "type": "tool_end"}
            error = {"class": "HTTPError", "message": "upstream is away", "status": 503}
            answer = {"outcome": "error", "error": error} if tenant in down else {"outcome": "ok"}
            events += [{**common, "seq": seq, "tool": "search", "args": {"q": seq}, **answer} for seq in range(2)]
    return events


class Tools:
    """The breakers of one deployment, as a runtime and an operator see them."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def call(self, name: str, **how: Any) -> None:
        """Let the runs call their tool."""
        deployment = self._deployment
        deployment.write(records(calls(name, **how), deployment.partitions))

    def states(self, tenant: str = "acme") -> list[dict[str, Any]]:
        """Return every record of a tenant's breaker, in order."""
        key = breaker_key(tenant, "search")
        return [record for record in self._deployment.messages("control.state") if record["key"] == key]

    def state(self, tenant: str = "acme") -> str:
        """Return how the breaker stands by its newest version."""
        found = self.states(tenant)
        return str(max(found, key=lambda record: record["version"])["state"]) if found else "closed"

    def wait(self, state: str, *, timeout_s: float = 30.0) -> None:
        """Wait until the tenant's breaker stands so."""
        wait_until(lambda: self.state() == state, f"the breaker to be {state}", timeout_s=timeout_s)

    def order(self, state: str) -> None:
        """Write what a person orders."""
        key = breaker_key("acme", "search")
        version = [time.time_ns() // 1_000_000, 0]
        value = {"v": 1, "key": key, "version": version, "state": state, "writer": "operator"}
        record = OutRecord(control_partition("acme", 2), key.encode(), msgspec.json.encode(value))
        self._deployment.write([record], topic="control.state")


def test_a_tool_that_is_down_is_shut_for_its_tenant_and_tried_again(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Opened for all runs of the tenant and for nobody else; half open after the pause; closed by healthy probes."""
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=POLICY) as deployment:
        worker = deployment.start().ready()
        tools = Tools(deployment)
        tools.call("one", down=["acme"])
        tools.wait("half_open")
        opened, *_ = tools.states()
        assert (opened["state"], opened["reason"]["detector"]) == ("open", "fleet_breaker")
        assert opened["reason"]["count"] >= 5
        assert opened["lease_until_ms"] > opened["opened_at_ms"]
        assert opened["retry_after_ms"] <= 1_200
        assert tools.states("globex") == tools.states("initech") == []
        wait_until(lambda: worker.metric("loopwarden_breaker_state", tenant="acme", tool="search") == 2, "the gauge")

        tools.call("two")
        tools.wait("closed")
        versions = [record["version"] for record in tools.states()]
        assert versions == sorted(versions)
        verdicts = [one for one in deployment.messages("verdicts") if one["detector"] == "fleet_breaker"]
        assert {one["tenant"] for one in verdicts} == {"acme"}
        assert [one["level"] for one in verdicts if one["level"] != "observe"] == ["break"]
        assert {one["run_id"] for one in verdicts} == {"*"}
        assert len({one["verdict_id"] for one in verdicts}) == len(verdicts)
        assert worker.metric("loopwarden_breaker_transitions_total", tenant="acme", to="open") == 1
        assert worker.metric("loopwarden_breaker_probes_total", tenant="acme", outcome="ok") >= 3
        wait_until(lambda: worker.metric("loopwarden_breaker_state", tenant="acme") == 0, "the series to end")

        tools.call("three", down=["acme"])
        tools.wait("half_open")
        tools.call("four", down=["acme"])
        wait_until(lambda: tools.states()[-1].get("reopen_count") == 1, "a failed probe to open it again")
        assert worker.stop() == 0


def test_the_next_owner_goes_on_where_the_dead_one_was(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Killed while the breaker is open: from the snapshot, under a higher epoch, and nothing is counted twice."""
    policy = POLICY.replace("pause_ms: 1000, max_pause_ms: 1000", "pause_ms: 8000, max_pause_ms: 8000")
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=policy, session_timeout_ms=60_000) as deployment:
        dying = deployment.start(instance="one").ready()
        tools = Tools(deployment)
        tools.call("one", down=["acme"])
        tools.wait("open")
        deployment.wait_applied("steps", "tool-health")
        (opened, *_) = tools.states()
        dying.kill()
        heir = deployment.start(instance="one").ready()

        wait_until(lambda: tools.states()[-1]["version"][0] > opened["version"][0], "the lease to be renewed")
        renewed = tools.states()[-1]
        assert (renewed["state"], renewed["version"][1]) == (opened["state"], opened["version"][1])
        assert renewed["opened_at_ms"] == opened["opened_at_ms"]
        assert renewed["lease_until_ms"] > opened["lease_until_ms"]
        tools.wait("half_open")
        tools.call("two")
        tools.wait("closed")
        seqs = [record["version"][1] for record in tools.states() if record["state"] != opened["state"]]
        assert seqs == [opened["version"][1] + 1, opened["version"][1] + 2]
        assert heir.metric("loopwarden_recovery_faults_total") == 0


@pytest.mark.parametrize("checkpoint_ms", [300, 600_000])
def test_sums_are_neither_lost_nor_counted_twice_by_a_crash(
    apache_kafka: ApacheKafka, tmp_path: Path, checkpoint_ms: int
) -> None:
    """Killed with sums half written: what the heir adds up again is dropped where it was counted already."""
    policy = "fleet_breaker: {mode: shadow}\n"
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=policy, session_timeout_ms=60_000) as deployment:
        dying = deployment.start(instance="one", checkpoint_ms=checkpoint_ms).ready()
        tools = Tools(deployment)
        tools.call("one", runs=20)
        wait_until(lambda: sum(deployment.ends("tool-health")) > 0, "sums to be sent")
        dying.kill()
        deployment.start(instance="one").ready()
        tools.call("two", runs=20)
        deployment.wait_applied("steps", "tool-health")

        counted: dict[str, int] = dict.fromkeys(TENANTS, 0)
        known: dict[tuple[str, int], int] = {}
        for record in deployment.read("tool-health"):
            sums = decode_health(record.value)
            if not isinstance(sums, PartialSum):
                continue  # what the tenants did lies there as well
            place = (sums.tenant, sums.partition)
            if sums.first_offset > known.get(place, -1):
                counted[sums.tenant] += sum(one.calls for one in sums.seconds)
            known[place] = max(known.get(place, -1), sums.last_offset)
        assert counted == dict.fromkeys(TENANTS, 80)


def test_old_failures_open_nothing(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A day's backlog is judged in shadow; what is fresh opens."""
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=POLICY) as deployment:
        worker = deployment.start().ready()
        tools = Tools(deployment)
        tools.call("one", down=["acme"], age_ms=3_600_000)
        deployment.wait_applied("steps", "tool-health")
        wait_until(lambda: worker.metric("loopwarden_would_have_total", detector="fleet_breaker") == 1, "the verdict")
        assert tools.states() == []

        tools.call("two", down=["acme"])
        wait_until(lambda: tools.states() != [], "the breaker to open")


def test_what_a_person_set_is_left_to_people(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Out of force by hand: no failure changes that; given back, the detector goes on; closed by hand, it is closed."""
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=POLICY) as deployment:
        worker = deployment.start().ready()
        tools = Tools(deployment)
        tools.order("disabled")
        wait_until(lambda: worker.metric("loopwarden_breaker_state", tenant="acme") == 4, "the order to be seen")
        tools.call("one", down=["acme"])
        deployment.wait_applied("steps", "tool-health")
        assert [record["state"] for record in tools.states()] == ["disabled"]

        tools.order("closed")
        wait_until(lambda: worker.metric("loopwarden_breaker_state", tenant="acme") == 0, "it to be given back")
        tools.call("two", down=["acme"])
        wait_until(lambda: tools.states()[-1]["state"] == "open", "the breaker to open")
        wait_until(lambda: worker.metric("loopwarden_breaker_state", tenant="acme") > 0, "the gauge to say so")
        # What opened in the second of an order is taken for newer than it.
        past_ms = tools.states()[-1]["opened_at_ms"] + 1_000
        wait_until(lambda: time.time_ns() // 1_000_000 > past_ms, "the second to be over")
        tools.order("closed")
        wait_until(lambda: worker.metric("loopwarden_breaker_state", tenant="acme") == 0, "it to be closed by hand")


def test_a_sum_that_cannot_be_read_is_a_dead_letter(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Whoever writes there what is no sum does not stop the breakers."""
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=POLICY) as deployment:
        worker = deployment.start().ready()
        number = control_partition("acme", deployment.partitions)
        deployment.write([OutRecord(number, b"acme|search", b"{}")], topic="tool-health")
        Tools(deployment).call("one", down=["acme"])
        wait_until(lambda: Tools(deployment).states() != [], "the breaker to open")

        assert worker.metric("loopwarden_dead_letters_total") == 1
        assert [record.key for record in deployment.read("dead-letter")] == [b"acme|search"]
