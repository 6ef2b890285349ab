"""`loopwarden run`: look at one run, kill it, let it wait, or release it; and hear what its runtime says to that."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape

from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message
from loopwarden_models.commands import ANY_INCARNATION
from loopwarden_models.control_state import run_record_key
from loopwarden_models.errors import InvalidEvent
from loopwarden_streams.durations import parse_ms, shown
from loopwarden_streams.operator_desk import CONNECTION, OperatorDesk, add_person_arguments, desk, person_of
from loopwarden_streams.operator_orders import GRACE_MS, OrderType, RunOrder, check_names, order_run
from loopwarden_streams.order_answers import Answers
from loopwarden_streams.run_rows import status_of
from loopwarden_streams.run_story import show
from loopwarden_streams.runs_view import runs_view
from loopwarden_streams.settings import Settings, add_settings_arguments
from loopwarden_streams.topic_tail import TopicTail, tail

EXIT_UNCONFIRMED: Final = 1
_POLL_S: Final = 0.2
# After the last answer: a run that is hosted twice, or a tree, answers from several places.
_SETTLE_S: Final = 0.5
_ORDERS: Final[dict[str, OrderType]] = {"kill": "kill_run", "pause": "pause_run", "resume": "resume_run"}
_HELP: Final = {
    "kill": "end the run, and keep it from being started again until it is resumed",
    "pause": "let the run wait before its next step until it is resumed",
    "resume": "release the run: a paused one goes on, a killed one may be started again",
}

Told = Callable[[str, dict[str, Any], str], None]
"""Tells a person or a script: kind of event, its fields, and the line for people."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden run`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    look = actions.add_parser("show", help="everything that is known of the run", description=show.__doc__)
    _add_names(look)
    look.add_argument(
        "--since",
        type=parse_ms,
        default=parse_ms("24h"),
        metavar="SPAN",
        help="how far back verdicts and answers are read (default: 24h)",
    )
    look.add_argument("--json", action="store_true", help="one JSON object instead of a page")
    add_settings_arguments(look, *CONNECTION)
    for action, kind in _ORDERS.items():
        text = _HELP[action]
        order = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.")
        _add_names(order)
        order.add_argument("--tree", action="store_true", help="the run and all that it started")
        order.add_argument(
            "--incarnation",
            default=ANY_INCARNATION,
            metavar="ID",
            help="only this incarnation of the run; * is any, now or later (default: *)",
        )
        if kind == "kill_run":
            order.add_argument(
                "--grace",
                type=parse_ms,
                default=GRACE_MS,
                metavar="SPAN",
                help="how long running code may go on before the kill counts as unconfirmed (default: 5s)",
            )
        order.add_argument(
            "--ttl",
            type=parse_ms,
            default=None,
            metavar="SPAN",
            help="how long the order waits for its run (default: 6h; 2m where --incarnation names one)",
        )
        order.add_argument(
            "--wait",
            type=parse_ms,
            default=parse_ms("30s"),
            metavar="SPAN",
            help="how long to wait for the runtime's word; 0: not at all (default: 30s)",
        )
        order.add_argument("--json", action="store_true", help="one JSON object a line: the order, answers, outcome")
        add_person_arguments(order, needs_why=kind == "kill_run")


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help="whose run it is")
    parser.add_argument("run_id", metavar="RUN", help="its run id")


def run(args: argparse.Namespace) -> int:
    """Look or order. Returns 0 if what was ordered is confirmed, 1 if it is not within the time."""
    settings = Settings.from_args(args)
    check_names(args.tenant, who="-", why="", run_id=args.run_id)
    if args.action == "show":
        since_ms = int(time.time() * 1000) - args.since
        return asyncio.run(show(settings, args.tenant, args.run_id, since_ms=since_ms, as_json=args.json))
    return asyncio.run(_order(args, settings, _ORDERS[args.action]))


async def _order(args: argparse.Namespace, settings: Settings, kind: OrderType) -> int:
    person = person_of(args)
    check_names(args.tenant, who=person.who, why=person.why, run_id=args.run_id)
    root, expected = await _look_up(settings, args, kind)
    tell = teller(as_json=args.json)
    # Opened before the order is given: an answer may come within milliseconds.
    async with desk(settings, person) as own, tail(settings, {settings.topic("acks"): "end"}) as reader:
        key = run_record_key(args.tenant, args.run_id)
        standing = own.standing.run(args.tenant, args.run_id)
        now_ms = int(time.time() * 1000)
        order = order_run(
            kind,
            args.tenant,
            args.run_id,
            person,
            version=own.version_for(key, now_ms, tenant=args.tenant, run_id=args.run_id),
            now_ms=now_ms,
            incarnation=args.incarnation,
            scope="tree" if args.tree else "run",
            root_run_id=root,
            ttl_ms=args.ttl,
            grace_ms=getattr(args, "grace", GRACE_MS),
            before=None if standing is None else standing.record.state,
        )
        await own.give(order)
        tell("ordered", msgspec.to_builtins(order.command), _ordered(order))
        if not own.standing.is_enforcing:
            tell("warning", {"reason": "observe_only"}, "enforcement is off: runtimes will answer noop")
        if not args.wait:
            return 0
        if kind == "resume_run" and not expected:
            tell("outcome", {"outcome": "confirmed"}, "released: nothing hosts the run now; its next start is allowed")
            return 0
        return await wait_for_answers(
            own, reader, order, Answers(kind, expected=expected or {args.run_id}), args.wait, tell
        )


