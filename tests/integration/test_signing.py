"""Signed orders from a real worker to a real runtime process, forged ones among them, and a rotation of keys."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests._support.kafka import ApacheKafka, OutRecord, produce
from tests._support.keys import STRANGER
from tests._support.workers import Deployment, Worker, wait_until

from loopwarden.testing import TENANT, kill, run_record
from loopwarden_models.codec import encode
from loopwarden_models.ids import control_partition
from loopwarden_models.key_ring import KeyRing
from loopwarden_streams.signing import load_signing_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loopwarden_models.commands import Command
    from loopwarden_models.signing import SigningKey

# A run that never ends is killed at its twelfth call, a second after it began.
POLICY = "budget: {observe_steps: 5, nudge_steps: 8, max_steps_if_stuck: 12, limits: {max_steps: 12}}"

# Told what to do by the lines of its standard input; ends with it.
AGENTS = """
import json, sys, threading, time
import loopwarden

guard = loopwarden.Guard(loopwarden.KafkaTransport(sys.argv[1], prefix=sys.argv[2]), tenant="acme", runtime_id="rt-1")
assert guard.start(barrier_s=30.0)

speaking = threading.Lock()

def say(*words):
    with speaking:
        print(json.dumps(words), flush=True)

def work(run_id, is_busy):
    try:
        with guard.run(run_id) as run:
            say("begun", run_id, run.key.incarnation)
            n = 0
            while not run.stopped:
                if is_busy and run.before_tool("search", {"page": n}, f"c{n}").allowed:
                    run.after_tool(f"c{n}", result=f"page {n}")
                    n += 1
                time.sleep(0.05)
        say("stopped", run_id)
    except loopwarden.LoopwardenStopped as stopped:
        say("refused", run_id, str(stopped))

for line in sys.stdin:
    what, run_id = line.split()
    if what == "stats":
        say("stats", guard.stats())
    else:
        threading.Thread(target=work, args=(run_id, what == "loop"), daemon=True).start()
