"""For tests, ours and those of users: Kafka in memory, clocks that are turned by hand, and builders of orders.

    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key))
        bench.pump()
        assert run.stopped

Nothing here starts a thread: `pump` does the threads' work in the test's own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from loopwarden.decisions import RunKey
from loopwarden.guard import Guard
from loopwarden.records import ControlRecord, Inlet, Outgoing, Outlet
from loopwarden.transport import ControlFeed
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message, decode_step, encode
from loopwarden_models.commands import ANY_INCARNATION, Command, EvidenceRange, Reason
from loopwarden_models.control_state import (
    ENFORCEMENT_KEY,
    BreakerState,
    EnforcementRecord,
    FenceRecord,
    RunRecord,
    breaker_key,
    fence_key,
    run_record_key,
)
from loopwarden_models.errors import TransportError
from loopwarden_models.events import AnyStep
from loopwarden_models.questions import AnswerRecord, QuestionRecord, answer_key

TENANT = "acme"
START_MS = 1_800_000_000_000
"""Where a `ManualClock` begins, Unix milliseconds."""


class ManualClock:
    """A clock that stands still until it is moved.

    Attributes:
        host_skew_ms: How far the host's wall clock is ahead of the broker's.
    """

    def __init__(self, start_ms: int = START_MS, *, host_skew_ms: int = 0) -> None:
        self._now_ms = start_ms
        self.host_skew_ms = host_skew_ms
        self._start_ms = start_ms

    def broker_ms(self) -> int:
        """Return what the broker's clock shows, Unix milliseconds."""
        return self._now_ms

    def unix_ms(self) -> int:
        """Return what the host's wall clock shows."""
        return self._now_ms + self.host_skew_ms

    def monotonic_ms(self) -> float:
        """Return milliseconds since the clock was made, plus 5,000."""
        return float(self._now_ms - self._start_ms + 5_000)

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self._now_ms += ms


