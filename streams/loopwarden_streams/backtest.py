"""`loopwarden backtest`: what a new policy would have said of recorded runs, against the one that is in force."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from loopwarden_models.codec import MAX_STEP_BYTES, decode_step
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.patterns import LEVEL_NAMES, Level, LevelName
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.evaluate_judge import Judge, level_of
from loopwarden_streams.evaluate_policy import enforced
from loopwarden_streams.policy_file import load_policy
from loopwarden_streams.replay_core import SourceRecord
from loopwarden_streams.replay_report import new_console, printable
from loopwarden_streams.replay_sources import find_files, read_file, total_bytes

_ROWS: Final = 50
_STYLES: Final = {"stricter": "yellow", "looser": "green", "otherwise": "dim"}

RunKey = tuple[str, str]


class Outcome(Struct, frozen=True, kw_only=True):
    """The strongest that was said of a run: its level, the rule that said it first, and the `seq` of that step."""

    level: LevelName
    detector: str
    seq: int


class Change(Struct, frozen=True, kw_only=True):
    """A run that the two policies judge differently; `old` or `new` is none where nothing was said.

    `change`: `stricter` or `looser` by level, else `otherwise`: another rule, or at another step.
    """

    tenant: str
    run_id: str
    change: str
    old: Outcome | None
    new: Outcome | None


class Backtest(Struct, frozen=True, kw_only=True):
    """The whole comparison. Levels count runs by the strongest that was said of each."""

    old_policy: str
    new_policy: str
    events: int
    runs: int
    broken: dict[str, int]
    old_levels: dict[str, int]
    new_levels: dict[str, int]
    gained: dict[str, int]
    lost: dict[str, int]
    changes: list[Change]


def compare(records: Iterable[SourceRecord], old: Policy, new: Policy) -> Backtest:
    """Judge recorded steps by both policies, each as if it enforced and every nudge was applied and ignored.

    Cost: twice that of a replay; memory for the state of every run, twice.
    """
    judges = Judge(enforced(old), is_fleet=False), Judge(enforced(new), is_fleet=False)
    strongest: tuple[dict[RunKey, Verdict], dict[RunKey, Verdict]] = ({}, {})
    runs: dict[RunKey, None] = {}
    broken: Counter[str] = Counter()
    events = 0
    for record in records:
        try:
            step = decode_step(record.value, max_bytes=MAX_STEP_BYTES)
            if step is None:
                continue
            runs[step.tenant, step.run_id] = None
            for judge, best in zip(judges, strongest, strict=True):
                for verdict in judge.feed(step):
                    key = (verdict.tenant, verdict.run_id)
                    known = best.get(key)
                    if known is None or level_of(verdict.level) > level_of(known.level):
                        best[key] = verdict
        except InvalidEvent as error:
            broken[error.reason] += 1
            continue
        events += 1
    changes = [change for key in runs if (change := _change(key, *(best.get(key) for best in strongest))) is not None]
    return Backtest(
        old_policy=old.version,
        new_policy=new.version,
        events=events,
        runs=len(runs),
        broken=dict(broken),
        old_levels=_levels(strongest[0]),
        new_levels=_levels(strongest[1]),
        gained=_by_detector(change.new for change in changes if change.change == "stricter"),
        lost=_by_detector(change.old for change in changes if change.change == "looser"),
        changes=sorted(changes, key=lambda change: (-_weight(change), change.tenant, change.run_id)),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden backtest`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="JSON Lines of step events, plain or gzip; a folder; - for standard input",
    )
    parser.add_argument("--policy", required=True, help="the new policy")
    parser.add_argument("--against", default="", help="the policy to compare with (default: the default policy)")
    parser.add_argument(
        "--limit", type=int, default=_ROWS, metavar="N", help="runs shown, 0 = all (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the whole comparison as one JSON object")
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")


def run(args: argparse.Namespace) -> int:
    """Compare, print, and return 0; 1 if not one record was a step event.

    Raises:
        ConfigError: A policy, a path or a file is wrong.
    """
    old, new = load_policy(args.against or None), load_policy(args.policy)
    found = compare(_records(args), old, new)
    if args.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    else:
        _print(Console(highlight=False), found, args.limit)
    return 0 if found.events else 1


def _records(args: argparse.Namespace) -> Iterator[SourceRecord]:
    files = find_files(args.paths)
    console = new_console(stderr=True, is_live=args.progress)
    columns = (TextColumn("judging twice"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("backtest", total=total_bytes(files))
        for file in files:
            for block in read_file(file, max_bytes=MAX_STEP_BYTES, advance=lambda size: progress.advance(task, size)):
                yield from block


def _change(key: RunKey, old: Verdict | None, new: Verdict | None) -> Change | None:
    before, after = _outcome(old), _outcome(new)
    if before == after:
        return None
    weaker, stronger = (level_of(one.level) if one is not None else Level.NONE for one in (old, new))
    change = "otherwise" if weaker == stronger else "stricter" if stronger > weaker else "looser"
    return Change(tenant=key[0], run_id=key[1], change=change, old=before, new=after)


def _outcome(verdict: Verdict | None) -> Outcome | None:
    if verdict is None:
        return None
    return Outcome(level=verdict.level, detector=verdict.detector, seq=verdict.evidence.last_seq)


def _weight(change: Change) -> int:
    """Return how much a change matters: what ends runs that went on before comes first."""
    levels = [LEVEL_NAMES.index(one.level) if one is not None else 0 for one in (change.old, change.new)]
    return 10 * abs(levels[1] - levels[0]) + max(levels)


def _levels(best: dict[RunKey, Verdict]) -> dict[str, int]:
    counts = Counter(verdict.level for verdict in best.values())
    return {level: counts[level] for level in LEVEL_NAMES[1:] if counts[level]}


def _by_detector(outcomes: Iterable[Outcome | None]) -> dict[str, int]:
    return dict(Counter(one.detector for one in outcomes if one is not None).most_common())


def _print(console: Console, found: Backtest, limit: int) -> None:
    shown = found.changes[: limit or None]
    if shown:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        table.add_column("run", overflow="fold")
        for column in ("change", "old", "new"):
            table.add_column(column, no_wrap=column == "change")
        for change in shown:
            name = printable(f"{change.tenant}/{change.run_id}")
            kind = Text(change.change, style=_STYLES[change.change])
            table.add_row(name, kind, _told(change.old), _told(change.new))
        console.print(table)
        if len(found.changes) > len(shown):
            console.print(f"{len(found.changes) - len(shown):,} more; --limit 0 shows all")
        console.print()
    kinds = Counter(change.change for change in found.changes)
    console.print(f"{found.events:,} events of {found.runs:,} runs: {found.old_policy} against {found.new_policy}")
    console.print(
        f"{kinds['stricter']:,} runs judged more strictly, {kinds['looser']:,} less, {kinds['otherwise']:,} otherwise"
    )
    for name, levels in (("old", found.old_levels), ("new", found.new_levels)):
        console.print(
            f"{name}  " + (", ".join(f"{count:,} {level}" for level, count in levels.items()) or "nothing said")
        )
    for name, detectors in (("gained by", found.gained), ("lost by", found.lost)):
        if detectors:
            console.print(f"{name}  " + ", ".join(f"{detector} {count:,}" for detector, count in detectors.items()))
    if found.broken:
        total = sum(found.broken.values())
        console.print(f"{total:,} records are no step events: " + ", ".join(found.broken))


def _told(outcome: Outcome | None) -> str:
    return "-" if outcome is None else f"{outcome.level} at {outcome.seq} by {outcome.detector}"
