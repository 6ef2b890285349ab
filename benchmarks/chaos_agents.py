"""Agents that live through the chaos, in a process with the real runtime library. Started and killed by `chaos.py`.

python -m benchmarks.chaos_agents PLAN

Loops go on until they are stopped, healthy runs end by themselves, and each is followed by another. What is truly begun
is written to a ledger before anything else hears of it: it is what the topics are judged by. A process that is started
again takes up the runs that its ledger does not know the end of. A line on standard input lets no further run begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec
from tests._support.runtime_host import SkewedClock

import loopwarden
from loopwarden.records import Outgoing, Outlet
from loopwarden_streams.demo_healthy import HEALTHY
from loopwarden_streams.demo_loops import LOOPS
from loopwarden_streams.demo_scripts import Call, Script, Turn

Kind = Literal["loop", "healthy"]

# Those that are over only by their pace want a policy with figures of their own, and one whose calls fail now and then
# is, in a fleet of its likes, a tool that is down.
_LEFT_OUT: Final = frozenset({"crawler", "notifier", "treasurer"})
SCRIPTS: Final[dict[Kind, list[tuple[str, Script]]]] = {
    "loop": [(agent, script) for _, agent, script, _ in LOOPS if agent not in _LEFT_OUT],
    "healthy": [(agent, script) for _, agent, script, _ in HEALTHY if agent not in _LEFT_OUT],
}

# How often an agent whose framework swallows the stop tries to go on.
DEFIANT_TRIES: Final = 4
# Part of the killed runs that an orchestrator starts again a moment later, as it does with what has ended badly.
RESTARTED: Final = 0.25
LATE_ACK_S: Final = 15.0  # beyond the time after which an order is sent once more
BARRIER_S: Final = 60.0


class Plan(msgspec.Struct, frozen=True):
    """What one process does.

    Attributes:
        skew_ms: How far its wall clock is ahead.
        late_acks: Part of its batches of acknowledgements that come up to `LATE_ACK_S` late.
        loops: Runs at a time that loop. `healthy`: that do not.
        slowness: Factor on the times that models and tools take.
    """

    bootstrap: str
    prefix: str
    tenant: str
    runtime_id: str
    ledger: str
    seed: int
    skew_ms: int = 0
    late_acks: float = 0.0
    loops: int = 40
    healthy: int = 35
    slowness: float = 2.0


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A line of a ledger. `at_ms` is the true time, whatever the clock of the process says.

    Attributes:
        what: `begin`, `model` or `tool` for a step that may be taken, `end`, or `refused` for a run that may not begin.
        status: Of the end: `killed`, `limit`, `completed`.
        command_id: What ended it, or refused it.
    """

    what: str
    run_id: str
    incarnation: str
    at_ms: int
    status: str | None = None
    command_id: str | None = None


class Ledger:
    """What runs of one process did, across its lives. Survives SIGKILL: a line is one write."""

    def __init__(self, path: Path) -> None:
        self.former = read_ledger(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *fields: Any) -> None:
        """Write one entry."""
        os.write(self._fd, msgspec.json.encode(Entry(*fields)) + b"\n")

    def unfinished(self) -> dict[str, int]:
        """Return the runs of former lives that did not end, with the number of turns that each has made."""
        turns: Counter[str] = Counter()
        going_on: dict[str, None] = {}
        for entry in self.former:
            if entry.what == "begin":
                going_on[entry.run_id] = None
            elif entry.what in {"end", "refused"}:
                going_on.pop(entry.run_id, None)
            elif entry.what == "model":
                turns[entry.run_id] += 1
        return {run_id: turns[run_id] for run_id in going_on}