guard.close(flush_s=10.0)
"""


class Agents:
    """A process of agents that require signatures by their environment."""

    def __init__(self, deployment: Deployment, ring: Path) -> None:
        environ = {"LOOPWARDEN_KEY_RING": str(ring), "LOOPWARDEN_REQUIRE_SIGNATURE": "true"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENTS, deployment.bootstrap, deployment.prefix],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._heard: queue.Queue[list[Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.said: list[list[Any]] = []

    def tell(self, what: str, run_id: str = "-") -> None:
        """Let a run begin that calls a tool for ever (`loop`) or does nothing (`idle`), or ask for `stats`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {run_id}\n")
        self._process.stdin.flush()

    def hear(self, *words: Any, timeout_s: float = 60.0) -> list[Any]:
        """Wait for something to be said that begins with these words, and return all of it."""
        deadline = time.monotonic() + timeout_s
        while True:
            for said in self.said:
                if said[: len(words)] == list(words):
                    return said
            try:
                self.said.append(self._heard.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                pytest.fail(f"waited {timeout_s:g} s for {words}, heard {self.said}")

    def stats(self) -> dict[str, Any]:
        """Return the numbers of the guard."""
        self.said = [said for said in self.said if said[0] != "stats"]
        self.tell("stats")
        stats: dict[str, Any] = self.hear("stats")[1]
        return stats

    def close(self) -> None:
        """Let the process send what it has, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(json.loads(line))


@contextlib.contextmanager
def agents(deployment: Deployment, ring: Path) -> Iterator[Agents]:
    """Start a process of agents, and end it."""
    with contextlib.closing(Agents(deployment, ring)) as process:
        yield process


class Keys:
    """Private keys in one directory, the ring of the runtimes in another; made by the command line."""

    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self._deployment = deployment
        self._private = directory / "private"
        self.ring = directory / "ring"
        self.ring.mkdir()

    def make(self, kid: str, *words: str) -> SigningKey:
        """Make a pair, and return its private key."""
        done = self._deployment.command("keys", "generate", "--kid", kid, "--out", str(self._private), *words)
        assert done.returncode == 0, done.stderr
        return load_signing_key(self.file(kid))

    def file(self, kid: str) -> Path:
        """Return where a private key lies."""
        return self._private / f"{kid}.key"

    def publish(self, kid: str, **fields: Any) -> None:
        """Put a public key into the ring, or change it there."""
        key = json.loads((self._private / f"{kid}.pub").read_text())
        # As an operator's tools do it: never half a file under the name that is read.
        new = self.ring / f"{kid}.pub.new"
        new.write_text(json.dumps({**key, **fields}))
        new.rename(self.ring / f"{kid}.pub")


def order(deployment: Deployment, value: bytes, *, topic: str = "control.commands", key: str = "acme|r") -> None:
    """Write a record to a control topic, as whoever may write there can."""
    partition = control_partition(TENANT, deployment.settings().control_partitions)
    produce(deployment.bootstrap, deployment.topic(topic), [OutRecord(partition, key.encode(), value)])


def answers(deployment: Deployment, command_id: str) -> list[tuple[str, str]]:
    """Return the status and the detail of every acknowledgement of a command."""
    acks = [ack for ack in deployment.messages("acks") if ack["command_id"] == command_id]
    return [(ack["status"], ack.get("detail", "")) for ack in acks]


def answered(deployment: Deployment, command_id: str, times: int = 1) -> list[tuple[str, str]]:
    """Wait for so many acknowledgements of a command, and return them."""
    return wait_until(
        lambda: found if len(found := answers(deployment, command_id)) >= times else [],
        f"{times} acknowledgements of {command_id}",
    )


def kill_of(deployment: Deployment, run_id: str) -> dict[str, Any]:
    """Return the kill that the detector has ordered for a run."""
    commands = deployment.messages("control.commands")
    (found,) = [one for one in commands if one["type"] == "kill_run" and one["run_id"] == run_id]
    return found


def now_ms() -> int:
    """Return the time of the broker and of everybody here, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def fresh_kill(run: list[Any], command_id: str, **fields: Any) -> Command:
    """Return a kill of a run that has `begun`."""
    return kill(run[1], incarnation=run[2], command_id=command_id, issued_at_ms=now_ms(), seq=10**9, **fields)


def check_all_signed(deployment: Deployment, ring: Path) -> set[str]:
    """Assert that a runtime would believe every record on the control topics, and return who signed them."""
    keys = KeyRing.load(ring)
    records = [*deployment.messages("control.commands"), *deployment.messages("control.state")]
    assert records
    return {keys.check(record, at_ms=now_ms()).kid for record in records}


def start(deployment: Deployment, keys: Keys, kid: str) -> Worker:
    """Start a worker that signs with this key."""
    return deployment.start(signing_key_file=str(keys.file(kid)))


@pytest.mark.slow
def test_a_signed_kill_lands_and_a_forged_one_is_answered_failed(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The whole of case 11: a detector and an operator with keys, and four people without."""
    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", policy=POLICY) as deployment:
        keys = Keys(deployment, tmp_path)
        detector, stolen = keys.make("d1"), keys.make("stolen")
        keys.make("ops", "--role", "operator")
        keys.publish("d1")
        keys.publish("stolen", withdrawn=True)
        keys.publish("ops")
        start(deployment, keys, "d1").ready()
        with agents(deployment, keys.ring) as process:
            process.tell("loop", "r-1")
            process.hear("stopped", "r-1")
            real = kill_of(deployment, "r-1")
            assert [status for status, _ in answered(deployment, real["command_id"], 3)] == [
                "received",
                "applied",
                "confirmed_dead",
            ]
            assert check_all_signed(deployment, keys.ring) == {"d1"}

            process.tell("idle", "r-2")
            run = process.hear("begun", "r-2")
            moved = {**real, "run_id": "r-2", "incarnation": run[2], "command_id": "moved", "seq": 10**9}
            order(deployment, encode(fresh_kill(run, "unsigned")))
            order(deployment, STRANGER.encode(fresh_kill(run, "stranger")))
            order(deployment, stolen.encode(fresh_kill(run, "stolen")))
            order(
                deployment, msgspec.json.encode({**moved, "issued_at_ms": now_ms(), "expires_at_ms": now_ms() + 60_000})
            )
            order(deployment, detector.encode(fresh_kill(run, "role", writer="operator")))
            # A level instead of an edge: it is ignored, and there is nobody to answer.
            record = run_record("r-2", "killed", version=(10**6, 1))
            order(deployment, encode(record), topic="control.state", key=record.key)
            assert answered(deployment, "unsigned") == [("failed", "not signed")]
            assert answered(deployment, "stranger") == [("failed", "key 'stranger' is not in the key ring")]
            assert answered(deployment, "stolen") == [("failed", "key 'stolen' was withdrawn")]
            assert answered(deployment, "moved") == [
                ("failed", "the signature is not that of key 'd1' over this record")
            ]
            assert answered(deployment, "role") == [
                ("failed", "key 'd1' is a key of the detector, this needs the operator's")
            ]
            wait_until(lambda: process.stats()["signatures_refused"] == 6, "the forged record to be read")
            assert ["stopped", "r-2"] not in process.said

            # An operator's order, signed on the command line. That it ends the run shows that nothing did before.
            file = tmp_path / "order.json"
            file.write_bytes(encode(fresh_kill(run, "ops", writer="operator")))
            signed = deployment.command("keys", "sign", str(file), "--key", str(keys.file("ops")))
            assert signed.returncode == 0, signed.stderr
            order(deployment, signed.stdout.strip().encode())
            process.hear("stopped", "r-2")
            assert process.stats()["signatures_refused"] == 6


@pytest.mark.slow
def test_a_rotation_leaves_no_gap(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The steps of docs/signing.md, with runs that loop all the while: each is stopped, and no order is refused."""
    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", policy=POLICY) as deployment:
        keys = Keys(deployment, tmp_path)
        old, _ = keys.make("d1"), keys.make("d2")
        keys.publish("d1")
        first = start(deployment, keys, "d1").ready()
        with agents(deployment, keys.ring) as process:
            process.tell("loop", "r-1")
            process.hear("stopped", "r-1")
            # 1. The new public key goes to every runtime; nobody is restarted.
            keys.publish("d2")
            # 2. The workers get the new private key, one by one: for a while both keys sign.
            second = start(deployment, keys, "d2").ready()
            wait_until(lambda: first.owned() and second.owned(), "both workers to own partitions")
            runs = [f"r-{number}" for number in range(10, 18)]
            for run_id in runs:
                process.tell("loop", run_id)
            for run_id in runs:
                process.hear("stopped", run_id)
            assert {kill_of(deployment, run_id)["kid"] for run_id in runs} == {"d1", "d2"}
            process.tell("loop", "r-20")
            process.hear("begun", "r-20")
            assert first.stop() == 0
            process.hear("stopped", "r-20")
            process.tell("loop", "r-21")
            process.hear("stopped", "r-21")
            assert kill_of(deployment, "r-21")["kid"] == "d2"
            assert "signatures_refused" not in process.stats()
            deployment.wait_applied("acks")
            # 3. The old key ends now: nothing new is believed of it, and what it said while it was valid is.
            keys.publish("d1", not_after=datetime.now(UTC).isoformat())
            process.tell("idle", "r-30")
            run = process.hear("begun", "r-30")
            reloads = process.stats().get("key_ring_reloads", 0)

            def is_refused() -> bool:
                command_id = f"late-{now_ms()}"
                order(deployment, old.encode(kill("r-30", incarnation="nobody's", command_id=command_id)))
                return answered(deployment, command_id)[0][0] == "failed"

            wait_until(is_refused, f"the ring to be read again (reloads: {reloads})")
            order(deployment, old.encode(fresh_kill(run, "late")))
            assert answered(deployment, "late") == [
                ("failed", "key 'd1' was not valid any more when this was appended")
            ]
        with agents(deployment, keys.ring) as later:
            later.tell("loop", "r-1")
            assert "killed" in later.hear("refused", "r-1")[2]
            assert "signature_out_of_time" in later.stats()
