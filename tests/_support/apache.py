"""Apache Kafka as a child process: one node that is broker and controller, on loopback."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import time
import uuid
from typing import TYPE_CHECKING

from tests._support.apache_jars import fetch_kafka_jars
from tests._support.broker import Broker
from tests._support.clients import NotReadyError, check_ready

from loopwarden_streams.embedded_broker import LOOPBACK, TiedProcess, free_port, tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Serial collector and first compiler only: a start about a third shorter, and less of two cores taken from the test.
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# What Apache Kafka's own start script sets, for benchmarks.
THROUGHPUT = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:-UsePerfData")

START_TIMEOUT_S = 60.0  # 3 s on two idle cores, 10 s at worst under load and after a kill; the rest is reserve
STOP_TIMEOUT_S = 30.0  # 0.4 s when idle; it writes its indexes out

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(8 * 1024 * 1024),
    "log.cleaner.enable": "true",
    # One node: every internal topic has one copy. Few partitions of them, because each costs time at the start.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    # A first member waits 3 s for others by default; a test has said who takes part.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a kill, the controller refuses the broker until the session of its former life has ended. With the default
    # of 9 s a restart took 13 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class ApacheKafka(Broker):
    """One node of Apache Kafka in KRaft mode.

    It ends with the process that made it, even if that is killed; only a temporary directory then stays. Not
    thread-safe.

    Args:
        data_dir: As for every broker. Holds `server.properties`, `broker.log` and the data.
        partitions: Partitions of a topic that is created without a number.
        heap: The limit, as a flag of Java.
        jvm_flags: `FAST_START` for tests, `THROUGHPUT` for benchmarks.
        log_level: Of `broker.log`: `debug`, `info`, `warn` or `error`.
        settings: Lines of `server.properties` over ours.

    Attributes:
        log_path: The log, across all starts.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        partitions: int = 1,
        heap: str = "-Xmx512m",
        jvm_flags: Sequence[str] = FAST_START,
        log_level: str = "warn",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(data_dir)
        self._port = free_port()
        self.log_path = self.data_dir / "broker.log"
        self._properties_path = self.data_dir / "server.properties"
        self._java = ["java", heap, *jvm_flags, f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"]
        self._java += ["-Dorg.slf4j.simpleLogger.showDateTime=true"]
        self._java += ["-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
        self._settings = {**SETTINGS, "num.partitions": str(partitions), **self._addresses(), **(settings or {})}
        # 16 random bytes in URL-safe base64 without padding: the form that Kafka demands of a cluster id. With a
        # leading dash the command line of the storage tool would take it for an option.
        self._cluster_id = "L" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        self._process: TiedProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Apache Kafka is not running: call start() first")
        return self._process.pid

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start, and return when clients can connect and the group coordinator answers. Nothing while it runs.

        Raises:
            KafkaUnavailableError: The jars are not there and cannot be fetched.
            RuntimeError: It ended, or was not ready within `timeout_s`; the message ends with its log.

        Cost: about 3 s on two idle cores, 5 s on busy ones, of which 0.8 s are for formatting, the first time only.
        After `kill()` about 3 s more: see `broker.session.timeout.ms` above.
        """
        if self._process is not None and self._process.is_running():
            return
        self.kill()  # one that ended by itself still has to be reaped
        classpath = f"{fetch_kafka_jars()}/*"
        self._format(classpath)
        argv = [*self._java, "-cp", classpath, "kafka.Kafka", str(self._properties_path)]
        self._process = TiedProcess(argv, log_path=self.log_path)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                asyncio.run(check_ready(self.bootstrap, cluster_id=self._cluster_id))
            except NotReadyError as error:
                obstacle = str(error)
            else:
                return
            if not self._process.is_running():
                message = f"Apache Kafka on {self.bootstrap} ended before it was ready"
            elif time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            else:
                message = f"Apache Kafka on {self.bootstrap} was not ready within {timeout_s:g} s ({obstacle})"
            self.kill()
            raise RuntimeError(f"{message}; its log ends with:\n{tail(self.log_path)}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate(timeout_s=STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _addresses(self) -> dict[str, str]:
        controller = f"{LOOPBACK}:{free_port()}"
        return {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.data_dir / "data"),
        }

    def _format(self, classpath: str) -> None:
        """Write the settings, and prepare an empty data directory, which Kafka does not do by itself.

        By the storage tool, not by hand: it also records the feature levels of the release, without which the broker
        would run with those of an old one.
        """
        self._properties_path.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        meta_path = self.data_dir / "data" / "meta.properties"
        if meta_path.exists():
            lines = meta_path.read_text().splitlines()
            self._cluster_id = next(
                line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id=")
            )
            return
        tool = [*self._java, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", self._cluster_id]
        result = subprocess.run(
            [*tool, "-c", str(self._properties_path)], capture_output=True, text=True, timeout=60, check=False
        )
        if result.returncode != 0:
            output = (result.stdout + result.stderr)[-2_000:]
            raise RuntimeError(f"Apache Kafka's storage tool failed (exit code {result.returncode}):\n{output}")
