"""The control plane inside the process: what was read from Kafka on one side, the gates of the runs on the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from loopwarden.acknowledger import Acknowledger
from loopwarden.answers import Answers
from loopwarden.breakers import Breakers
from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import Clock
from loopwarden.command_desk import CommandDesk, Later
from loopwarden.decisions import StopCause
from loopwarden.faults import Counters
from loopwarden.fencing import OPERATOR
from loopwarden.gate import NOTHING_BLOCKED, Gate, Pause
from loopwarden.hosting import Hosting, matches
from loopwarden.records import EVERYONE, ControlRecord
from loopwarden.run_records import RunRecords, StoredRecord, binds
from loopwarden.signatures import Signatures, Trust
from loopwarden_models.codec import decode_message
from loopwarden_models.commands import Command
from loopwarden_models.control_state import ENFORCEMENT_KEY, BreakerState, EnforcementRecord, FenceRecord, RunRecord
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.questions import AnswerRecord, QuestionRecord

_OBSERVE_ONLY = "observe_only"

# How far ahead a host's clock may be before a process that has just begun believes a live breaker to be over.
# lifecycle 75 has ten minutes.
HOST_CLOCK_ERROR_MS = 900_000


class ControlPlane:
    """Applies control records to gates, and checks every run that begins.

    Thread-safe. One lock, held for one record or for the start or end of one run: never while a record is awaited,
    never while code of the agent runs, and no step takes it.

    Attributes:
        answers: What people said to questions of this tenant's runs; read without the lock.
    """

    def __init__(
        self,
        *,
        tenant: str,
        acks: Acknowledger,
        broker: BrokerClock,
        breakers: Breakers,
        clock: Clock,
        counters: Counters,
        signatures: Signatures,
        allow_free_text: bool = False,
    ) -> None:
        self._tenant = tenant
        self._signatures = signatures
        self._acks = acks
        self._broker = broker
        self._breakers = breakers
        self._clock = clock
        self._counters = counters
        self._hosting = Hosting()
        self._records = RunRecords()
        self._allow_free_text = allow_free_text
        self.answers = Answers()
        self._enforcement_version: list[int] = [0, 0]
        self._desk = CommandDesk(
            self._hosting, acks=acks, broker=broker, clock=clock, counters=counters, allow_free_text=allow_free_text
        )
        self._lock = threading.Lock()
        self._is_ready = False
        self._has_followed = False

    def numbers(self) -> dict[str, int]:
        """Return gauges: live runs, run records held, tools whose breaker is open, enforcement on (1) or off (0)."""
        return {
            "runs_live": len(self._hosting),
            "run_records": len(self._records),
            "breakers_open": len(self._breakers),
            "enforcing": int(self._desk.is_enforcing),
        }

    def ready(self) -> None:
        """Take note that everything that was there has been read: from now on records are news."""
        with self._lock:
            self._is_ready = True
            self._expire_breakers()

    def admit(self, gate: Gate) -> None:
        """Host a run, and shut or hold its gate if an order binds it before its first step.

        Looks at the records and at lasting commands of the run and of all its ancestors, and at the gates of those
        that live here: a tree cannot outrun its stop by having children.
        """
        with self._lock:
            # Hosted first: a command that is read from now on finds the gate by itself.
            self._hosting.add(gate)
            above = self._hosting.stopped_ancestor(gate.key)
            if above is not None:
                run_id, cause = above
                gate.shut(StopCause(cause.status, f"{run_id} was stopped: {cause.reason}", cause.command_id))
            for run_id, incarnation in [*gate.key.ancestors, (gate.key.run_id, gate.key.incarnation)]:
                stored = self._records.get(run_id)
                if stored is not None:
                    self._bind(gate, stored, incarnation, run_id, was_first=True)
            self._desk.admit(gate, self._records.get(gate.key.run_id))

    def retire(self, gate: Gate, status: str) -> None:
        """The run's code has returned."""
        with self._lock:
            self._desk.retire(gate)
            self._hosting.remove(gate, status)

    def tick(self) -> None:
        """Do what only time makes due."""
        with self._lock:
            self._desk.tick()
            # Not while the past is being read: a lease that is over there was renewed further on.
            if self._is_ready:
                self._expire_breakers()

    def receive(self, record: ControlRecord) -> None:
        """Apply one record. A record that is broken or not for us is counted and skipped.

        Never raises. Cost: about 10 µs, 0.2 ms where signatures are checked, and what the agents' `cancel` functions
        take.
        """
        later: list[Later] = []
        try:
            received_ms = self._clock.monotonic_ms()
            # Outside the lock: it is the dearest part, and a run that begins must not wait for it.
            trust = self._signatures.judge(record, self._tenant)
            with self._lock:
                if record.append_ms > 0:
                    self._broker.observe(record.append_ms, received_ms)
                    self._has_followed = self._is_ready
                later = self._command(record, trust) if record.inlet == "commands" else self._state(record, trust)
        except InvalidEvent as error:
            self._counters.add("control_invalid")
            self._counters.warn(f"control {error.reason}", "skipped a control record: %s", error)
        except Exception as error:  # noqa: BLE001 - one record must not end the thread that reads all others
            self._counters.fault("control record", error)
        for call in later:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the agent's own function; the gate is shut already
                self._counters.add("cancel_errors")
                self._counters.warn("cancel", "the run's cancel function failed: %r", error, trace=error)

    def _command(self, record: ControlRecord, trust: Trust) -> list[Later]:
        command = decode_message(record.value, Command)
        if command.tenant != self._tenant:
            return []
        self._counters.add("commands_read")
        if trust.refusal:
            self._desk.refuse(command, trust.refusal)
            return []
        if self._signatures.is_checking and not trust.is_proven and command.message is not None:
            # Whoever has no key must not write prompts, whatever is allowed.
            command = msgspec.structs.replace(command, message=None)
        return self._desk.receive(command, record.append_ms)

    def _state(self, record: ControlRecord, trust: Trust) -> list[Later]:
        if trust.refusal:
            return []
        key = (record.key or b"").decode("utf-8", "replace")
        tenant, _, rest = key.partition("|")
        kind, _, name = rest.partition("|")
        if record.value is None and self._signatures.is_required and not self._may_forget(tenant, kind, name):
            self._counters.add("tombstones_refused")
            return []
        if tenant == EVERYONE and kind == "fence":
            if record.value is not None and name.isdecimal():
                self._desk.fences.announce(int(name), decode_message(record.value, FenceRecord).epoch)
        elif key == ENFORCEMENT_KEY:
            self._switch(record)
        elif tenant == self._tenant and kind == "run":
            return self._run_record(name, record)
        elif tenant == self._tenant and kind == "breaker" and name:
            if record.value is None:
                self._breakers.delete(name, record.append_ms)
            else:
                self._breakers.put(name, decode_message(record.value, BreakerState), record.value, record.append_ms)
        elif tenant == self._tenant and kind == "question" and name:
            question = None if record.value is None else decode_message(record.value, QuestionRecord)
            self.answers.put_question(name, question)
        elif tenant == self._tenant and kind == "approval" and name:
            self._answer(name, record, trust)
        elif tenant in {self._tenant, EVERYONE}:
            # Kinds of a later version.
            self._counters.add("control_ignored")
        return []

    def _answer(self, question_id: str, record: ControlRecord, trust: Trust) -> None:
        answer = None if record.value is None else decode_message(record.value, AnswerRecord)
        # Whoever has no key must not write prompts, whatever is allowed.
        may_speak = self._allow_free_text and (trust.is_proven or not self._signatures.is_checking)
        if not self.answers.put_answer(question_id, answer, may_speak=may_speak):
            self._counters.add("answers_unknown")

    def _may_forget(self, tenant: str, kind: str, name: str) -> bool:
        """Return whether a deletion, which nobody can sign, lets go of nothing that still binds."""
        if tenant != self._tenant or kind != "run":
            return False
        stored = self._records.get(name)
        return stored is None or not binds(stored.record, "", self._broker.at(self._clock.monotonic_ms()))

    def _switch(self, record: ControlRecord) -> None:
        is_enforcing = True
        if record.value is None:
            self._enforcement_version = [0, 0]
        else:
            switch = decode_message(record.value, EnforcementRecord)
            if switch.version < self._enforcement_version:
                return
            self._enforcement_version = switch.version
            is_enforcing = switch.state != _OBSERVE_ONLY
        if is_enforcing == self._desk.is_enforcing:
            return
        self._desk.is_enforcing = self._breakers.is_enforcing = is_enforcing
        if not is_enforcing:
            self._desk.suspend()
        for gate in self._hosting.gates():
            stored = self._records.get(gate.key.run_id)
            gate.blocked = self._blocked(gate, stored) if stored is not None else NOTHING_BLOCKED

    def _run_record(self, run_id: str, record: ControlRecord) -> list[Later]:
        if record.value is None:
            self._records.remove(run_id)
            for gate in self._hosting.gates():
                gate.lift(lambda holder, _: holder == _holder(run_id))
            return []
        if not self._records.put(run_id, decode_message(record.value, RunRecord), record.append_ms):
            return []
        stored = self._records.get(run_id)
        if stored is None:
            return []
        later: list[Later] = []
        for gate in self._hosting.gates():
            for name, incarnation in (*gate.key.ancestors, (gate.key.run_id, gate.key.incarnation)):
                if name == run_id:
                    # What was there before we had caught up came before the run's first step, or should have.
                    was_first = not self._is_ready or self._began_after(gate, stored)
                    later += self._bind(gate, stored, incarnation, run_id, was_first=was_first)
        return later

    def _bind(self, gate: Gate, stored: StoredRecord, incarnation: str, run_id: str, *, was_first: bool) -> list[Later]:
        """Let a record of the run, or of an ancestor, act on a gate.

        A record that came after the run's first step binds it only if it is `killed` and names this incarnation or
        any: a run that another runtime took up at the same time is not meant (lifecycle 26), and all else that is
        for a running incarnation comes as a command, with a command's checks.
        """
        record = stored.record
        is_own = run_id == gate.key.run_id
        if is_own:
            gate.blocked = self._blocked(gate, stored)
        broker_ms = self._broker.at(self._clock.monotonic_ms())
        if not binds(record, incarnation, broker_ms):
            gate.lift(lambda holder, _: holder == _holder(run_id))
            return []
        if not was_first and not (record.state == "killed" and matches(record.incarnation, incarnation)):
            return []
        if not self._desk.is_enforcing and record.state != "killed":
            return []
        reason = _describe(run_id, stored, is_own=is_own)
        if record.state == "paused":
            gate.hold(_holder(run_id), Pause(reason, record.command_id, record.writer, stored.append_ms))
            return []
        is_first_hit = record.state == "kill_wanted"
        cause = StopCause("killed", reason, record.command_id, stored.append_ms, confirm=is_first_hit)
        if not gate.shut(cause):
            return []
        if is_first_hit and record.command_id is not None:
            self._desk.fences.applied(record.command_id, gate.key.run_id, gate.key.incarnation)
            for status in ("received", "applied"):
                self._acks.send(gate.key, record.command_id, status, append_ms=stored.append_ms)
        cancel = gate.cancel
        return [] if cancel is None else [lambda: cancel(reason)]

    def _blocked(self, gate: Gate, stored: StoredRecord) -> Mapping[str, float]:
        record = stored.record
        if not record.blocked_tools or not self._desk.is_enforcing:
            return NOTHING_BLOCKED
        if record.state == "released" or not matches(record.incarnation, gate.key.incarnation):
            return NOTHING_BLOCKED
        return {blocked.tool: float(blocked.until_ms) for blocked in record.blocked_tools}

    def _expire_breakers(self) -> None:
        broker_ms = self._broker.at(self._clock.monotonic_ms())
        if broker_ms is None:
            return
        if not self._has_followed:
            # What lay there says only that the broker's clock is at least so far: the open breaker of a detector that
            # died hours ago would be its own witness that its lease is not over, in each new process. Until a first
            # record comes by, and a lease that is alive is renewed within a minute, a host clock is asked that would
            # have to be very wrong.
            broker_ms = max(broker_ms, self._clock.unix_ms() - HOST_CLOCK_ERROR_MS)
        self._breakers.expire(broker_ms)

    def _began_after(self, gate: Gate, stored: StoredRecord) -> bool:
        began_ms = self._broker.at(gate.started_ms)
        return began_ms is not None and stored.append_ms <= began_ms


def _holder(run_id: str) -> str:
    return f"record:{run_id}"


def _describe(run_id: str, stored: StoredRecord, *, is_own: bool) -> str:
    record = stored.record
    verb = "paused" if record.state == "paused" else "killed"
    at = datetime.fromtimestamp(stored.append_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    who = "this run" if is_own else f"its ancestor {run_id}"
    why = ""
    if record.reason is not None:
        is_told = record.writer == OPERATOR and record.reason.note
        why = f": {record.reason.note if is_told else f'{record.reason.pattern} x{record.reason.count}'}"
    return f"{who} was {verb} by the {record.writer} at {at}{why}"
