"""`loopwarden worker` as child processes, and one test's own topics and group around them.

Everything here blocks and must not be called from a coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests._support.clients import NewTopicSpec, OutRecord, Record, consume_all, create_topics, produce, unique_prefix

from loopwarden_models.ids import murmur2
from loopwarden_streams.embedded_broker import LOOPBACK, TiedProcess, free_port, tail
from loopwarden_streams.settings import Settings
from loopwarden_streams.topics import ensure_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

T = TypeVar("T")

POLL_S = 0.05
READY_S = 60.0  # 2.5 s alone; imports alone take that on a machine under load
DONE_S = 60.0
STOP_S = 40.0  # the worker gives itself 25 s

DECISIONS = " loopwarden.decisions: "
WORKER = ("-m", "loopwarden_streams.cli", "worker")

# Fleets of looping runs are killed to the last one here: what limits that has tests of its own.
BOUNDLESS = "blast_radius: {kills_per_min: 1000000, kills_per_min_total: 1000000, killed_percent: 100}\n"

# Checkpoints ten times as often as in production: a test waits for commits, not for the clock.
FAST: Mapping[str, Any] = {"checkpoint_ms": 300, "tick_ms": 200, "log_format": "text", "start_at": "earliest"}


class Answer(NamedTuple):
    """What the health endpoint said; status 0 if nobody listens."""

    status: int
    body: str

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)


def wait_until(look: Callable[[], T], what: str, *, timeout_s: float = DONE_S, context: Callable[[], str] = str) -> T:
    """Call `look` until it returns something true, and return that.

    Raises:
        AssertionError: Nothing true came within `timeout_s`; says `what` was waited for, what came last, and `context`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; last: {found!r}\n{context()}")
        time.sleep(POLL_S)


class Worker:
    """One `loopwarden worker` process with a health endpoint of its own. Ends with the test process.

    Args:
        name: For messages.
        environ: Its settings.
        log_path: Where its output goes.
        words: Python's arguments, if it is to run something else than the worker as it is.
    """

    def __init__(self, name: str, environ: Mapping[str, str], log_path: Path, *, words: Sequence[str] = WORKER) -> None:
        self.name = name
        self.log_path = log_path
        self.port = free_port()
        values = {**environ, "LOOPWARDEN_PORT": str(self.port), "PYTHONPATH": python_path()}
        pairs = [f"{key}={value}" for key, value in values.items()]
        # `env` replaces itself by the command, so the process id is the worker's.
        self._process = TiedProcess(["env", *pairs, sys.executable, *words], log_path=log_path)
        self.pid = self._process.pid

    def is_running(self) -> bool:
        """Return whether the process has not ended yet."""
        return self._process.is_running()

    def signal(self, number: int) -> None:
        """Send a signal to the worker."""
        os.kill(self.pid, number)

    def get(self, path: str, *, timeout_s: float = 5.0) -> Answer:
        """Ask the health endpoint."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}{path}", timeout=timeout_s) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())
        except OSError:
            return Answer(0, "")

    def ready(self, *, timeout_s: float = READY_S) -> Self:
        """Wait until the worker has recovered, and return it."""

        def look() -> bool:
            assert self.is_running(), f"{self.name} has ended with {self.exit_status()}\n{self.log()}"
            return self.get("/readyz").status == 200

        wait_until(look, f"{self.name} to be ready", timeout_s=timeout_s, context=self.log)
        return self

    def owned(self) -> set[int]:
        """Return the partitions that the worker has recovered; none while it is not ready."""
        answer = self.get("/readyz")
        return {int(number) for number in answer.json()["partitions"]} if answer.status == 200 else set()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples called `name` that have these labels; 0 if there are none."""
        families = text_string_to_metric_families(self.get("/metrics").body)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def kill(self) -> None:
        """End it by SIGKILL. Returns when it is gone."""
        self._process.kill()

    def stop(self) -> int:
        """Ask it to end, by SIGTERM, and return its exit status; -9 if it did not within the time."""
        self._process.terminate(timeout_s=STOP_S)
        return self.exit_status()

    def wait_exit(self, *, timeout_s: float = STOP_S) -> int:
        """Wait until it ends by itself, and return its exit status."""
        wait_until(lambda: not self.is_running(), f"{self.name} to end", timeout_s=timeout_s, context=self.log)
        return self.exit_status()

    def exit_status(self) -> int:
        """Return the exit status of a process that has ended."""
        status = self._process._process.poll()
        assert status is not None, f"{self.name} still runs"
        return int(status)

    def log(self, *, lines: int = 60) -> str:
        """Return the end of its log without the decisions, with its name above."""
        told = [line for line in tail(self.log_path, lines=100 * lines).splitlines() if DECISIONS not in line]
        return "\n".join([f"--- log of {self.name} (pid {self.pid})", *told[-lines:]])


