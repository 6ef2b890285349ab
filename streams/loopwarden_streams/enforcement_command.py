"""`loopwarden enforcement`: the big switch. Off turns every command into a noop and every breaker into advice."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape

from loopwarden_models.control_state import ENFORCEMENT_KEY
from loopwarden_streams.durations import shown
from loopwarden_streams.operator_desk import CONNECTION, OperatorDesk, add_person_arguments, desk, person_of
from loopwarden_streams.operator_orders import EnforcementState, Person, check_names, switch_enforcement
from loopwarden_streams.settings import Settings, add_settings_arguments

_STATES: Final[dict[str, EnforcementState]] = {"on": "enforce", "off": "observe_only"}
_HELP: Final = {
    "on": "let commands and breakers have an effect again",
    "off": "turn every command of everybody into a noop, and every breaker into advice",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden enforcement`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="how the switch stands, since when, and why")
    status.add_argument("--json", action="store_true", help="one JSON object")
    add_settings_arguments(status, *CONNECTION)
    for action, text in _HELP.items():
        switch = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.")
        switch.add_argument("--json", action="store_true", help="one JSON object")
        add_person_arguments(switch, needs_why=True)


def run(args: argparse.Namespace) -> int:
    """Show or turn the switch. Returns 0."""
    person = Person("-", "") if args.action == "status" else person_of(args)
    check_names("-", who=person.who, why=person.why)
    return asyncio.run(_run(args, Settings.from_args(args), person))


async def _run(args: argparse.Namespace, settings: Settings, person: Person) -> int:
    async with desk(settings, person) as own:
        if args.action != "status":
            await _switch(own, _STATES[args.action])
            await own.look()
        _print(own, as_json=args.json)
    return 0


async def _switch(own: OperatorDesk, state: EnforcementState) -> None:
    now_ms = int(time.time() * 1000)
    version = own.version_for(ENFORCEMENT_KEY, now_ms)
    before = "enforce" if own.standing.is_enforcing else "observe_only"
    action, record = switch_enforcement(state, own.person, version=version, now_ms=now_ms, before=before)
    await own.set_state(action, record, record.key)


def _print(own: OperatorDesk, *, as_json: bool) -> None:
    said = own.standing.enforcement
    state = "enforce" if own.standing.is_enforcing else "observe_only"
    note = said.record.reason.note if said is not None and said.record.reason is not None else None
    if as_json:
        since_ms = None if said is None else said.append_ms
        print(msgspec.json.encode({"state": state, "since_ms": since_ms, "why": note}).decode())
        return
    word = "[green]on[/]" if own.standing.is_enforcing else "[red]off[/]: commands are noops, breakers are advice"
    since = "never switched" if said is None else f"for {shown(time.time() * 1000 - said.append_ms)}"
    Console(highlight=False).print(f"enforcement is {word} ({since}{f'; {escape(note)}' if note else ''})")
