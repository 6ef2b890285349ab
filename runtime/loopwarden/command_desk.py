"""Commands: checked one by one, in the order of the contract, and applied to the gates they are meant for.

The first check, of the signature, was made before: `refuse` answers what did not pass it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from loopwarden.acknowledger import Acknowledger
from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import Clock
from loopwarden.decisions import RunKey, StopCause
from loopwarden.faults import Counters
from loopwarden.fencing import OPERATOR, WRITERS, Fences
from loopwarden.gate import Gate, Pause
from loopwarden.hosting import Hosting, matches
from loopwarden.nudges import Nudge, render
from loopwarden.run_records import StoredRecord
from loopwarden_models.commands import ANY_INCARNATION, COMMAND_TYPES, Command
from loopwarden_models.patterns import MODES

_SCOPES: Final = frozenset({"run", "tree"})

# Commands for any incarnation that a run may meet when it begins; a nudge to nobody is no use later.
_LASTING: Final = frozenset({"kill_run", "pause_run", "resume_run"})
MAX_WAITING_RUNS = 10_000

Later = Callable[[], object]
"""Something to do when no lock is held any more."""


class CommandDesk:
    """Decides what becomes of a command. For one thread at a time: the control plane holds its lock."""

    def __init__(
        self,
        hosting: Hosting,
        *,
        acks: Acknowledger,
        broker: BrokerClock,
        clock: Clock,
        counters: Counters,
        allow_free_text: bool,
    ) -> None:
        self.fences = Fences()
        self.is_enforcing = True
        self._hosting = hosting
        self._acks = acks
        self._broker = broker
        self._clock = clock
        self._counters = counters
        self._allow_free_text = allow_free_text
        # By run and writer: what a run that begins here has to obey.
        self._waiting: OrderedDict[str, dict[str, tuple[Command, int]]] = OrderedDict()
        self._released_ms: OrderedDict[str, int] = OrderedDict()
        self._open_nudges: list[tuple[Gate, Nudge]] = []

    def receive(self, command: Command, append_ms: int) -> list[Later]:
        """Judge one command of this tenant, acknowledge it, and apply it where it passes every check.

        Args:
            command: As read.
            append_ms: The broker's append time.

        Returns:
            What is left to do outside the lock: the agents' own `cancel` functions.
        """
        gates, ended = self._targets(command)
        keys = [gate.key for gate in gates] or ([ended] if ended is not None else [])
        lasts = command.incarnation == ANY_INCARNATION and command.type in _LASTING
        if not keys and not lasts:
            return []
        refusal = self._refuse(command, append_ms)
        if refusal is not None:
            for key in keys:
                self._answer(key, command, *refusal)
            return []
        if command.type == "resume_run" and command.writer == OPERATOR:
            self._remember_release(command)
        if lasts:
            self._remember(command, append_ms)
        if not gates and ended is not None:
            if not matches(command.incarnation, ended.incarnation):
                self._answer(ended, command, "stale", "meant for another incarnation")
            else:
                self._answer(ended, command, "noop", "the run is over")
        return [later for gate in gates for later in self._apply_checked(command, gate, append_ms)]

    def refuse(self, command: Command, detail: str) -> None:
        """Answer `failed` to a command that is not believed. It leaves no trace: it is not from whom it says.

        Nothing is said for an id that was applied: a copy that somebody has changed must not make the detector think
        that the original failed.
        """
        gates, ended = self._targets(command)
        for key in [gate.key for gate in gates] or ([ended] if ended is not None else []):
            if not self.fences.was_applied(command.command_id, key.run_id, key.incarnation):
                self._answer(key, command, "failed", detail)

    def admit(self, gate: Gate, record: StoredRecord | None) -> None:
        """Apply what was ordered, for any incarnation, before this run began.

        Args:
            gate: Of the run that begins.
            record: The run's record on `control.state`, whose `released` may be newer than a command.
        """
        above = [(run_id, True) for run_id, _ in gate.key.ancestors]
        for run_id, is_ancestor in [*above, (gate.key.run_id, False)]:
            slots = self._waiting.get(run_id, {})
            for command, append_ms in list(slots.values()):
                if is_ancestor and command.scope != "tree":
                    continue
                if command.type == "resume_run" or self._is_released(command, append_ms, record, is_ancestor):
                    continue
                if self._is_expired(command, append_ms) or self._is_fenced(command):
                    continue
                self._apply_checked(command, gate, append_ms)

    def retire(self, gate: Gate) -> None:
        """End the nudges of a run that is over: no prompt will carry them."""
        self._settle_nudges(lambda other, _: other is gate, "expired", "the run ended first")

    def tick(self) -> None:
        """Let nudges expire that no prompt has carried within their life."""
        if self._open_nudges:
            now_ms = self._clock.monotonic_ms()
            self._settle_nudges(lambda _, nudge: now_ms >= nudge.expires_ms, "expired", "no prompt was built in time")

    def suspend(self) -> None:
        """Enforcement was switched off: let go of what is not final. Stopped runs stay stopped."""
        self._settle_nudges(lambda _gate, _nudge: True, "noop", _SWITCHED_OFF)
        for gate in self._hosting.gates():
            gate.lift(lambda _, pause: pause.writer != OPERATOR)

    # The checks, in the order of the contract (control-plane 4).

    def _targets(self, command: Command) -> tuple[list[Gate], RunKey | None]:
        live = self._hosting.live(command.run_id)
        # One that fits, if any; else one speaks for all that the command was not meant for it.
        gates = [gate for gate in live if matches(command.incarnation, gate.key.incarnation)] or live[:1]
        if command.scope == "tree":
            gates += self._hosting.descendants(command.run_id, command.incarnation)
        ended = None if gates else self._hosting.ended(command.run_id)
        return gates, None if ended is None else ended.key

    def _refuse(self, command: Command, append_ms: int) -> tuple[str, str] | None:
        if command.type not in COMMAND_TYPES:
            return "unsupported", f"type {command.type!r}"
        if command.scope not in _SCOPES or command.writer not in WRITERS or command.mode not in MODES:
            return "unsupported", f"scope {command.scope!r}, writer {command.writer!r}, mode {command.mode!r}"
        if command.type == "nudge" and self._text(command) is None:
            return "unsupported", f"message_id {command.message_id!r}"
        if self._is_expired(command, append_ms):
            return "expired", ""
        if self._is_fenced(command):
            return "stale", "the partition has a newer owner"
        if self.fences.is_old(command.run_id, command.writer, (command.epoch, command.seq)):
            return "stale", "a newer command was seen"
        return None

    def _apply_checked(self, command: Command, gate: Gate, append_ms: int) -> list[Later]:
        key = gate.key
        if key.run_id == command.run_id and not matches(command.incarnation, key.incarnation):
            return self._answer(key, command, "stale", "meant for another incarnation")
        if self.fences.was_applied(command.command_id, key.run_id, key.incarnation):
            return self._answer(key, command, "noop", "applied before")
        if gate.over or gate.cause is not None:
            return self._answer(key, command, "noop", "the run is over" if gate.over else "the run is stopped already")
        if command.mode != "enforce":
            return self._answer(key, command, "noop", f"mode is {command.mode}")
        if not self.is_enforcing:
            return self._answer(key, command, "noop", _SWITCHED_OFF)
        match command.type:
            case "kill_run":
                return self._kill(command, gate, append_ms)
            case "pause_run":
                return self._pause(command, gate, append_ms)
            case "resume_run":
                return self._resume(command, gate, append_ms)
            case _:
                return self._nudge(command, gate, append_ms)

    def _is_expired(self, command: Command, append_ms: int) -> bool:
        life_ms = command.expires_at_ms - command.issued_at_ms
        now_ms = self._broker.at(self._clock.monotonic_ms())
        # The issuer's clock measures the life, the broker's the age: neither is compared with the other, or with ours.
        return life_ms <= 0 or (now_ms is not None and now_ms - append_ms >= life_ms)

    def _is_fenced(self, command: Command) -> bool:
        partition = command.evidence.partition if command.evidence is not None else None
        return self.fences.is_fenced(command.writer, partition, command.epoch)

    # What each type does.

    def _kill(self, command: Command, gate: Gate, append_ms: int) -> list[Later]:
        reason = describe(command)
        cause = StopCause("killed", reason, command.command_id, append_ms, confirm=True, grace_ms=command.grace_ms)
        if not gate.shut(cause):
            return self._answer(gate.key, command, "noop", "the run is stopped already")
        self._accept(gate, command, append_ms)
        self._acks.send(gate.key, command.command_id, "applied", append_ms=append_ms)
        self._settle_nudges(lambda other, _: other is gate, "expired", "the run was stopped first")
        cancel = gate.cancel
        return [] if cancel is None else [lambda: cancel(reason)]

    def _pause(self, command: Command, gate: Gate, append_ms: int) -> list[Later]:
        if command.writer != OPERATOR and command.issued_at_ms <= self._released_ms.get(command.run_id, -1):
            return self._answer(gate.key, command, "stale", "a person has released the run since")
        pause = Pause(describe(command), command.command_id, command.writer, command.issued_at_ms)
        if not gate.hold(command.writer, pause):
            return self._answer(gate.key, command, "noop", "paused already")
        self._accept(gate, command, append_ms)
        self._acks.send(gate.key, command.command_id, "applied", append_ms=append_ms)
        return []

    def _resume(self, command: Command, gate: Gate, append_ms: int) -> list[Later]:
        is_person = command.writer == OPERATOR

        def may_lift(_: str, pause: Pause) -> bool:
            if pause.writer == OPERATOR:
                return is_person
            # Two writers have no common version: the times at which they decided have to do.
            return not is_person or pause.ordered_ms <= command.issued_at_ms

        if not gate.lift(may_lift):
            return self._answer(gate.key, command, "noop", "held by another order" if gate.pause else "not paused")
        self._accept(gate, command, append_ms)
        self._acks.send(gate.key, command.command_id, "applied", append_ms=append_ms)
        return []

    def _nudge(self, command: Command, gate: Gate, append_ms: int) -> list[Later]:
        now_ms = self._clock.monotonic_ms()
        broker_ms = self._broker.at(now_ms)
        age_ms = max(0.0, broker_ms - append_ms) if broker_ms is not None else 0.0
        key, command_id = gate.key, command.command_id

        def end(status: str, detail: str) -> None:
            self._acks.send(key, command_id, status, append_ms=append_ms, detail=detail)

        nudge = Nudge(
            self._text(command) or "",
            command_id,
            command.message_id,
            now_ms + command.expires_at_ms - command.issued_at_ms - age_ms,
            end,
        )
        if not gate.offer(nudge):
            return self._answer(key, command, "failed", "too many nudges wait for a prompt")
        self._accept(gate, command, append_ms)
        self._open_nudges.append((gate, nudge))
        return []

    # Bookkeeping.

    def _text(self, command: Command) -> str | None:
        return render(command, allow_free_text=self._allow_free_text)

    def _accept(self, gate: Gate, command: Command, append_ms: int) -> None:
        self.fences.applied(command.command_id, gate.key.run_id, gate.key.incarnation)
        self._acks.send(gate.key, command.command_id, "received", append_ms=append_ms)

    def _answer(self, key: RunKey, command: Command, status: str, detail: str) -> list[Later]:
        self._acks.send(key, command.command_id, status, detail=detail)
        return []

    def _settle_nudges(self, which: Callable[[Gate, Nudge], bool], status: str, detail: str) -> None:
        kept: list[tuple[Gate, Nudge]] = []
        for gate, nudge in self._open_nudges:
            if nudge.is_settled:
                continue
            if which(gate, nudge):
                gate.drop_nudge(nudge)
                nudge.settle(status, detail)
            else:
                kept.append((gate, nudge))
        self._open_nudges = kept

    def _remember(self, command: Command, append_ms: int) -> None:
        slots = self._waiting.setdefault(command.run_id, {})
        self._waiting.move_to_end(command.run_id)
        old = slots.get(command.writer)
        # A kill is lifted by a release, never by a pause that the same writer asks for afterwards.
        if old is None or old[0].type != "kill_run" or command.type != "pause_run":
            slots[command.writer] = (command, append_ms)
        if len(self._waiting) > MAX_WAITING_RUNS:
            self._waiting.popitem(last=False)
            self._counters.add("waiting_commands_forgotten")

    def _remember_release(self, command: Command) -> None:
        self._released_ms[command.run_id] = max(command.issued_at_ms, self._released_ms.pop(command.run_id, 0))
        if len(self._released_ms) > MAX_WAITING_RUNS:
            self._released_ms.popitem(last=False)

    def _is_released(self, command: Command, append_ms: int, record: StoredRecord | None, is_ancestor: bool) -> bool:
        is_person = command.writer == OPERATOR
        if not is_person and command.issued_at_ms <= self._released_ms.get(command.run_id, -1):
            return True
        if record is None or is_ancestor or record.record.state != "released":
            return False
        return record.append_ms >= append_ms and (not is_person or record.record.writer == OPERATOR)


_SWITCHED_OFF = "enforcement is observe_only"


def describe(command: Command) -> str:
    """Return why, for people: `tool_oscillation x5 (search), by the detector`; of a person's order, their own words."""
    reason = command.reason
    if command.writer == OPERATOR and reason is not None and reason.note:
        return f"{command.type} by the operator: {reason.note}"
    if reason is None:
        return f"{command.type} by the {command.writer}"
    count = f" x{reason.count}" if reason.count else ""
    tool = f" ({reason.tool})" if reason.tool else ""
    return f"{reason.pattern}{count}{tool}, by the {command.writer}"
