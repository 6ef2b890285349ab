"""The processes of the demonstration: a broker, one worker, and the agents. What was started here ends here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from loopwarden_models.errors import ConfigError, TransportError
from loopwarden_streams.demo_fleet import AgentPlan, split_hosts
from loopwarden_streams.embedded_broker import LOOPBACK, EmbeddedBroker, TiedProcess, free_port, tail
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.settings import Settings
from loopwarden_streams.topics import ensure_topics, specs

POLICY: Final = "demo_policy.yaml"
_PARTITIONS: Final = 4
_READY_S: Final = 60.0
_LOG_LINES: Final = 15


class Services:
    """Everything that runs beside the command. `close` may be called at any time, and more than once.

    Attributes:
        settings: Of the worker, the agents and whoever reads along.
    """

    def __init__(self, folder: Path, brokers: str | None) -> None:
        """Prepare; nothing starts yet.

        Args:
            folder: For logs and plans; the caller removes it.
            brokers: A Kafka cluster to use; `None` starts an embedded broker.

        Raises:
            ConfigError: A setting in the environment is wrong.
        """
        settings = Settings.from_env()
        self._folder = folder
        self._broker = EmbeddedBroker() if brokers is None else None
        self._worker: TiedProcess | None = None
        self._hosts: list[tuple[TiedProcess, list[AgentPlan], Path]] = []
        self._has_topics = False
        if self._broker is not None:
            settings = Settings(brokers=self._broker.bootstrap)
        elif brokers is not None:
            # Names of its own: a demonstration must not meet what else runs on the cluster.
            name = f"loopwarden-demo-{secrets.token_hex(4)}"
            settings = replace(settings, brokers=brokers, topic_prefix=f"{name}.", app_id=name)
        self.settings = replace(
            settings,
            partitions=_PARTITIONS,
            control_partitions=_PARTITIONS,
            mode="enforce",
            start_at="earliest",
            host=LOOPBACK,
            port=free_port(),
            log_format="text",
        )

    async def start_broker(self) -> None:
        """Start the embedded broker, if it is ours, and create the topics.

        Raises:
            TransportError: The broker's wheel is missing, it did not start, or the topics could not be created.
        """
        try:
            if self._broker is not None:
                self._broker.start()  # not in a thread: an interrupt must find it either started or not
            await ensure_topics(self.settings, create=True)
            self._has_topics = True
        except ConfigError as error:
            raise TransportError(str(error)) from None
        except (KafkaError, OSError) as error:
            raise TransportError(f"brokers {self.settings.brokers}: {error}; are they up, and reachable?") from error

    async def start_worker(self) -> None:
        """Start the detector, and return when it has its partitions.

        Raises:
            TransportError: It ended or was not ready in time; the message ends with its output.
        """
        policy = self._folder / POLICY
        policy.write_bytes(files("loopwarden_streams").joinpath(POLICY).read_bytes())
        settings = replace(self.settings, policy=str(policy))
        self._worker = self._spawn("worker", ["loopwarden_streams.cli", "worker", *_flags(settings)])
        deadline = time.monotonic() + _READY_S
        url = f"http://{LOOPBACK}:{settings.port}/readyz"
        while await asyncio.to_thread(_owned_partitions, url) < settings.partitions:
            self.check()
            if time.monotonic() > deadline:
                raise self.worker_failure(f"the worker was not ready within {_READY_S:g} s")
            await asyncio.sleep(0.1)

    def start_agents(self, plans: Sequence[AgentPlan], seconds: float) -> None:
        """Start the processes of the agents. They connect, and wait for `begin`."""
        for number, own in enumerate(split_hosts(plans), start=1):
            name = f"agents-{number}"
            plan = self._folder / f"{name}.json"
            plan.write_bytes(msgspec.json.encode(own))
            words = ["loopwarden_streams.demo_agents", "--plan", str(plan), "--begin", str(self._begin_file)]
            process = self._spawn(name, [*words, "--seconds", str(seconds), *_flags(self.settings)])
            self._hosts.append((process, own, self._log(name)))

    def begin(self) -> float:
        """Let the agents begin, and return when they do, in Unix seconds."""
        begin_s = time.time()
        draft = self._begin_file.with_suffix(".draft")
        draft.write_text(f"{begin_s!r}\n", encoding="utf-8")
        draft.rename(self._begin_file)
        return begin_s

    def check(self) -> None:
        """Look after the processes that must run as long as the demonstration does.

        Raises:
            TransportError: One has ended; the message ends with its output.
        """
        if self._worker is not None and not self._worker.is_running():
            raise self.worker_failure("the worker has ended")
        if self._broker is not None and self._has_topics and not self._broker.is_running():
            raise TransportError("the embedded broker has ended")

    def worker_failure(self, what: str) -> TransportError:
        """Return an error that says what is wrong with the worker, and how its log ends."""
        return failure(what, self._log("worker"))

    def ended_hosts(self) -> list[tuple[list[AgentPlan], Path]]:
        """Return the agents and the log of each process of agents that has ended."""
        return [(plans, log) for process, plans, log in self._hosts if not process.is_running()]

    async def close(self) -> None:
        """End all processes, and remove what was created on a cluster that is not ours. Never raises."""
        for process, _, _ in self._hosts:
            process.kill()
        self._hosts = []
        worker, self._worker = self._worker, None
        if worker is not None:
            if self._broker is None:
                await asyncio.to_thread(worker.terminate, timeout_s=10.0)
            else:
                worker.kill()  # its state goes with the broker
        if self._broker is not None:
            self._broker.stop()
        elif self._has_topics:
            with contextlib.suppress(KafkaError, OSError):
                await _delete_topics(self.settings)
        self._has_topics = False

    @property
    def _begin_file(self) -> Path:
        return self._folder / "begin.txt"

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _spawn(self, name: str, words: Sequence[str]) -> TiedProcess:
        # Temporary files of a process that has to be killed go with our folder.
        argv = ["env", f"TMPDIR={self._folder}", sys.executable, "-m", *words]
        return TiedProcess(argv, log_path=self._log(name))


def failure(what: str, log: Path) -> TransportError:
    """Return an error that says what happened and how the log of the process ends."""
    return TransportError(f"{what}; the end of its output:\n{tail(log, lines=_LOG_LINES)}")


def _flags(settings: Settings) -> list[str]:
    """Return `settings` as flags; secrets stay in the environment."""
    return [
        f"--{each.name.replace('_', '-')}={getattr(settings, each.name)}"
        for each in fields(settings)
        if not each.metadata["secret"]
    ]


def _owned_partitions(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:  # noqa: S310 - an address of our own
            return len(json.load(answer)["partitions"])
    except (urllib.error.URLError, OSError, ValueError):
        return 0


async def _delete_topics(settings: Settings) -> None:
    admin = AIOKafkaAdminClient(**client_arguments(settings))
    await admin.start()
    try:
        await admin.delete_topics([spec.name for spec in specs(settings)])
    finally:
        await admin.close()