def read_ledger(path: Path) -> list[Entry]:
    """Return all entries, also of a process that was killed while it wrote."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [msgspec.json.decode(line, type=Entry) for line in lines[:-1]]


class LateTransport(loopwarden.KafkaTransport):
    """Kafka, on a line on which acknowledgements are late."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.bootstrap, prefix=plan.prefix)
        self._share = plan.late_acks
        self._rng = Random(plan.seed)

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Send, after a while if these are acknowledgements."""
        if topic == "acks" and self._rng.random() < self._share:
            time.sleep(self._rng.uniform(0.5, LATE_ACK_S))
        return super().send(topic, batch)


class Fleet:
    """The runs of one process."""

    def __init__(self, plan: Plan, guard: loopwarden.Guard, ledger: Ledger) -> None:
        self._plan = plan
        self._guard = guard
        self._ledger = ledger
        self._left = ledger.unfinished()
        self._life = 1 + sum(entry.what == "life" for entry in ledger.former)
        self._rng = Random(f"{plan.seed} {self._life}")
        ledger.write("life", "", "", now_ms())
        self.is_closing = False

    async def live(self) -> None:
        """Have runs follow each other until the fleet is closing, and all are over."""
        slots = [("loop", n) for n in range(self._plan.loops)] + [("healthy", n) for n in range(self._plan.healthy)]
        async with asyncio.TaskGroup() as group:
            for kind, number in slots:
                group.create_task(self._slot(kind, number))

    async def _slot(self, kind: str, number: int) -> None:
        name = f"{kind}-{self._plan.runtime_id}-{number}"
        await asyncio.sleep(self._rng.uniform(0, 3.0))
        for run_id in [known for known in self._left if known.startswith(f"{name}.")]:
            await self._run(run_id, "loop" if kind == "loop" else "healthy", number, self._left[run_id])
        for turn in itertools.count():
            if self.is_closing:
                return
            run_id = f"{name}.{self._life}.{turn}"
            await self._run(run_id, "loop" if kind == "loop" else "healthy", number, 0)
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
            if kind == "loop" and self._rng.random() < RESTARTED:
                await self._run(run_id, "loop", number, 0)

    async def _run(self, run_id: str, kind: Kind, number: int, turns_made: int) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def cancel(_reason: str) -> None:
            loop.call_soon_threadsafe(stopped.set)

        # Frameworks differ: a third is told by a callback, a third asks the gate, a third swallows what it is told.
        manner = number % 3
        agent, script = SCRIPTS[kind][number % len(SCRIPTS[kind])]
        run = self._guard.run(run_id, agent=agent, goal=run_id, cancel=cancel if manner == 0 else None)
        life = Life(run, self._ledger, self._plan.slowness, stopped)
        try:
            with run:
                self._ledger.write("begin", run_id, run.key.incarnation, now_ms())
                try:
                    await life.act(script, Random(run_id), turns_made)
                except loopwarden.LoopwardenStopped as stop:
                    if manner == 2:
                        await life.defy()
                    self._end(life, stop.status, stop.command_id)
                    raise
                self._end(life, "completed", None)
        except loopwarden.LoopwardenStopped as stop:
            if not life.is_over:
                self._ledger.write("refused", run_id, run.key.incarnation, now_ms(), stop.status, stop.command_id)

    def _end(self, life: Life, status: str, command_id: str | None) -> None:
        life.is_over = True
        self._ledger.write("end", life.key.run_id, life.key.incarnation, now_ms(), status, command_id)


class Life:
    """One run while it goes on.

    Attributes:
        key: Whose life it is.
        is_over: Its end stands in the ledger.
    """

    def __init__(self, run: loopwarden.RunGuard, ledger: Ledger, slowness: float, stopped: asyncio.Event) -> None:
        self.key = run.key
        self.is_over = False
        self._run = run
        self._ledger = ledger
        self._slowness = slowness
        self._stopped = stopped
        self._numbers = itertools.count(1)

    async def act(self, script: Script, rng: Random, turns_made: int) -> None:
        """Play a script from where a former life of the run was.

        Raises:
            LoopwardenStopped: The run was stopped.
        """
        talk = script(rng)
        with contextlib.suppress(StopIteration):
            turn = next(talk)
            for _ in range(turns_made):
                turn = talk.send(False)
            while True:
                await self._turn(turn)
                turn = talk.send(False)

    async def defy(self) -> None:
        """Go on as if nothing had been said, as a framework does that takes the stop for a failed call."""
        for _ in range(DEFIANT_TRIES):
            await self._pause(300)
            self._ask("model", self._run.before_model)
            call = Call("search", {"query": "once more"})
            self._ask("tool", partial(self._run.before_tool, call.tool, call.args, f"d{next(self._numbers)}"))

    async def _turn(self, turn: Turn) -> None:
        run = self._run
        for nudge in run.nudges():
            nudge.delivered()
        if turn.asked:
            run.user_input()
        if not self._ask("model", run.before_model):
            run.raise_if_stopped()
        began_at = time.monotonic()
        await self._pause(turn.ms)
        took_ms = (time.monotonic() - began_at) * 1000
        run.after_model(model="simulated-1", text=turn.text, tool_calls=len(turn.calls), duration_ms=took_ms)
        begun = []
        for call in turn.calls:
            call_id = f"{run.key.incarnation}-{next(self._numbers)}"
            if self._ask("tool", partial(run.before_tool, call.tool, call.args, call_id)):
                begun.append((call_id, call))
            run.raise_if_stopped()
        await self._pause(max((call.ms for call in turn.calls), default=0))
        for call_id, call in begun:
            outcome = "ok" if call.error is None else "error"
            run.after_tool(call_id, outcome=outcome, result=call.result, error=call.error)
        if turn.progress is not None:
            run.progress(turn.progress)

    def _ask(self, what: str, ask: Callable[[], loopwarden.Decision]) -> bool:
        """Ask the guard, and write down a step that may begin, with the time before the question."""
        at_ms = now_ms()
        is_allowed = ask().allowed
        if is_allowed:
            self._ledger.write(what, self._run.key.run_id, self._run.key.incarnation, at_ms)
        return is_allowed

    async def _pause(self, ms: float) -> None:
        """Take time, and no more of it once the framework was told to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), self._slowness * ms / 1000)
            self._run.raise_if_stopped()


def now_ms() -> int:
    """Return the true time, Unix milliseconds."""
    return time.time_ns() // 1_000_000


async def _main(plan: Plan) -> None:
    ledger = Ledger(Path(plan.ledger))
    guard = loopwarden.Guard(
        LateTransport(plan), tenant=plan.tenant, runtime_id=plan.runtime_id, clock=SkewedClock(plan.skew_ms)
    )
    # Orchestrators do not start agents beside a broker that is away; and what was ordered before must bind.
    is_ready = await asyncio.to_thread(guard.start, barrier_s=BARRIER_S)
    fleet = Fleet(plan, guard, ledger)
    print(json.dumps({"is_ready": is_ready}), flush=True)
    living = asyncio.ensure_future(fleet.live())
    if not await asyncio.to_thread(sys.stdin.readline):
        os._exit(1)  # nobody is there any more to judge
    fleet.is_closing = True
    await living
    await asyncio.to_thread(guard.close, flush_s=30.0)
    print(json.dumps(guard.stats()), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)))
