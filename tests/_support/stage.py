"""A deployment with a worker that is watched while it works: every record of its topics, as it is written."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from tests._support.clients import OutRecord
from tests._support.fleet import key_of
from tests._support.hosts import Host
from tests._support.workers import Deployment, Worker, ack_of, wait_until

from loopwarden.testing import TENANT
from loopwarden_models.codec import encode
from loopwarden_models.control_state import breaker_key, fence_key
from loopwarden_models.ids import control_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from loopwarden_models.commands import Command
    from loopwarden_models.control_state import EnforcementRecord, FenceRecord, RunRecord

Message = dict[str, Any]

TOPICS = ("steps", "acks", "verdicts", "control.commands", "control.state")
LISTEN_S = 0.1


class Tail(threading.Thread):
    """Follows all topics of a deployment from their beginnings. Thread-safe: records are only ever added."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(name="tail", daemon=True)
        self._deployment = deployment
        self._closing = threading.Event()
        self._records: dict[str, list[Message]] = {name: [] for name in TOPICS}
        self._ends: dict[TopicPartition, int] = {}
        self._wants_ends = threading.Event()
        self._is_at_ends = threading.Event()
        self.error: BaseException | None = None

    def records(self, topic: str) -> list[Message]:
        """Return what was written to a topic up to now. A deleted key is `{"key": …, "state": None}`."""
        assert self.error is None, repr(self.error)
        return list(self._records[topic])

    def catch_up(self) -> None:
        """Wait until everything that was written before this call has been read."""
        self._is_at_ends.clear()
        self._wants_ends.set()
        wait_until(lambda: self._is_at_ends.is_set() or self.error, "the tail to be at the ends of all topics")
        assert self.error is None, repr(self.error)

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self.join(10)

    def run(self) -> None:
        """Follow until `close`."""
        try:
            asyncio.run(self._follow())
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self.error = error

    async def _follow(self) -> None:
        deployment = self._deployment
        consumer = AIOKafkaConsumer(bootstrap_servers=deployment.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            counts = {name: deployment.settings().control_partitions for name in TOPICS if "." in name}
            names = {deployment.topic(name): name for name in TOPICS}
            partitions = [
                TopicPartition(topic, number)
                for topic, name in names.items()
                for number in range(counts.get(name, deployment.partitions))
            ]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            while not self._closing.is_set():
                if self._wants_ends.is_set():
                    self._wants_ends.clear()
                    self._ends = await consumer.end_offsets(partitions)
                batches = await consumer.getmany(timeout_ms=int(LISTEN_S * 1_000))
                for tp, records in batches.items():
                    self._records[names[tp.topic]] += [_decode(record) for record in records]
                if self._ends and not self._wants_ends.is_set():
                    positions = {tp: await consumer.position(tp) for tp in partitions}
                    if all(positions[tp] >= end for tp, end in self._ends.items()):
                        self._ends = {}
                        self._is_at_ends.set()
        finally:
            await consumer.stop()


def _decode(record: Any) -> Message:
    if record.value is None:
        return {"key": record.key.decode(), "state": None}
    message: Message = json.loads(record.value)
    return message | {"append_ms": record.timestamp}


class Stage:
    """One deployment, one worker, and what was said about which run.

    Attributes:
        deployment: Topics and settings.
        worker: The newest one.
    """

    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self.deployment = deployment
        self.worker: Worker = deployment.start()
        self._directory = directory
        self._tail = Tail(deployment)
        self._hosts: list[Host] = []
        self._tail.start()
        self.worker.ready()

    def close(self) -> None:
        """End the hosts, and stop watching."""
        for host in self._hosts:
            host.kill()
        self._tail.close()

    def host(self, runtime_id: str) -> Host:
        """Start a process that hosts runs."""
        path = self._directory / f"{runtime_id}-{len(self._hosts)}.log"
        host = Host(self.deployment.bootstrap, self.deployment.prefix, runtime_id, path)
        self._hosts.append(host)
        return host

    def replace_worker(self) -> None:
        """End the worker in good order, and have another one take over."""
        assert self.worker.stop() == 0, self.worker.log()
        self.worker = self.deployment.start().ready()

    def beside(self, run_id: str, tenant: str = TENANT) -> str:
        """Return the id of another run whose steps lie in the same partition, so that both are judged together."""
        partition_of = self.deployment.partition_of
        number = partition_of(f"{tenant}|{run_id}".encode())
        names = (f"{run_id}-beside-{n}" for n in itertools.count())
        return next(name for name in names if partition_of(f"{tenant}|{name}".encode()) == number)

    # What was written.

    def commands(self, run_id: str, kind: str = "") -> list[Message]:
        """Return the commands for a run, of one type if it is named."""
        return [one for one in self._of("control.commands", run_id) if kind in ("", one["type"])]

    def verdicts(self, run_id: str) -> list[Message]:
        """Return the verdicts about a run."""
        return self._of("verdicts", run_id)

    def steps(self, run_id: str) -> list[Message]:
        """Return the steps of a run."""
        return self._of("steps", run_id)

    def records(self, run_id: str, tenant: str = TENANT) -> list[Message]:
        """Return the records of a run on the state topic."""
        return [one for one in self._tail.records("control.state") if one["key"] == f"{tenant}|run|{run_id}"]

    def breakers(self, tenant: str, tool: str) -> list[Message]:
        """Return the records of a tool's breaker."""
        return [one for one in self._tail.records("control.state") if one["key"] == breaker_key(tenant, tool)]

    def fences(self, partition: int) -> list[Message]:
        """Return the announcements of those who took over a partition of the steps."""
        return [one for one in self._tail.records("control.state") if one["key"] == fence_key(partition)]

    def acks(self, command_id: str, run_id: str = "") -> list[Message]:
        """Return the answers to a command, of one run if it is named."""
        answers = [one for one in self._tail.records("acks") if one["command_id"] == command_id]
        return [one for one in answers if run_id in ("", one["run_id"])]

    def statuses(self, command_id: str, run_id: str = "") -> list[str]:
        """Return the statuses of the answers to a command, in order."""
        return [ack["status"] for ack in self.acks(command_id, run_id)]

    # What is waited for.

    def until(self, look: Callable[[], Any], what: str, *, timeout_s: float = 30.0) -> Any:
        """Wait until `look` returns something true, and return that."""
        return wait_until(look, what, timeout_s=timeout_s, context=self.worker.log)

    def answered(self, command_id: str, *statuses: str, run_id: str = "") -> list[Message]:
        """Wait until a command is answered with the last of `statuses`; all of them must have come, in this order."""
        self.until(lambda: statuses[-1] in self.statuses(command_id, run_id), f"{statuses[-1]!r} of {command_id}")
        assert self.statuses(command_id, run_id) == list(statuses)
        return self.acks(command_id, run_id)

    def command(self, run_id: str, kind: str) -> Message:
        """Wait for the first command of a type for a run."""
        found: list[Message] = self.until(lambda: self.commands(run_id, kind), f"a {kind} for {run_id}")
        return found[0]

    def settle(self) -> None:
        """Wait until all that was reported is judged, and all that came of it was read here."""
        for host in self._hosts:
            if host.is_running():
                host.flush()
        self.deployment.wait_applied()
        self._tail.catch_up()

    # What is written.

    def order(self, command: Command) -> str:
        """Send a command by hand, as issued now with the life that it has; returns its id."""
        issued_ms = now_ms()
        life_ms = command.expires_at_ms - command.issued_at_ms
        command = msgspec.structs.replace(command, issued_at_ms=issued_ms, expires_at_ms=issued_ms + life_ms)
        self._control("control.commands", command.tenant, f"{command.tenant}|{command.run_id}", command)
        return command.command_id

    def state(self, record: RunRecord | FenceRecord | EnforcementRecord) -> None:
        """Write a record of the state topic."""
        self._control("control.state", record.key.partition("|")[0], record.key, record)

    def events(self, events: Iterable[Message]) -> None:
        """Write steps as a runtime without our library does."""
        made = list(events)
        partition_of = self.deployment.partition_of
        self.deployment.write(
            OutRecord(partition_of(key_of(event)), key_of(event), msgspec.json.encode(event)) for event in made
        )

    def answer(self, commands: Iterable[Message], status: str) -> None:
        """Acknowledge commands as a runtime without our library does, and wait until that is known to the detector."""
        self.deployment.write([ack_of(self.deployment, command, status) for command in commands], topic="acks")
        self.settle()

    def _control(self, topic: str, tenant: str, key: str, message: msgspec.Struct) -> None:
        partitions = self.deployment.settings().control_partitions
        record = OutRecord(control_partition(tenant, partitions), key.encode(), encode(message))
        self.deployment.write([record], topic=topic)

    def _of(self, topic: str, run_id: str) -> list[Message]:
        return [one for one in self._tail.records(topic) if one["run_id"] == run_id]


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def paced(events: Sequence[Message], *, gap_ms: int = 1_000) -> list[Message]:
    """Return the events of one run `gap_ms` apart, the last of them now: so fast, no order is given up as unheard."""
    begun_ms = now_ms() - gap_ms * len(events)
    return [{**event, "ts_ms": begun_ms + gap_ms * number} for number, event in enumerate(events, 1)]
