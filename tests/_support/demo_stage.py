"""Plays an agent of the demonstration without Kafka and without waiting: real guard, pure detectors, one clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from random import Random

import yaml

from loopwarden import Guard, Limits, LoopwardenStopped
from loopwarden.testing import MemoryTransport
from loopwarden_detectors.answers import acknowledge
from loopwarden_detectors.ladder import Order
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import observe
from loopwarden_models.commands import Command
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.demo_agents import act
from loopwarden_streams.demo_scripts import Script
from loopwarden_streams.demo_services import POLICY

TENANT = "acme"
DEMO_POLICY = Policy.from_builtins(yaml.safe_load(files("loopwarden_streams").joinpath(POLICY).read_bytes()))


class OutOfTimeError(Exception):
    """The script has not ended, and nobody has ended it."""


@dataclass
class Played:
    """What became of it: `ended` is the status of `run_end`, `ms` how long it took on the stage's clock."""

    steps: list[AnyStep] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    ended: str = ""
    ms: int = 0


def play(script: Script, seed: int, *, max_steps: int, policy: Policy | None = DEMO_POLICY) -> Played:
    """Play a script for a minute at most; without a `policy` nobody watches. Deterministic."""
    transport = MemoryTransport()
    guard = Guard(transport, tenant=TENANT, runtime_id="stage", clock=transport.clock)
    played = Played()
    start_ms = transport.clock.broker_ms()
    watch = _watcher(transport, guard, policy, played) if policy is not None else guard.pump

    async def pause(ms: float) -> None:
        transport.clock.advance(int(ms))
        watch()
        if transport.clock.broker_ms() - start_ms > 60_000:
            raise OutOfTimeError

    async def live() -> None:
        with guard.run("r-1", agent="actor", limits=Limits(max_steps=max_steps)) as run:
            await act(run, script, Random(seed), pause)

    try:
        asyncio.run(live())
        played.ended = "completed"
    except LoopwardenStopped as stop:
        played.ended = stop.status
    except OutOfTimeError:
        played.ended = "out of time"
    watch()
    played.steps = transport.steps
    played.ms = transport.clock.broker_ms() - start_ms
    return played


def _watcher(transport: MemoryTransport, guard: Guard, policy: Policy, played: Played) -> Callable[[], None]:
    """Return what a worker does with the steps and answers that are new, and a topic in between does not."""
    tree = TreeState(TENANT, "r-1")
    judged = answered = 0

    def watch() -> None:
        nonlocal judged, answered
        guard.pump()
        for offset, step in enumerate(transport.steps[judged:], start=judged):
            for decision in observe(tree, step, policy, offset=offset):
                if decision.verdict is not None:
                    played.verdicts.append(decision.verdict)
                if decision.order is not None:
                    played.orders.append(decision.order)
                    transport.command(_command(decision.order, offset, transport.clock.broker_ms()))
        judged = len(transport.steps)
        guard.pump()
        for ack in transport.acks[answered:]:
            acknowledge(tree, ack)
        answered = len(transport.acks)

    return watch


def _command(order: Order, offset: int, now_ms: int) -> Command:
    return Command(
        v=1,
        command_id=order.command_id,
        type=order.type,
        tenant=order.tenant,
        run_id=order.run_id,
        root_run_id=order.root_run_id,
        incarnation=order.incarnation,
        scope=order.scope,
        reason=order.reason,
        message_id=order.message_id,
        issued_at_ms=now_ms,
        expires_at_ms=now_ms + order.ttl_ms,
        epoch=1,
        seq=offset,
    )
