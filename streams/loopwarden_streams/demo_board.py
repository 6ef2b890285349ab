"""What is known of the demonstration, from the topics alone: runs, verdicts, orders and their answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct, field

from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message, decode_said, decode_step
from loopwarden_models.commands import Command
from loopwarden_models.events import AnyStep, ModelEnd, RunEnd, RunStart, ToolEnd, ToolStart
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.demo_fleet import AgentPlan

State = Literal["waiting", "running", "nudged", "stopping", "paused", "stopped", "completed", "survived", "failed"]
Source = Literal["steps", "verdicts", "control.commands", "acks"]
SOURCES: Final[tuple[Source, ...]] = ("steps", "verdicts", "control.commands", "acks")

# The estimate of what was saved looks at the pace of the last steps before the end (docs: saved cost).
PACE_STEPS: Final = 10
_KEPT_VERDICTS: Final = 60
STOPS: Final = ("kill_run", "pause_run")


class Order(Struct):
    """A command and what became of it; times in Unix milliseconds, of one host.

    Attributes:
        decided_at: Partition and offset of the step that decided.
        applied_ms: When the runtime had done it. `dead_ms`: when the run's code had returned.
        status: Newest answer.
    """

    command: Command
    decided_at: tuple[int, int]
    applied_ms: int | None = None
    dead_ms: int | None = None
    status: str = "sent"


class Run(Struct):
    """One run as it is seen from outside.

    Attributes:
        steps: Tool calls that began. `tokens`, `cost_usd`: of its model calls.
        paid: Tokens and US dollars so far, at the beginning of each of the last tool calls.
        began_ms: Source time of the newest step that began after a gate could be shut.
        verdicts: How many, by detector.
        orders: In the order in which they were given.
        ended: Status of its `run_end`.
    """

    plan: AgentPlan
    steps: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    paid: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=PACE_STEPS + 1))
    began_ms: int = -1
    is_started: bool = False
    verdicts: dict[str, int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    ended: str | None = None

    @property
    def state(self) -> State:
        """What to call it now."""
        if self.ended is not None:
            if self.ended == "killed":
                return "stopped"
            if self.plan.kind == "loops":
                return "survived"
            return "completed" if self.ended == "completed" else "failed"
        if (stop := self.stop) is not None:
            return "stopping" if stop.command.type == "kill_run" else "paused"
        if self.orders:
            return "nudged"
        return "running" if self.is_started else "waiting"

    @property
    def stop(self) -> Order | None:
        """The newest order that stopped or paused it; a kill before any other."""
        stops = [order for order in self.orders if order.command.type in STOPS]
        return max(stops, key=lambda order: order.command.type == "kill_run", default=None)

    @property
    def nudges(self) -> int:
        """How many nudges were ordered."""
        return sum(order.command.type == "nudge" for order in self.orders)

    @property
    def is_settled(self) -> bool:
        """Whether nothing more can come of it: it ended, and a kill was answered to the last."""
        if self.ended is None:
            return False
        return all(order.dead_ms is not None for order in self.orders if order.status == "applied" and _is_kill(order))


class Board:
    """Adds up what the topics say. Not thread-safe.

    Attributes:
        runs: By tenant and run id, in order of the plan.
        verdicts: The newest of those that say what was seen. `verdict_count`: all there were.
        orders: By command id, in the order in which they were read.
        records: Records read so far. `steps`: step events among them.
    """

    def __init__(self, plans: Sequence[AgentPlan]) -> None:
        self.runs = {(plan.tenant, plan.run_id): Run(plan) for plan in plans}
        self.verdicts: deque[Verdict] = deque(maxlen=_KEPT_VERDICTS)
        self.verdict_count = 0
        self.orders: dict[str, Order] = {}
        self.records = 0
        self.steps = 0
        self._said_ms: dict[tuple[int, int], int] = {}
        self._early: dict[str, list[Ack]] = {}

    def read(self, source: Source, partition: int, offset: int, value: bytes | None) -> None:
        """Add one record.

        Raises:
            InvalidEvent: It is none of the contract.
        """
        self.records += 1
        if source == "steps":
            step = decode_step(value)
            if step is not None:
                self._said_ms[partition, offset] = step.ts_ms
                self._step(step)
        elif source == "acks":
            self._ack(decode_message(value, Ack))
        elif source == "control.commands":
            self._command(decode_message(value, Command))
        elif value is not None:
            said = decode_said(value)
            if isinstance(said, Verdict):  # the others are what a person ordered meanwhile
                self._verdict(said)

    def decided_ms(self, order: Order) -> int | None:
        """Return the source time of the step that decided an order, in Unix milliseconds; `None` if it was not read."""
        return self._said_ms.get(order.decided_at)

    @property
    def is_settled(self) -> bool:
        """Whether every run is over and every kill was answered."""
        return all(run.is_settled for run in self.runs.values())

    def _step(self, step: AnyStep) -> None:
        run = self.runs.get((step.tenant, step.run_id))
        if run is None:
            return
        self.steps += 1
        if isinstance(step, RunStart):
            run.is_started = True
        elif isinstance(step, ModelEnd):
            run.cost_usd += step.cost_usd or 0.0
            if step.usage is not None:
                run.tokens += (step.usage.input_tokens or 0) + (step.usage.output_tokens or 0)
        elif isinstance(step, ToolStart):
            run.steps += 1
            run.began_ms = max(run.began_ms, step.ts_ms)
            run.paid.append((run.tokens, run.cost_usd))
        elif isinstance(step, ToolEnd):
            run.cost_usd += step.cost_usd or 0.0
        elif isinstance(step, RunEnd):
            run.ended = step.status or "completed"

    def _verdict(self, verdict: Verdict) -> None:
        self.verdict_count += 1
        if verdict.episode:
            self.verdicts.append(verdict)  # the others only say that an order was given
        run = self.runs.get((verdict.tenant, verdict.run_id))
        if run is not None:
            run.verdicts[verdict.detector] = run.verdicts.get(verdict.detector, 0) + 1

    def _command(self, command: Command) -> None:
        if command.command_id in self.orders:
            return
        evidence = command.evidence
        decided_at = (-1, -1) if evidence is None else (evidence.partition, evidence.offsets[1])
        order = self.orders[command.command_id] = Order(command, decided_at)
        run = self.runs.get((command.tenant, command.run_id))
        if run is not None:
            run.orders.append(order)
        for ack in self._early.pop(command.command_id, []):
            self._ack(ack)

    def _ack(self, ack: Ack) -> None:
        order = self.orders.get(ack.command_id)
        if order is None:
            # Topics are read side by side: an answer can overtake its command here.
            self._early.setdefault(ack.command_id, []).append(ack)
            return
        if ack.status == "confirmed_dead":
            order.dead_ms = ack.at_ms
            return
        if ack.status == "applied" and order.applied_ms is None:
            order.applied_ms = ack.at_ms
        if order.status in ("sent", "received"):
            order.status = ack.status


def _is_kill(order: Order) -> bool:
    return order.command.type == "kill_run"
