"""The faults of the chaos, and the processes of agents that they hit."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from benchmarks.chaos_agents import Plan, now_ms, read_ledger
from benchmarks.chaos_report import Stay, stays_of
from rich.console import Console
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, Worker

from loopwarden_streams.embedded_broker import tail

ROOT: Final = Path(__file__).resolve().parents[1]
# The same round again and again, so that each fault meets each state that the one before has left.
FAULTS: Final = (
    "kill a worker",
    "kill agents",
    "restart the broker",
    "kill a worker",
    "kill agents",
    "kill the broker",
)
# No fault ends before the one before was noticed: sessions last 6 s.
GAP_S: Final = (7.0, 12.0)
AWAY_S: Final = 3.0
console = Console(stderr=True)


class AgentProcess:
    """A process of agents, through all of its lives."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.deaths_ms: list[int] = []
        self.stats: dict[str, float] = {}
        self._directory = directory
        self._plan_path = directory / f"{plan.runtime_id}.json"
        self._plan_path.write_bytes(msgspec.json.encode(plan))
        self._log_path = directory / f"{plan.runtime_id}.log"
        self._process = self._start()

    def kill(self) -> None:
        """End it by SIGKILL, and start it again after a moment."""
        self._process.kill()
        self._process.communicate()
        self.deaths_ms.append(now_ms())
        time.sleep(AWAY_S / 2)
        self._process = self._start()

    def begin_end(self) -> None:
        """Let no further run begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self, deadline_s: float) -> bool:
        """Wait until all of its runs are over; False if they were not in time, and it was killed."""
        try:
            output, _ = self._process.communicate(timeout=max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.close()
            return False
        assert self._process.returncode == 0, f"{self.plan.runtime_id} failed\n{tail(self._log_path)}"
        self.stats = json.loads(output.splitlines()[-1])
        return True

    def close(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.communicate()

    def stays(self) -> list[Stay]:
        """Return what its runs did."""
        return stays_of(self.plan.runtime_id, read_ledger(Path(self.plan.ledger)), self.deaths_ms)

    def refused(self) -> int:
        """Return how many runs an order did not let begin."""
        return sum(entry.what == "refused" for entry in read_ledger(Path(self.plan.ledger)))

    def _start(self) -> subprocess.Popen[str]:
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.chaos_agents", str(self._plan_path)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


class Storm:
    """The faults, one after the other, on what is running."""

    def __init__(
        self,
        broker: ApacheKafka,
        deployment: Deployment,
        workers: list[Worker],
        agents: list[AgentProcess],
        *,
        gap_s: tuple[float, float],
        seed: int,
    ) -> None:
        self.counts: dict[str, int] = {}
        self._broker = broker
        self._deployment = deployment
        self._workers = workers
        self._agents = agents
        self._gap_s = gap_s
        self._rng = Random(seed)
        self._turns = itertools.count()

    def blow(self, seconds: float) -> None:
        """Do one fault after the other for so long."""
        ends_at = time.monotonic() + seconds
        for fault in itertools.cycle(FAULTS):
            pause_s = self._rng.uniform(*self._gap_s)
            if time.monotonic() + pause_s > ends_at:
                time.sleep(max(0.0, ends_at - time.monotonic()))
                return
            time.sleep(pause_s)
            console.print(f"{ends_at - time.monotonic():4.0f} s left: {fault}")
            self._do(fault)
            self.counts[fault] = self.counts.get(fault, 0) + 1

    def _do(self, fault: str) -> None:
        match fault:
            case "kill a worker":
                number = next(self._turns) % len(self._workers)
                self._workers[number].kill()
                time.sleep(self._rng.choice((0.0, AWAY_S)))
                self._workers[number] = self._deployment.start(instance=f"w-{number}")
            case "kill agents":
                self._agents[next(self._turns) % len(self._agents)].kill()
            case "restart the broker":
                self._broker.stop()
                time.sleep(AWAY_S)
                self._broker.start()
            case _:
                self._broker.kill()
                time.sleep(AWAY_S)
                self._broker.start()

    def revive(self) -> None:
        """See to it that both workers work."""
        for worker in self._workers:
            worker.ready()
