"""`loopwarden demo`: a small fleet of simulated agents, some of which loop, watched and stopped before your eyes."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from loopwarden_models.errors import LoopwardenError, TransportError
from loopwarden_streams.demo_board import Board
from loopwarden_streams.demo_feed import Feed
from loopwarden_streams.demo_fleet import MAX_AGENTS, MIN_AGENTS, TENANTS, AgentPlan, plan_fleet
from loopwarden_streams.demo_report import as_json, summarise, summary_view
from loopwarden_streams.demo_services import Services, failure
from loopwarden_streams.demo_view import LiveView, PlainView, View
from loopwarden_streams.replay_report import new_console, show

EXIT_INTERRUPTED: Final = 130

_MIN_SECONDS: Final = 5
_POLL_S: Final = 0.1
# The processes of the agents flush and end within this after the last run; a busy machine needs some of it.
_GRACE_S: Final = 20.0
# After the last process of agents has ended, what it sent must have come within this.
_DRAIN_S: Final = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden demo`."""
    parser.add_argument(
        "--broker-url",
        metavar="HOST:PORT",
        help="use this Kafka instead of an embedded broker; topics of an own prefix are made, and deleted afterwards",
    )
    parser.add_argument("--agents", type=_agents, default=30, metavar="N", help="size of the fleet (default: 30)")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=45.0,
        metavar="N",
        help="a loop that still runs after this has survived (default: 45; all is over after about 25)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the agents' scripts (default: 1)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object as the last line of standard output, and all else to standard error",
    )
    parser.add_argument("--no-view", action="store_true", help="lines of text instead of the live picture")


def run(args: argparse.Namespace) -> int:
    """Play the demonstration. Returns 0 if every looping run was stopped and no healthy one, else 1.

    Raises:
        LoopwardenError: A part of it failed; the message ends with its output.
    """
    plans = plan_fleet(args.agents, args.seed)
    board = Board(plans)
    console = new_console(stderr=args.json)
    console.print(_intro(plans, args.broker_url, args.seconds))
    # The picture is made of signs that only Unicode has.
    is_drawn = console.is_terminal and not args.no_view and console.encoding.lower().startswith("utf")
    view: View = LiveView(console, args.seconds) if is_drawn else PlainView(console)
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="loopwarden-demo-", ignore_cleanup_errors=True) as folder:
            # What client libraries complain about while things start and end would tear the picture apart.
            logging.basicConfig(filename=Path(folder) / "demo.log", level=logging.WARNING, force=True)
            asyncio.run(play(Services(Path(folder), args.broker_url), board, console, view, args.seconds))
            logging.shutdown()
    except LoopwardenError:
        if args.json:
            print(json.dumps({**as_json(summarise(board)), "ok": False}))
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; everything that was started has been ended")
        return EXIT_INTERRUPTED
    summary = summarise(board)
    console.print()
    show(console, summary_view(summary, width=console.width))
    console.print(Text(f"took {time.monotonic() - began_s:.0f} s", style="bright_black"))
    if args.json:
        print(json.dumps(as_json(summary)))
    return 0 if summary.is_ok else 1


async def play(services: Services, board: Board, console: Console, view: View, seconds: float) -> None:
    """Start everything, watch until all is over, and end everything, whatever happens."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    plans = [run.plan for run in board.runs.values()]
    try:
        with console.status("starting the broker") as status:
            await services.start_broker()
            status.update("starting the detector and the agents")
            services.start_agents(plans, seconds)
            await services.start_worker()
        async with Feed(services.settings) as feed:
            begin_s = services.begin()
            with view:
                await _watch(services, feed, board, view, begin_s, seconds)
    finally:
        await services.close()


async def _watch(services: Services, feed: Feed, board: Board, view: View, begin_s: float, seconds: float) -> None:
    """Read along until every run is over and every kill answered.

    Raises:
        TransportError: A process ended before its time, something did not come to an end, or the detector is silent.
    """
    ended_at: float | None = None
    while not board.is_settled:
        await feed.read(board, _POLL_S)
        services.check()
        view.show(board, begin_s)
        ended = services.ended_hosts()
        is_over = [log for plans, log in ended if not _are_over(board, plans)]
        if not is_over:
            ended_at = None
        elif ended_at is None:
            ended_at = time.monotonic()
        elif time.monotonic() - ended_at > _DRAIN_S:
            raise failure("a process of agents ended before its agents did", is_over[0])
        if time.time() - begin_s > seconds + _GRACE_S:
            names = [run.plan.run_id for run in board.runs.values() if not run.is_settled]
            raise TransportError(f"these runs came to no end within {seconds + _GRACE_S:g} s: {', '.join(names)}")
    view.show(board, begin_s)
    if not board.verdict_count:
        raise services.worker_failure("the detector has not said anything")


def _are_over(board: Board, plans: Sequence[AgentPlan]) -> bool:
    return all(board.runs[plan.tenant, plan.run_id].ended is not None for plan in plans)


def _intro(plans: Sequence[AgentPlan], broker_url: str | None, seconds: float) -> Text:
    kinds = [plan.kind for plan in plans]
    where = "an embedded broker" if broker_url is None else f"the Kafka at {broker_url}"
    return Text.assemble(
        ("loopwarden demo\n", "bold"),
        f"Runs {len(plans)} simulated agents of {len(TENANTS)} tenants on {where}, and one detector that watches ",
        f"them. {kinds.count('loops')} will loop, and go on for ever unless they are stopped; ",
        f"{kinds.count('healthy')} are healthy, many of them look-alikes of a loop.\n",
        f"It takes about half a minute, {seconds:.0f} s and the start at most. Ctrl-C ends it and all that it started.",
    )


def _agents(text: str) -> int:
    number = int(text)
    if not MIN_AGENTS <= number <= MAX_AGENTS:
        raise argparse.ArgumentTypeError(f"{number} is not between {MIN_AGENTS} and {MAX_AGENTS}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if number < _MIN_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is less than {_MIN_SECONDS}")
    return number
