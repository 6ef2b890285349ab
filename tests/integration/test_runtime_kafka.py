"""The runtime library against a real broker: orders in, steps and acknowledgements out, and Kafka away."""

from __future__ import annotations

import contextlib
import gc
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests._support.kafka import (
    ApacheKafka,
    Broker,
    EmbeddedKafka,
    NewTopicSpec,
    OutRecord,
    available,
    consume_all,
    create_topics,
    produce,
    unique_prefix,
)

from loopwarden import Guard, KafkaTransport, Limits, LoopwardenStopped
from loopwarden.testing import TENANT, fence, kill, nudge, run_record
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message, decode_step, encode
from loopwarden_models.commands import Command
from loopwarden_models.events import AnyStep, RunEnd, step_key
from loopwarden_models.ids import control_partition, murmur2

pytestmark = pytest.mark.kafka

STEPS_PARTITIONS = 4
CONTROL_PARTITIONS = 8
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}

# kafka-python 3.0.12 leaves the sockets of refused attempts to the garbage collector (`KafkaNetSocket.sock_connect`).
kafka_goes_away = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Wire:
    """The topics of one test, seen from the detector's side."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.prefix = unique_prefix()

    def create(self) -> None:
        """Create the topics, as a deployment does."""
        create_topics(
            self.broker.bootstrap,
            {
                f"{self.prefix}steps": NewTopicSpec(STEPS_PARTITIONS),
                f"{self.prefix}acks": NewTopicSpec(STEPS_PARTITIONS),
                f"{self.prefix}control.state": NewTopicSpec(
                    CONTROL_PARTITIONS, {**APPEND_TIME, "cleanup.policy": "compact"}
                ),
                f"{self.prefix}control.commands": NewTopicSpec(CONTROL_PARTITIONS, APPEND_TIME),
            },
        )

    def guard(self) -> Guard:
        """Return a guard that is not started."""
        transport = KafkaTransport(self.broker.bootstrap, prefix=self.prefix, connect_timeout_s=2.0)
        return Guard(transport, tenant=TENANT, runtime_id="rt-1")

    def order(self, command: Command) -> None:
        """Send a command."""
        key = f"{command.tenant}|{command.run_id}"
        self._write("control.commands", TENANT, key, encode(command))

    def state(self, record: msgspec.Struct, key: str, tenant: str = TENANT) -> None:
        """Write a record of `control.state`."""
        self._write("control.state", tenant, key, encode(record))

    @property
    def steps(self) -> list[AnyStep]:
        """All step events, in order within each partition."""
        found = [decode_step(record.value) for record in consume_all(self.broker.bootstrap, f"{self.prefix}steps")]
        return [step for step in found if step is not None]

    @property
    def acks(self) -> list[Ack]:
        """All acknowledgements."""
        records = consume_all(self.broker.bootstrap, f"{self.prefix}acks")
        return [decode_message(record.value, Ack) for record in records]

    def _write(self, topic: str, tenant: str, key: str, value: bytes) -> None:
        partition = control_partition(tenant, CONTROL_PARTITIONS)
        produce(self.broker.bootstrap, self.prefix + topic, [OutRecord(partition, key.encode(), value)])


def now_ms() -> int:
    """Return Unix milliseconds, as the detector does when it issues a command."""
    return time.time_ns() // 1_000_000


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Wait for other threads and processes; generous, since machines are slow at times."""
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def wire(kafka: Broker) -> Wire:
    """Topics on the broker of the session."""
    made = Wire(kafka)
    made.create()
    return made


@pytest.fixture
def quiet_client() -> Iterator[None]:
    """Lets kafka-python lose its broker without a trace of it in other tests."""
    # pytest keeps the records that it captures, the errors in them, the frames of those, and so the sockets.
    kafka_log = logging.getLogger("kafka")
    level = kafka_log.level
    kafka_log.setLevel(logging.CRITICAL)
    yield
    kafka_log.setLevel(level)
    # Here, where their warnings are expected, and not in the middle of another test.
    for _ in range(5):
        gc.collect()


@pytest.fixture
def own_wire(quiet_client: None, tmp_path: Path) -> Iterator[Wire]:
    """A broker of the test's own that is not started, and has no topics yet."""
    del quiet_client
    broker: Broker = ApacheKafka(tmp_path / "kafka") if available() == "apache" else EmbeddedKafka(tmp_path / "kafka")
    with contextlib.closing(broker):
        yield Wire(broker)


def test_a_nudge_and_a_kill_go_through_real_topics(wire: Wire) -> None:
    """The whole path of an order: partitions, append times, keys, acknowledgements."""
    guard = wire.guard()
    assert guard.start(barrier_s=30.0)
    with guard.run("r-42", agent="researcher") as run:
        run.before_tool("search", {"q": "kafka"}, "call-1")
        run.after_tool("call-1", result="nothing")
        wire.order(nudge(run.key, command_id="n1", issued_at_ms=now_ms()))
        assert until(lambda: run._gate.has_nudges)
        run.nudges()[0].delivered()
        wire.order(kill(run.key, command_id="k1", seq=101, issued_at_ms=now_ms()))
        assert until(lambda: run.stopped)
        assert not run.before_tool("search", {"q": "kafka"}, "call-2").allowed
    guard.close(flush_s=30.0)

    assert [step.seq for step in wire.steps] == list(range(5))
    end = wire.steps[-1]
    assert isinstance(end, RunEnd)
    assert (end.status, end.command_id) == ("killed", "k1")
    statuses = [(ack.command_id, ack.status) for ack in wire.acks]
    assert statuses[:2] == [("n1", "received"), ("n1", "applied")]
    assert statuses[2:] == [("k1", "received"), ("k1", "applied"), ("k1", "confirmed_dead")]
    assert all(ack.latency_ms is not None and ack.latency_ms >= 0 for ack in wire.acks)
    home = (murmur2(step_key(TENANT, "r-42")) & 0x7FFFFFFF) % STEPS_PARTITIONS
    for topic in ("steps", "acks"):
        records = consume_all(wire.broker.bootstrap, wire.prefix + topic)
        assert {(record.partition, record.key) for record in records} == {(home, b"acme|r-42")}


