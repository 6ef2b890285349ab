"""`loopwarden breakers`: the breakers of tools, and the states that a person holds them in."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loopwarden_models.control_state import BreakerState, BreakerStateName, breaker_key
from loopwarden_streams.durations import shown
from loopwarden_streams.operator_desk import CONNECTION, OperatorDesk, add_person_arguments, desk, person_of
from loopwarden_streams.operator_orders import Person, check_names, set_breaker
from loopwarden_streams.settings import Settings, add_settings_arguments
from loopwarden_streams.standing_orders import HELD, Said

_STATES: Final[dict[str, BreakerStateName]] = {
    "open": "forced_open",
    "close": "closed",
    "disable": "disabled",
    "observe": "observe_only",
}
_HELP: Final = {
    "open": "refuse every call of the tool until a person closes the breaker",
    "close": "let calls pass, and give the breaker back to the detector",
    "disable": "let every call pass, whatever the detector thinks, until a person closes the breaker",
    "observe": "let every call pass, and count what would have been refused",
}
_COLOURS: Final = {"open": "red", "forced_open": "red", "half_open": "yellow", "closed": "green"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden breakers`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every breaker that was ever written, with what is in force")
    listing.add_argument("--tenant", default="", help="only those of this tenant")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    add_settings_arguments(listing, *CONNECTION)
    for action, text in _HELP.items():
        force = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.")
        force.add_argument("tenant", metavar="TENANT", help="whose tool it is")
        force.add_argument("tool", metavar="TOOL", help="its name, as the steps have it")
        force.add_argument("--json", action="store_true", help="one JSON object")
        add_person_arguments(force, needs_why=True)


def run(args: argparse.Namespace) -> int:
    """List or set breakers. Returns 0."""
    settings = Settings.from_args(args)
    if args.action == "list":
        return asyncio.run(_list(args, settings))
    person = person_of(args)
    check_names(args.tenant, who=person.who, why=person.why, tool=args.tool)
    return asyncio.run(_set(args, settings, person))


async def _list(args: argparse.Namespace, settings: Settings) -> int:
    async with desk(settings, Person("-", "")) as own:
        _print(own, args.tenant, "", as_json=args.json)
    return 0


async def _set(args: argparse.Namespace, settings: Settings, person: Person) -> int:
    async with desk(settings, person) as own:
        now_ms = int(time.time() * 1000)
        version = own.version_for(breaker_key(args.tenant, args.tool), now_ms)
        said = own.standing.breaker(args.tenant, args.tool)
        action, record = set_breaker(
            args.tenant,
            args.tool,
            _STATES[args.action],
            person,
            version=version,
            now_ms=now_ms,
            before=None if said is None else said.record.state,
        )
        await own.set_state(action, record, record.key)
        await own.look()
        _print(own, args.tenant, args.tool, as_json=args.json)
    return 0


def fields(tenant: str, tool: str, said: Said[BreakerState], now_ms: float) -> dict[str, Any]:
    """Return what is told of a breaker.

    Returns:
        `state` as it binds at `now_ms`: an open breaker whose lease is over is closed. `lease_ms` is what is left of
        the lease, `None` where there is none.
    """
    record = said.record
    is_leased = record.state in {"open", "half_open"}
    lease_ms = record.lease_until_ms - now_ms if is_leased and record.lease_until_ms is not None else None
    is_over = lease_ms is not None and lease_ms <= 0
    return {
        "tenant": tenant,
        "tool": tool,
        "state": "closed" if is_over else record.state,
        "writer": record.writer,
        "is_held": record.state in HELD,
        "since_ms": said.append_ms,
        "lease_ms": None if lease_ms is None or is_over else int(lease_ms),
        "why": None if record.reason is None else record.reason.note or record.reason.pattern,
        "version": record.version,
    }


def _print(own: OperatorDesk, tenant: str, tool: str, *, as_json: bool) -> None:
    now_ms = time.time() * 1000
    found = [fields(*one, now_ms) for one in own.standing.breakers() if tenant in {"", one[0]} and tool in {"", one[1]}]
    if as_json:
        for one in found:
            print(msgspec.json.encode(one).decode())
        return
    console = Console(highlight=False)
    if not found:
        console.print("no breaker was ever written: every call passes")
        return
    table = Table("tenant", "tool", "state", "by", "since", "lease", "why", box=None, pad_edge=False)
    for one in found:
        table.add_row(
            escape(one["tenant"]),
            escape(one["tool"]),
            f"[{_COLOURS.get(one['state'], 'magenta')}]{one['state']}[/]",
            one["writer"],
            f"{shown(now_ms - one['since_ms'])} ago",
            "held" if one["is_held"] else "" if one["lease_ms"] is None else shown(one["lease_ms"]),
            escape(one["why"] or ""),
        )
    console.print(table)
