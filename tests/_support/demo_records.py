"""Records of a small demonstration, written by hand: for what reads the topics and for what shows them."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from loopwarden_models.acks import Ack
from loopwarden_models.commands import Command, EvidenceRange, Reason
from loopwarden_models.events import ModelEnd, RunEnd, RunStart, Step, ToolStart, Usage
from loopwarden_models.verdicts import Evidence, Verdict
from loopwarden_streams.demo_board import Board, Source
from loopwarden_streams.demo_fleet import AgentPlan, Kind

BEGIN_MS = 1_800_000_000_000


def plan(run_id: str, kind: Kind = "loops", *, tenant: str = "acme", max_steps: int = 100) -> AgentPlan:
    """Return the plan of one agent."""
    return AgentPlan(
        tenant=tenant,
        run_id=run_id,
        agent=run_id,
        kind=kind,
        doing=f"is {kind}",
        start_ms=0,
        max_steps=max_steps,
        seed=1,
    )


class Topics:
    """Writes records onto a board, as topics would deliver them. Times are milliseconds after the beginning."""

    def __init__(self, *plans: AgentPlan) -> None:
        self.board = Board(plans)
        self._offsets = count()
        self._seq = count()

    def read(self, source: Source, message: msgspec.Struct) -> int:
        """Deliver one record, and return its offset."""
        offset = next(self._offsets)
        self.board.read(source, 0, offset, msgspec.json.encode(message))
        return offset

    def step(self, kind: type[Step], run_id: str, at_ms: int = 0, *, tenant: str = "acme", **fields: Any) -> int:
        """Deliver a step event, and return its offset."""
        seq = next(self._seq)
        return self.read("steps", kind(v=1, tenant=tenant, run_id=run_id, seq=seq, ts_ms=BEGIN_MS + at_ms, **fields))

    def round(self, run_id: str, at_ms: int = 0, *, tokens: int = 1_000, cost_usd: float = 0.01) -> int:
        """Deliver an answer of the model and the call that it asks for; return the offset of the call."""
        usage = Usage(input_tokens=tokens, output_tokens=0)
        self.step(ModelEnd, run_id, at_ms, usage=usage, cost_usd=cost_usd)
        return self.step(ToolStart, run_id, at_ms, tool="search")

    def order(self, kind: str, run_id: str, decided_by: int, at_ms: int, *, command_id: str | None = None) -> str:
        """Deliver a command that the step at offset `decided_by` led to, and return its id."""
        command_id = command_id or f"{kind}:{run_id}"
        command = Command(
            v=1,
            command_id=command_id,
            type=kind,
            tenant="acme",
            run_id=run_id,
            issued_at_ms=BEGIN_MS + at_ms,
            expires_at_ms=BEGIN_MS + at_ms + 120_000,
            epoch=1,
            seq=decided_by,
            reason=Reason("tool_repetition", "exact_repeat", 8, tool="search"),
            evidence=EvidenceRange("steps", 0, [0, decided_by]),
        )
        self.read("control.commands", command)
        return command_id

    def ack(self, command_id: str, status: str, at_ms: int, *, run_id: str = "r-1") -> None:
        """Deliver an answer."""
        at_ms += BEGIN_MS
        self.read("acks", Ack(v=1, command_id=command_id, tenant="acme", run_id=run_id, status=status, at_ms=at_ms))

    def verdict(self, run_id: str, at_ms: int = 0, *, level: str = "nudge", episode: int = 1) -> None:
        """Deliver a verdict."""
        verdict = Verdict(
            v=1,
            verdict_id=f"v{next(self._seq)}",
            tenant="acme",
            run_id=run_id,
            root_run_id=run_id,
            incarnation="i",
            at_ms=BEGIN_MS + at_ms,
            detector="exact_repeat",
            pattern="tool_repetition",
            level=level,  # type: ignore[arg-type]  # a Literal on the wire
            mode="enforce",
            loop_id="0",
            episode=episode,
            evidence=Evidence(count=3),
        )
        self.read("verdicts", verdict)

    def kill(self, run_id: str, at_ms: int = 1_000) -> None:
        """Deliver a whole end: decided at `at_ms`, ordered, applied and dead 10, 20 and 30 ms later."""
        decided_by = self.round(run_id, at_ms)
        command_id = self.order("kill_run", run_id, decided_by, at_ms + 10)
        for status, after_ms in (("received", 20), ("applied", 20), ("confirmed_dead", 30)):
            self.ack(command_id, status, at_ms + after_ms, run_id=run_id)
        self.step(RunEnd, run_id, at_ms + 30, status="killed", command_id=command_id)

    def live(self, run_id: str, *, rounds: int = 3, status: str | None = "completed") -> None:
        """Deliver the life of a run without orders; without a `status` it goes on."""
        self.step(RunStart, run_id)
        for number in range(rounds):
            self.round(run_id, number * 100)
        if status is not None:
            self.step(RunEnd, run_id, rounds * 100, status=status)