def test_what_was_ordered_before_the_process_began_binds_its_runs(wire: Wire) -> None:
    """State is read from the beginning, commands from an hour ago, and both before the first step."""
    wire.state(run_record("r-1", "killed", command_id="k1"), "acme|run|r-1")
    wire.order(kill("r-2", command_id="k2", writer="operator", issued_at_ms=now_ms()))
    guard = wire.guard()
    assert guard.start(barrier_s=30.0)

    for run_id in ("r-1", "r-2"):
        with pytest.raises(LoopwardenStopped), guard.run(run_id):
            pytest.fail("the run was started")
    with guard.run("r-3") as run:
        assert run.before_model().allowed
    guard.close(flush_s=30.0)
    assert [ack.status for ack in wire.acks if ack.command_id == "k2"] == ["received", "applied", "confirmed_dead"]


def test_the_fence_lies_in_the_partition_of_everyone(wire: Wire) -> None:
    """Fences and the big switch are not of any tenant: a runtime reads their partition as well."""
    wire.state(fence(3, 42), "*|fence|3", tenant="*")
    guard = wire.guard()
    assert guard.start(barrier_s=30.0)
    with guard.run("r-42") as run:
        wire.order(kill(run.key, command_id="old", epoch=41, steps_partition=3, issued_at_ms=now_ms()))
        wire.order(kill(run.key, command_id="new", epoch=42, steps_partition=3, issued_at_ms=now_ms()))
        assert until(lambda: run.stopped)
    guard.close(flush_s=30.0)

    assert [ack.status for ack in wire.acks if ack.command_id == "old"] == ["stale"]


@kafka_goes_away
def test_an_agent_runs_without_kafka_and_its_events_follow(own_wire: Wire) -> None:
    """Nothing to connect to at the start, then a broker without topics, then everything."""
    guard = own_wire.guard()
    assert not guard.start(barrier_s=0.2)
    with guard.run("r-42", limits=Limits(max_steps=50)) as run:
        for n in range(60):
            begun = time.monotonic()
            if run.before_tool("t", {"n": n}, f"c{n}").allowed:
                run.after_tool(f"c{n}", result=n)
            assert time.monotonic() - begun < 1.0
        assert run.stopped
    queued = guard.stats()["events_queued"]
    own_wire.broker.start()
    own_wire.create()

    assert until(lambda: guard.stats()["events_queued"] == 0 and guard.stats()["control_ready"] == 1)
    guard.close(flush_s=30.0)
    steps = own_wire.steps
    assert [step.seq for step in steps] == list(range(int(queued)))
    assert isinstance(steps[-1], RunEnd)
    assert steps[-1].status == "limit"


@pytest.mark.slow
@kafka_goes_away
def test_a_broker_that_dies_in_mid_run_costs_no_event_and_no_kill(
    quiet_client: None, own_apache_kafka: Callable[[], ApacheKafka]
) -> None:
    """SIGKILL, steps meanwhile, the same broker again: in order, and orders are obeyed as before."""
    del quiet_client
    wire = Wire(own_apache_kafka())
    wire.create()
    guard = wire.guard()
    assert guard.start(barrier_s=30.0)
    with guard.run("r-42") as run:
        sent = 0
        for is_up in (True, False, True):
            if not is_up:
                wire.broker.kill()
            elif sent:
                wire.broker.start()
            for _ in range(100):
                run.progress(str(sent))
                sent += 1
                time.sleep(0.002)
        assert until(lambda: guard.stats()["events_queued"] == 0, 60.0)
        wire.order(kill(run.key, command_id="k1", issued_at_ms=now_ms()))
        assert until(lambda: run.stopped, 60.0)
    guard.close(flush_s=30.0)

    # At least once: a window whose acknowledgement was lost is sent again, and the detector folds by `seq`.
    seqs = [step.seq for step in wire.steps]
    assert list(dict.fromkeys(seqs)) == list(range(sent + 2))
    assert guard.stats()["events_dropped"] == 0
    assert {ack.status for ack in wire.acks} == {"received", "applied", "confirmed_dead"}


FORGETFUL = """
import sys
from loopwarden import Guard, KafkaTransport
guard = Guard(KafkaTransport(sys.argv[1], prefix=sys.argv[2]), tenant="acme")
guard.start(barrier_s=30.0)
with guard.run("r-42") as run:
    run.progress("almost done")
"""


def test_a_program_that_forgets_to_close_loses_no_event(wire: Wire) -> None:
    """The end of a run is reported in the last milliseconds of a program."""
    subprocess.run([sys.executable, "-c", FORGETFUL, wire.broker.bootstrap, wire.prefix], check=True, timeout=60)

    assert [step.seq for step in wire.steps] == [0, 1, 2]