class Deployment:
    """Topics and consumer group of one test on a shared broker, and the workers of it.

    As a context manager it creates the topics, and ends every worker at the exit; if the test failed, it prints the
    ends of their logs.

    Args:
        bootstrap: Address of the broker.
        directory: For logs and the policy file.
        partitions: Of steps, acks and the changelog.
        policy: Text of a policy file. Kills are limited only where it says so.
        topics: Topics to create in another way than `loopwarden topics` does, by their names in the contract;
            `changelog` is that of the runs.
        settings: Any of the worker's, over `FAST`.
    """

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        *,
        partitions: int = 4,
        policy: str = "",
        topics: Mapping[str, NewTopicSpec] | None = None,
        **settings: Any,
    ) -> None:
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.prefix = unique_prefix()
        self.app_id = self.prefix.rstrip(".")
        self.workers: list[Worker] = []
        self._topics = topics or {}
        self._directory = directory / self.app_id
        self._directory.mkdir(parents=True)
        values: dict[str, Any] = {
            **FAST,
            "brokers": bootstrap,
            "topic_prefix": self.prefix,
            "app_id": self.app_id,
            "partitions": partitions,
            "control_partitions": 2,
            **settings,
        }
        if "blast_radius" not in policy:
            policy = f"{policy.rstrip()}\n{BOUNDLESS}"
        policy_path = self._directory / "policy.yaml"
        policy_path.write_text(policy, encoding="utf-8")
        values["policy"] = str(policy_path)
        self.environ = _environ(values)

    def __enter__(self) -> Self:
        own = {self.topic(name): spec for name, spec in self._topics.items()}
        if own:
            create_topics(self.bootstrap, own)
        findings = asyncio.run(ensure_topics(self.settings(), create=True))
        assert all(finding.status == "created" for finding in findings if finding.topic not in own), findings
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.kill()
            if error is not None:
                print(worker.log())

    def settings(self, **changes: Any) -> Settings:
        """Return the settings that the workers run with."""
        return Settings.from_env({**self.environ, **_environ(changes)})

    def topic(self, name: str) -> str:
        """Return the full name of a topic; `changelog` is that of the runs."""
        return f"{self.app_id}-runs-changelog" if name == "changelog" else self.prefix + name

    def start(self, *, words: Sequence[str] = WORKER, **settings: Any) -> Worker:
        """Start a worker and return it at once; `settings` over those of the deployment, `words` as for `Worker`."""
        name = f"worker-{len(self.workers) + 1}"
        environ = {**self.environ, **_environ(settings)}
        worker = Worker(name, environ, self._directory / f"{name}.log", words=words)
        self.workers.append(worker)
        return worker

    def command(self, *words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `loopwarden` with the settings of the deployment, and return what it said."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("LOOPWARDEN_")}
        return subprocess.run(
            [sys.executable, "-m", "loopwarden_streams.cli", *words],
            env={**own, **self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def partition_of(self, key: bytes) -> int:
        """Return the partition that Kafka's own clients give a key."""
        return (murmur2(key) & 0x7FFFFFFF) % self.partitions

    def write(self, records: Iterable[OutRecord], *, topic: str = "steps") -> int:
        """Write records, in small batches as agents do, and return their number when all are acknowledged."""
        return produce(self.bootstrap, self.topic(topic), records, batch_records=10)

    def read(self, topic: str) -> list[Record]:
        """Return every record of a topic of the contract."""
        return consume_all(self.bootstrap, self.topic(topic))

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Return every record of a topic of the contract, decoded."""
        return [json.loads(record.value) for record in self.read(topic) if record.value is not None]

    def committed(self, topic: str = "steps") -> list[int]:
        """Return what the group has committed in each partition, 0 for nothing."""
        return asyncio.run(self._offsets(topic))[0]

    def ends(self, topic: str = "steps") -> list[int]:
        """Return the end offset of each partition."""
        return asyncio.run(self._offsets(topic))[1]

    def is_applied(self, *topics: str) -> bool:
        """Return whether all that was written is applied and saved: the group has committed the ends."""
        offsets = [asyncio.run(self._offsets(topic)) for topic in topics or ("steps", "acks")]
        return all(committed == ends for committed, ends in offsets)

    def wait_applied(self, *topics: str, timeout_s: float = DONE_S) -> None:
        """Wait until all that was written is applied and saved."""
        wait_until(
            lambda: self.is_applied(*topics),
            "everything to be applied and committed",
            timeout_s=timeout_s,
            context=lambda: f"{[self._told(topic) for topic in topics or ('steps', 'acks')]}\n{self.logs()}",
        )

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(worker.log() for worker in self.workers)

    def _told(self, topic: str) -> str:
        committed, ends = asyncio.run(self._offsets(topic))
        return f"{topic}: committed {committed}, ends {ends}"

    async def _offsets(self, topic: str) -> tuple[list[int], list[int]]:
        reader = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.app_id, enable_auto_commit=False, client_id="test"
        )
        await reader.start()
        try:
            tps = [TopicPartition(self.topic(topic), number) for number in range(self.partitions)]
            ends = await reader.end_offsets(tps)
            committed = [await reader.committed(tp) or 0 for tp in tps]
            return committed, [ends[tp] for tp in tps]
        finally:
            await reader.stop()


@contextlib.contextmanager
def paused(worker: Worker) -> Iterator[None]:
    """Hold a worker by SIGSTOP, as a host that is paused."""
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def ack_of(deployment: Deployment, command: Mapping[str, Any], status: str) -> OutRecord:
    """Return a runtime's answer to a command as a record of the acks topic."""
    root = command.get("root_run_id") or command["run_id"]
    key = f"{command['tenant']}|{root}".encode()
    answer = {"v": 1, "status": status, "at_ms": time.time_ns() // 1_000_000, "root_run_id": root, "latency_ms": 12.5}
    answer |= {field: command[field] for field in ("command_id", "tenant", "run_id")}
    return OutRecord(deployment.partition_of(key), key, msgspec.json.encode(answer))


def python_path() -> str:
    """Return a path on which the processes of a test find its support modules, whatever their directory."""
    own = str(Path(__file__).parents[2])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _environ(values: Mapping[str, Any]) -> dict[str, str]:
    return {f"LOOPWARDEN_{name.upper()}": str(value) for name, value in values.items()}
