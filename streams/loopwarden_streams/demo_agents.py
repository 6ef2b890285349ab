"""A process of simulated agents: plays their scripts through the real runtime library. Knows nothing of the detector.

    python -m loopwarden_streams.demo_agents --plan agents.json --begin begin.txt --seconds 45 --brokers …

An agent awaits its "model" and its "tools", which take their time and cost their price, and asks its guard before each
of them, as an adapter of a framework would.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from loopwarden import Action, Guard, KafkaTransport, Limits, LoopwardenStopped, RunGuard, Usage
from loopwarden_streams.demo_fleet import SCRIPTS, AgentPlan
from loopwarden_streams.demo_scripts import Script, Turn
from loopwarden_streams.settings import Settings, add_settings_arguments

MODEL: Final = "simulated-1"
# Prices of a middling model in 2026, US dollars per token. judgement
_USD_PER_INPUT_TOKEN: Final = 1e-6
_USD_PER_OUTPUT_TOKEN: Final = 4e-6
_CHARS_PER_TOKEN: Final = 4

_BARRIER_S: Final = 20.0
_FLUSH_S: Final = 5.0

Pause = Callable[[float], Awaitable[None]]


class Meter:
    """Counts what a run's context has grown to, because each call of the model reads all of it again."""

    def __init__(self, rng: Random) -> None:
        self._context_tokens = rng.randrange(2_500, 6_000)

    def read(self, turn: Turn) -> tuple[Usage, float]:
        """Return the tokens and the price of one turn, and grow by it and by the answers of its calls."""
        output = 40 + len(turn.text) // _CHARS_PER_TOKEN + 60 * len(turn.calls)
        usage = Usage(input_tokens=self._context_tokens, output_tokens=output)
        cost_usd = self._context_tokens * _USD_PER_INPUT_TOKEN + output * _USD_PER_OUTPUT_TOKEN
        answers = sum(len(str(call.result or call.error)) for call in turn.calls)
        self._context_tokens += output + answers // _CHARS_PER_TOKEN
        return usage, round(cost_usd, 6)


async def act(run: RunGuard, script: Script, rng: Random, pause: Pause) -> None:
    """Play a script to its end.

    Args:
        run: Guard of the run.
        script: What the agent does.
        rng: Its randomness.
        pause: Lets milliseconds pass: a sleep here, a clock turned by hand in a test.

    Raises:
        LoopwardenStopped: The run was stopped.
    """
    talk = script(rng)
    meter = Meter(rng)
    call_numbers = count(1)
    is_begun = False
    while True:
        await _may_go_on(run)
        nudges = run.nudges()
        for nudge in nudges:
            nudge.delivered()
        try:
            turn = talk.send(bool(nudges)) if is_begun else next(talk)
        except StopIteration:
            return
        is_begun = True
        if turn.asked:
            run.user_input()
        await pause(turn.ms)
        usage, cost_usd = meter.read(turn)
        run.after_model(
            model=MODEL,
            text=turn.text,
            usage=usage,
            cost_usd=cost_usd,
            duration_ms=turn.ms,
            tool_calls=len(turn.calls),
        )
        await _call_tools(run, turn, call_numbers, pause)


async def _may_go_on(run: RunGuard) -> None:
    decision = run.before_model()
    while decision.action is Action.PAUSE:
        await run.wait_if_paused()
        decision = run.before_model()
    run.raise_if_stopped()


async def _call_tools(run: RunGuard, turn: Turn, call_numbers: count[int], pause: Pause) -> None:
    """Begin the calls of a turn together, and end each when its time is over."""
    begun = []
    for call in turn.calls:
        call_id = f"c{next(call_numbers)}"
        decision = run.before_tool(call.tool, call.args, call_id)
        run.raise_if_stopped()
        if decision.allowed:
            begun.append((call.ms, call_id, call))
    passed_ms = 0
    for ms, call_id, call in sorted(begun, key=lambda entry: entry[0]):
        await pause(ms - passed_ms)
        passed_ms = ms
        outcome = "ok" if call.error is None else "error"
        run.after_tool(call_id, outcome=outcome, result=call.result, error=call.error)
    if turn.progress is not None:
        run.progress(turn.progress)


async def live(guard: Guard, plan: AgentPlan) -> None:
    """Live the life of one agent. A kill ends it in the middle of whatever it awaits."""
    rng = Random(plan.seed)
    await asyncio.sleep(plan.start_ms / 1000)
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task

    def cancel(_reason: str) -> None:
        loop.call_soon_threadsafe(task.cancel)

    run = guard.run(
        plan.run_id,
        agent=plan.agent,
        goal=plan.doing,
        limits=Limits(max_steps=plan.max_steps),
        cancel=cancel,
    )
    try:
        with run:
            await act(run, SCRIPTS[plan.agent], rng, _sleep_ms)
    except LoopwardenStopped:
        pass
    except asyncio.CancelledError:
        if not run.stopped:
            raise


async def host(settings: Settings, plans: list[AgentPlan], begin: Path, seconds: float) -> int:
    """Run agents of one tenant until all have ended, or for `seconds` after the fleet began."""
    guard = Guard(
        KafkaTransport(
            settings.broker_list(),
            prefix=settings.topic_prefix,
            security=_security(settings),
            client_id="loopwarden-demo",
        ),
        tenant=plans[0].tenant,
        runtime_id=f"{plans[0].tenant}:{os.getpid()}",
    )
    try:
        if not await asyncio.to_thread(guard.start, barrier_s=_BARRIER_S):
            print(f"the control topics were not read within {_BARRIER_S:g} s: {guard.stats()}", file=sys.stderr)
            return 1
        begin_s = await asyncio.to_thread(_begin, begin)
        await asyncio.sleep(max(0.0, begin_s - time.time()))
        tasks = [asyncio.ensure_future(live(guard, plan)) for plan in plans]
        done, late = await asyncio.wait(tasks, timeout=max(0.1, begin_s + seconds - time.time()))
        for each in late:
            each.cancel()
        for each in [*done, *(await asyncio.wait(late))[0]] if late else done:
            if not each.cancelled():
                each.result()
    finally:
        await asyncio.to_thread(guard.close, flush_s=_FLUSH_S)
    return 0


def main() -> int:
    """Run one process of agents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", type=Path, required=True, help="JSON file with the agents of this process")
    parser.add_argument("--begin", type=Path, required=True, help="file that will hold the Unix seconds of the start")
    parser.add_argument("--seconds", type=float, required=True, help="agents that still run after this are ended")
    add_settings_arguments(parser)
    args = parser.parse_args()
    plans = msgspec.json.decode(args.plan.read_bytes(), type=list[AgentPlan])
    return asyncio.run(host(Settings.from_args(args), plans, args.begin, args.seconds))


async def _sleep_ms(ms: float) -> None:
    await asyncio.sleep(ms / 1000)


def _begin(path: Path) -> float:
    """Wait until the file is there, and return the Unix seconds that it holds."""
    while not path.exists():
        time.sleep(0.02)
    return float(path.read_text(encoding="utf-8"))


def _security(settings: Settings) -> dict[str, Any]:
    """Return kafka-python's options for what the settings say of TLS and SASL."""
    options: dict[str, Any] = {"security_protocol": settings.security_protocol}
    if settings.ssl_cafile:
        options["ssl_cafile"] = settings.ssl_cafile
    if settings.sasl_mechanism:
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = settings.sasl_password
    return options


if __name__ == "__main__":
    raise SystemExit(main())