async def _look_up(settings: Settings, args: argparse.Namespace, kind: OrderType) -> tuple[str | None, set[str]]:
    """Return the root of the run's tree, and the runs that should answer; as known a few seconds ago."""
    async with runs_view(settings, verdicts_since_ms=None) as view:
        tree = view.table.tree_of(args.tenant, args.run_id)
        if tree is None:
            return None, set()
        hosted = {
            run_id
            for run_id, known in tree.runs.items()
            if not known.is_over and status_of(known, view.standing.run(args.tenant, run_id)) != "killed"
        }
        is_whole_tree = args.tree and args.run_id == tree.root_run_id
        expected = hosted if is_whole_tree and kind == "kill_run" else hosted & {args.run_id}
        return tree.root_run_id, expected


async def wait_for_answers(
    own: OperatorDesk, reader: TopicTail, order: RunOrder, answers: Answers, wait_ms: int, tell: Told
) -> int:
    """Tell what the runtimes say to an order, until they have done it or the time is over; return the exit status."""
    until = time.monotonic() + wait_ms / 1000
    heard_at = 0.0
    is_kept = False
    while (now := time.monotonic()) < until:
        if answers.outcome != "open" and now - heard_at >= _SETTLE_S:
            break
        for record in await reader.next(min(_POLL_S, until - now)):
            ack = _ack_to(record.value, order.command.command_id)
            if ack is not None:
                heard_at = time.monotonic()
                answers.put(ack)
                tell("answer", msgspec.to_builtins(ack), _answer(ack))
        if order.command.type == "kill_run" and answers.was_applied and not is_kept:
            is_kept = True
            await own.keep_dead(order)
    return _end(order, answers, tell, is_enforcing=own.standing.is_enforcing)


def _end(order: RunOrder, answers: Answers, tell: Told, *, is_enforcing: bool) -> int:
    command, outcome = order.command, answers.outcome
    name = f"{command.tenant} {command.run_id}"
    lift = f"`loopwarden run resume {name}`"
    stands = f"; the order stands until {_clock(command.expires_at_ms)}" if command.type == "kill_run" else ""
    match outcome, command.type:
        case "confirmed", "kill_run":
            line = f"confirmed: {name} is dead, and is not started again until {lift}"
        case "confirmed", "pause_run":
            line = f"confirmed: {name} waits until {lift}"
        case "confirmed", _:
            line = f"confirmed: {name} goes on"
        case "nothing_to_do", _ if is_enforcing:
            line = f"nothing to do: see the answer above{stands}"
        case "nothing_to_do", _:
            line = "not done: enforcement is off; `loopwarden enforcement on` switches it on"
        case "refused", _:
            line = "not done: the runtime refused, see its answer above"
        case _ if answers.acks:
            line = f"not confirmed in time: the runtime answered, and has not finished{stands}"
        case _:
            line = f"not confirmed in time: no runtime answered{stands or '; the record on control.state stands'}"
    tell("outcome", {"outcome": outcome, "command_id": command.command_id}, line)
    is_done = outcome == "confirmed" or (outcome == "nothing_to_do" and is_enforcing)
    return 0 if is_done else EXIT_UNCONFIRMED


def _ack_to(value: bytes | None, command_id: str) -> Ack | None:
    try:
        ack = decode_message(value, Ack)
    except InvalidEvent:
        return None
    return ack if ack.command_id == command_id else None


def _ordered(order: RunOrder) -> str:
    command = order.command
    which = "any incarnation" if command.incarnation == ANY_INCARNATION else f"incarnation {command.incarnation}"
    tree = " and all that it started" if command.scope == "tree" else ""
    return f"{command.type} of {command.tenant} {command.run_id}{tree}, {which}: command {command.command_id}"


def _answer(ack: Ack) -> str:
    took = "" if ack.latency_ms is None else shown(ack.latency_ms)
    detail = f": {ack.detail}" if ack.detail else ""
    return f"  {ack.status:<14} {took:>7}  {ack.run_id} at {ack.runtime_id or 'an unnamed runtime'}{detail}"


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S UTC")


def teller(*, as_json: bool) -> Told:
    """Return what prints: lines for people, or one JSON object for each."""
    console = Console(highlight=False, soft_wrap=True)

    def tell(event: str, fields: dict[str, Any], line: str) -> None:
        if as_json:
            print(msgspec.json.encode({"event": event, **fields}).decode(), flush=True)
        else:
            console.print(escape(line))

    return tell