class MemoryTransport:
    """The four topics as lists. Thread-safe, so a guard may also be started on it.

    Attributes:
        is_down: Set it to cut the connection: nothing is sent or read until it is False again.
    """

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.is_down = False
        self._changed = threading.Condition()
        self._sent: dict[Outlet, list[Outgoing]] = {"steps": [], "acks": []}
        self._control: list[ControlRecord] = []
        self._position = 0

    # What the guard does.

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Keep the records."""
        if self.is_down:
            raise TransportError("down")
        with self._changed:
            self._sent[topic].extend(batch)
            self._changed.notify_all()
        return [], 0

    def open_control(self, tenant: str) -> ControlFeed:
        """Read on from where the last feed ended."""
        if self.is_down:
            raise TransportError(f"down, no orders for {tenant}")
        return _MemoryFeed(self, caught_up_at=len(self._control))

    def close(self, timeout_s: float) -> None:
        """Do nothing."""

    # What a test does.

    def command(self, command: Command, *, append_ms: int | None = None) -> None:
        """Append a command, now or at a given time of the broker."""
        self._append("commands", f"{command.tenant}|{command.run_id}", encode(command), append_ms)

    def state(
        self,
        record: RunRecord | BreakerState | FenceRecord | EnforcementRecord | QuestionRecord | AnswerRecord,
        *,
        append_ms: int | None = None,
    ) -> None:
        """Append a record of `control.state`."""
        self._append("state", record.key, encode(record), append_ms)

    def raw(self, inlet: Inlet, key: str, value: bytes | None) -> None:
        """Append any bytes; `None` is a tombstone."""
        self._append(inlet, key, value, None)

    @property
    def steps(self) -> list[AnyStep]:
        """The step events that were published."""
        found = [decode_step(record.value) for record in self._sent["steps"]]
        return [step for step in found if step is not None]

    @property
    def acks(self) -> list[Ack]:
        """The acknowledgements that were published."""
        return [decode_message(record.value, Ack) for record in self._sent["acks"]]

    @property
    def records(self) -> list[Outgoing]:
        """The records of the steps topic as bytes."""
        return list(self._sent["steps"])

    def statuses(self, command_id: str) -> list[str]:
        """Return the acknowledgements of one command, in order."""
        return [ack.status for ack in self.acks if ack.command_id == command_id]

    def _append(self, inlet: Inlet, key: str, value: bytes | None, append_ms: int | None) -> None:
        at_ms = self.clock.broker_ms() if append_ms is None else append_ms
        with self._changed:
            self._control.append(ControlRecord(inlet, key.encode(), value, at_ms))
            self._changed.notify_all()

    def read(self, timeout_s: float) -> list[ControlRecord]:
        """Return what was appended since the last call."""
        with self._changed:
            if self._position >= len(self._control) and timeout_s > 0:
                self._changed.wait(timeout_s)
            if self.is_down:
                raise TransportError("down")
            begin, self._position = self._position, len(self._control)
            return self._control[begin:]

    @property
    def position(self) -> int:
        """How many control records were read."""
        return self._position


class _MemoryFeed:
    def __init__(self, transport: MemoryTransport, *, caught_up_at: int) -> None:
        self._transport = transport
        self._caught_up_at = caught_up_at

    @property
    def is_caught_up(self) -> bool:
        return self._transport.position >= self._caught_up_at

    def poll(self, timeout_s: float) -> Sequence[ControlRecord]:
        return self._transport.read(timeout_s)

    def close(self) -> None:
        pass


class GuardBench:
    """A guard on a `MemoryTransport` and a `ManualClock`, driven by the test.

    Args:
        options: Of `Guard`, besides transport, tenant, runtime id and clock.
    """

    def __init__(self, *, transport: MemoryTransport | None = None, **options: Any) -> None:
        self.transport = transport or MemoryTransport()
        self.clock = self.transport.clock
        self.guard = Guard(self.transport, tenant=TENANT, runtime_id="rt-1", clock=self.clock, **options)

    def pump(self) -> None:
        """Read all orders and publish everything that waits."""
        self.guard.pump()


def command(
    kind: str,
    run: RunKey | str,
    *,
    command_id: str = "c1",
    incarnation: str | None = None,
    epoch: int = 42,
    seq: int = 100,
    life_ms: int = 120_000,
    issued_at_ms: int = START_MS,
    steps_partition: int | None = None,
    **fields: Any,
) -> Command:
    """Return a command by the detector in mode `enforce`: for one incarnation, or for any if only a run id is given.

    Args:
        kind: `nudge`, `pause_run`, `resume_run`, `kill_run`, or what no runtime knows.
        run: The run's key, or its id.
        command_id: Its id.
        incarnation: Overrides that of `run`.
        epoch: Of the writer.
        seq: Within the epoch.
        life_ms: From issue to expiry.
        issued_at_ms: Unix milliseconds.
        steps_partition: Partition of the evidence, whose fence then counts.
        fields: Any other field of `Command`.
    """
    fields = {"type": kind, "tenant": TENANT, **fields}
    key = run if isinstance(run, RunKey) else RunKey(TENANT, str(run), "", ANY_INCARNATION)
    evidence = None if steps_partition is None else EvidenceRange("loopwarden.steps", steps_partition, [0, 1])
    return Command(
        v=1,
        command_id=command_id,
        run_id=key.run_id,
        root_run_id=key.root_run_id or None,
        incarnation=incarnation or key.incarnation,
        epoch=epoch,
        seq=seq,
        issued_at_ms=issued_at_ms,
        expires_at_ms=issued_at_ms + life_ms,
        evidence=evidence,
        **fields,
    )


def kill(run: RunKey | str, **fields: Any) -> Command:
    """Return a `kill_run`, see `command`."""
    return command("kill_run", run, **{"reason": Reason("tool_oscillation", "cycle", 5, tool="search"), **fields})


def nudge(run: RunKey | str, **fields: Any) -> Command:
    """Return a `nudge` about five equal calls of `search`, see `command`."""
    reason = Reason("tool_repetition", "exact_repeat", 5, tool="search")
    return command("nudge", run, **{"reason": reason, "message_id": "nudge.exact_repeat", **fields})


def pause(run: RunKey | str, **fields: Any) -> Command:
    """Return a `pause_run`, see `command`."""
    return command("pause_run", run, **fields)


def resume(run: RunKey | str, **fields: Any) -> Command:
    """Return a `resume_run`, see `command`."""
    return command("resume_run", run, **fields)


def run_record(run_id: str, state: str, *, version: tuple[int, int] = (42, 100), **fields: Any) -> RunRecord:
    """Return a run's record on `control.state`."""
    return RunRecord(v=1, key=run_record_key(TENANT, run_id), version=list(version), state=state, **fields)


def breaker(
    tool: str, state: str, *, version: tuple[int, int] = (42, 100), lease_ms: int | None = 120_000, **fields: Any
) -> BreakerState:
    """Return the state of a tool's breaker.

    Args:
        tool: The tool.
        state: `open`, `half_open`, `closed`, `forced_open`, `disabled`, `observe_only`.
        version: `(epoch, seq)` of its writer.
        lease_ms: End of the lease, from `START_MS` on; left out for the states that have none.
        fields: Any other field of `BreakerState`, and `tenant`.
    """
    if lease_ms is not None and state in {"open", "half_open"}:
        fields.setdefault("lease_until_ms", START_MS + lease_ms)
    key = breaker_key(fields.pop("tenant", TENANT), tool)
    return BreakerState(v=1, key=key, version=list(version), state=state, **fields)


def fence(steps_partition: int, epoch: int) -> FenceRecord:
    """Return the announcement of a partition's new owner."""
    return FenceRecord(v=1, key=fence_key(steps_partition), epoch=epoch, owner="w-1", at_ms=START_MS)


def enforcement(state: str, *, version: tuple[int, int] = (1, 1)) -> EnforcementRecord:
    """Return the big switch: `observe_only`, or anything else for on."""
    return EnforcementRecord(v=1, key=ENFORCEMENT_KEY, version=list(version), state=state)


def answer(
    question_id: str, decision: str, *, action_hash: str, version: tuple[int, int] = (1, 1), **fields: Any
) -> AnswerRecord:
    """Return what a person says to a question: `approved`, `rejected` or `instructed`, for one action."""
    key = answer_key(TENANT, question_id)
    fields = {"at_ms": START_MS, **fields}
    return AnswerRecord(v=1, key=key, version=list(version), decision=decision, action_hash=action_hash, **fields)
