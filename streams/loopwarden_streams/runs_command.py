"""`loopwarden runs`: who runs, what it costs, what was said of it, and what binds it."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable
from typing import Final

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopwarden_models.patterns import LEVEL_NAMES
from loopwarden_streams.durations import parse_ms, shown
from loopwarden_streams.operator_desk import CONNECTION
from loopwarden_streams.run_rows import STATUSES, RunRow
from loopwarden_streams.runs_view import RunsView, runs_view
from loopwarden_streams.settings import Settings, add_settings_arguments

_EVERY_S: Final = 2.0
_DEFAULT_ROWS: Final = 50
LEVEL_COLOURS: Final = {"observe": "cyan", "nudge": "yellow", "break": "magenta", "pause": "magenta", "kill": "red"}
STATUS_COLOURS: Final = {"live": "green", "paused": "yellow", "killed": "red", "over": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden runs`."""
    parser.add_argument("--tenant", default="", help="only the runs of this tenant")
    parser.add_argument(
        "--state", choices=(*STATUSES, "all"), default="live", help="only runs that stand so (default: live)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--watch", action="store_true", help=f"go on: look every {_EVERY_S:g} s until interrupted")
    parser.add_argument(
        "--limit", type=int, default=None, metavar="N", help=f"rows, 0 = all (default: {_DEFAULT_ROWS}; --json: all)"
    )
    parser.add_argument(
        "--since",
        type=parse_ms,
        default=parse_ms("1h"),
        metavar="SPAN",
        help="verdicts of this span name what was seen; older ones only how bad it was (default: 1h)",
    )
    add_settings_arguments(parser, *CONNECTION)


def run(args: argparse.Namespace) -> int:
    """Print the runs, once or again and again. Returns 0."""
    asyncio.run(_show(args, Settings.from_args(args)))
    return 0


async def _show(args: argparse.Namespace, settings: Settings) -> None:
    since_ms = int(time.time() * 1000) - args.since
    async with runs_view(settings, verdicts_since_ms=since_ms) as view:
        if args.json:
            await _print_json(args, view)
            return
        limit = _DEFAULT_ROWS if args.limit is None else args.limit
        if not args.watch:
            Console().print(_picture(args, view, limit))
            return
        with Live(_picture(args, view, limit), auto_refresh=False, screen=Console().is_terminal) as live:
            while True:
                await view.follow(_EVERY_S)
                live.update(_picture(args, view, limit), refresh=True)


async def _print_json(args: argparse.Namespace, view: RunsView) -> None:
    told: dict[tuple[str, str], RunRow] = {}
    while True:
        for row in chosen(view.rows(args.tenant), args.state)[: args.limit or None]:
            key = (row.tenant, row.run_id)
            if told.get(key) != row:
                told[key] = row
                print(msgspec.json.encode(row).decode(), flush=args.watch)
        if not args.watch:
            return
        await view.follow(_EVERY_S)


def chosen(rows: Iterable[RunRow], status: str) -> list[RunRow]:
    """Return the rows of a status, the worst first: by what was said, then by steps."""
    kept = [row for row in rows if status in {"all", row.status}]
    return sorted(kept, key=lambda row: (-_rank(row), -row.steps, row.tenant, row.run_id))


def _rank(row: RunRow) -> int:
    return 0 if row.said is None else LEVEL_NAMES.index(row.said.level)


def _picture(args: argparse.Namespace, view: RunsView, limit: int) -> Group:
    now_ms = int(time.time() * 1000)
    everything = list(view.rows(args.tenant))
    rows = chosen(everything, args.state)
    table = Table(box=None, pad_edge=False)
    for column in ("tenant", "run", "agent", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("steps", "tokens", "cost", "age", "last step"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("said", no_wrap=True)
    table.add_column("bound by", min_width=16)  # the one that gives way: the others say which run it is
    for row in rows[: limit or None]:
        table.add_row(*_cells(row, now_ms))
    counts = {status: sum(row.status == status for row in everything) for status in STATUSES}
    foot = [", ".join(f"{n:,} {status}" for status, n in counts.items())]
    if limit and len(rows) > limit:
        foot.append(f"{len(rows) - limit:,} more: --limit 0")
    if view.table.unreadable:
        foot.append(f"[red]{len(view.table.unreadable)} snapshots cannot be read[/]: of another version?")
    if not view.standing.is_enforcing:
        foot.append("[red]enforcement is off[/]: nothing is stopped")
    return Group(table, Text.from_markup("; ".join(foot), style="dim"))


def _cells(row: RunRow, now_ms: int) -> list[str]:
    said = "" if row.said is None else f"[{LEVEL_COLOURS.get(row.said.level, '')}]{row.said.level}[/]"
    if row.said is not None:
        said += f" {row.said.pattern}" * bool(row.said.pattern) + f" x{row.said.count}"
    return [
        escape(row.tenant),
        escape(row.run_id),
        escape(row.agent),
        f"[{STATUS_COLOURS[row.status]}]{row.status}[/]",
        f"{row.steps:,}",
        "" if row.tokens is None else f"{row.tokens:,}",
        "" if row.cost_usd is None else f"${row.cost_usd:.2f}",
        shown(now_ms - row.started_ms),
        shown(now_ms - row.last_step_ms),
        said,
        # A person's own words are in `loopwarden run show`.
        escape("; ".join(bond.partition(":")[0] if "by operator" in bond else bond for bond in row.bound_by)),
    ]
