"""What people see of a replay: the verdicts run by run, what they add up to, and a picture of it."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from loopwarden_models.causes import CAUSES
from loopwarden_models.patterns import LEVEL_NAMES
from loopwarden_models.recoveries import RECOVERIES
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.replay_summary import ANY, StoppedRun, Summary

STYLES: Final = {
    "observe": "cyan",
    "nudge": "yellow",
    "break": "dark_orange",
    "pause": "magenta",
    "kill": "bold red",
}
# Told apart without colour too: the stronger the level, the denser.
SHADES: Final = {"observe": "░", "nudge": "▒", "break": "▓", "pause": "◆", "kill": "█"}
_ASCII_SHADES: Final = {"observe": ".", "nudge": "-", "break": "+", "pause": "%", "kill": "#"}

_PIPED_COLUMNS: Final = 120
_BAR_CELLS: Final = 40
_HEADER: Final = ("time", "level", "detector", "count", "steps", "order")
_RIGHT: Final = frozenset({"count", "steps"})
_LISTED_STOPS: Final = 10


class Row(NamedTuple):
    """One verdict to show, the type of the order that came of it, the agent's name, and where the pattern begins."""

    verdict: Verdict
    order: str | None
    agent: str | None
    place: str


class Earliest:
    """Keeps the `limit` earliest rows by event time, or all if it is 0, and counts the others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._added = 0
        self._heap: list[tuple[int, int, Row]] = []

    @property
    def hidden(self) -> int:
        """Number of rows that were added and are not kept."""
        return self._added - len(self._heap)

    def add(self, row: Row) -> None:
        """Add one row. Cost: O(log `limit`)."""
        self._added += 1
        entry = (-row.verdict.at_ms, -self._added, row)
        if not self._limit or len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def in_order(self) -> list[Row]:
        """Return the rows that are kept, by event time and then by arrival."""
        return [row for _, _, row in sorted(self._heap, reverse=True)]


def verdict_table(rows: Sequence[Row], *, hidden: int, level: str) -> RenderableType:
    """Return the verdicts run by run, the run that was first seen first, and within a run in order of time."""
    if not rows:
        return Text(f"No verdict of level {level} or above.", style="green")
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((row.verdict.tenant, row.verdict.run_id), []).append(row)
    cells = {id(row): _cells(row) for row in rows}
    widths = [
        max(len(each), *(each_row[at].cell_len for each_row in cells.values())) for at, each in enumerate(_HEADER)
    ]
    parts: list[RenderableType] = [_grid([[Text(each, style="dim") for each in (*_HEADER, "what was seen")]], widths)]
    for of_run in runs.values():
        lines = [[*cells[id(row)], _note(row.verdict)] for row in of_run]
        parts += [_run_line(of_run), _grid(lines, widths), Text()]
    if hidden:
        text = f"{_plural(hidden, 'later verdict')} not shown: --limit 0 shows all, a higher --level fewer"
        parts += [Text(text, style="dim"), Text()]
    return Group(*parts)


def _run_line(rows: Sequence[Row]) -> Text:
    first = rows[0].verdict
    line = Text()
    line.append(printable(f"{first.tenant}/{first.run_id}"), style="bold")
    if first.root_run_id != first.run_id:
        line.append(printable(f"  in the tree of {first.root_run_id}"), style="dim")
    if rows[0].agent:
        line.append(printable(f"  {rows[0].agent}"), style="blue")
    line.append(f"  {_date(first.at_ms)}", style="dim")
    line.append(printable(f"  {rows[0].place}"), style="dim")
    return line


def _cells(row: Row) -> list[Text]:
    verdict, order = row.verdict, row.order
    evidence = verdict.evidence
    return [
        Text(_clock(verdict.at_ms), style="dim"),
        Text(verdict.level, style=STYLES.get(verdict.level, "")),
        Text(verdict.detector),
        Text(f"{evidence.count}/{evidence.threshold}"),
        Text(f"{evidence.first_seq}-{evidence.last_seq}", style="dim"),
        # Without an order the mode says why: `shadow` and `warn` hold back, `enforce` waits for the rung below.
        Text(f"-> {order.removesuffix('_run')}", style="bold") if order else Text(verdict.mode, style="dim"),
    ]


def _note(verdict: Verdict) -> Text:
    note = Text(printable(verdict.evidence.note))
    if verdict.vetoed_from:
        note.append(f" ({verdict.vetoed_from} vetoed: it moves on)", style="green")
    told = []
    if verdict.recovery is not None:
        recovery = RECOVERIES.get(verdict.recovery)
        told.append(f"{verdict.recovery_level}: {recovery.title if recovery is not None else verdict.recovery}")
    if verdict.probable_cause is not None:
        told.append(f"probably {cause_title(verdict.probable_cause)}")
    if told:
        note.append(printable(f" [{'; '.join(told)}]"), style="dim")
    return note


def cause_title(name: str) -> str:
    """Return what people call a probable cause; the name itself if this version does not know it."""
    cause = CAUSES.get(name)
    return name if cause is None else cause.title


def _grid(lines: Iterable[list[Text]], widths: Sequence[int]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for name, width in zip(_HEADER, widths, strict=True):
        grid.add_column(width=width, no_wrap=True, justify="right" if name in _RIGHT else "left")
    grid.add_column(ratio=1)
    for line in lines:
        grid.add_row(*line)
    return Padding(grid, (0, 0, 0, 2))


def summary_view(summary: Summary, *, seconds: float, interrupted: bool, plain: bool) -> RenderableType:
    """Return the sum of a replay.

    Args:
        summary: What it added up to.
        seconds: How long it took.
        interrupted: It ended before its source did.
        plain: The output knows no other characters than ASCII.
    """
    parts: list[RenderableType] = [
        Rule("Interrupted: the sum so far" if interrupted else "Summary", style="dim", align="left"),
        _figures(summary, seconds),
        Text(),
    ]
    if summary.runs_with_verdict:
        parts += [_picture(summary, plain=plain), Text()]
    if summary.causes:
        parts += [_causes(summary), Text()]
    parts.append(_stops(summary))
    return Group(*parts)


def _figures(summary: Summary, seconds: float) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rate = f"{summary.events / seconds:,.0f} a second" if seconds > 0 else ""
    table.add_row("events", f"{summary.events:,} in {seconds:.2f} s: {rate}")
    span_ms = summary.last_ms - summary.first_ms
    if summary.events and span_ms >= 0:
        faster = f": {span_ms / 1000 / seconds:,.0f} times as fast as it happened" if seconds > 0 else ""
        first, last = (f"{_date(ms)} {_clock(ms)}" for ms in (summary.first_ms, summary.last_ms))
        table.add_row("recorded", f"{first} to {last} UTC, {_duration(span_ms)}{faster}")
    healthy = summary.runs - summary.runs_with_verdict
    table.add_row("runs", f"{summary.runs:,}: {summary.runs_with_verdict:,} with a verdict, {healthy:,} without")
    verdicts = sum(sum(levels.values()) for levels in summary.verdicts.values())
    orders = ", ".join(f"{count:,} {name}" for name, count in summary.orders.items())
    table.add_row("verdicts", f"{verdicts:,}")
    table.add_row("orders", f"{orders}: these would have been given" if orders else "none would have been given")
    if summary.broken:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in summary.broken.items())
        table.add_row("broken", Text(f"{_plural(sum(summary.broken.values()), 'record')}: {reasons}", style="red"))
    else:
        table.add_row("broken", "0 records")
    if summary.unknown_types:
        table.add_row("unknown", f"{_plural(summary.unknown_types, 'event')} of a type that this version does not know")
    if summary.evicted_runs:
        table.add_row(
            "forgotten",
            Text(f"{_plural(summary.evicted_runs, 'run')} for want of room: raise --max-runs", style="red"),
        )
    return table


def _picture(summary: Summary, *, plain: bool) -> RenderableType:
    """Return per detector the runs by their strongest level, as counts and as a bar, and the number of verdicts."""
    used = [name for name in LEVEL_NAMES[1:] if summary.runs_by_level[ANY].get(name)]
    shades = _ASCII_SHADES if plain else SHADES
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("runs by strongest level", no_wrap=True)
    for name in used:
        table.add_column(Text(f"{shades[name]} {name}", style=STYLES[name]), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=_BAR_CELLS)
    table.add_column("verdicts", justify="right", no_wrap=True)
    most = max(sum(levels.values()) for levels in summary.runs_by_level.values())
    silent = 0
    for detector, levels in summary.runs_by_level.items():
        if detector == ANY:
            continue
        said = sum(summary.verdicts[detector].values())
        silent += not said
        if said:
            table.add_row(*_picture_row(detector, levels, used, most, shades), f"{said:,}")
    if silent:
        table.add_row(Text(f"{silent} other rules", style="dim"), *_picture_row("", {}, used, most, shades)[1:], "0")
    said = sum(sum(levels.values()) for levels in summary.verdicts.values())
    table.add_section()
    table.add_row(*_picture_row("any of them", summary.runs_by_level[ANY], used, most, shades), f"{said:,}")
    return table


def _picture_row(
    name: str, levels: dict[str, int], used: Iterable[str], most: int, shades: dict[str, str]
) -> list[RenderableType]:
    counts = [Text(f"{levels[level]:,}") if level in levels else Text("-", style="dim") for level in used]
    bar = Text()
    for level, cells in zip(levels, bar_cells(list(levels.values()), most, _BAR_CELLS), strict=True):
        bar.append(shades[level] * cells, style=STYLES[level])
    return [Text(name, style="" if levels else "dim"), *counts, bar]


def bar_cells(counts: Sequence[int], most: int, cells: int) -> list[int]:
    """Return how many of `cells` each count gets when `most` fills them all; what is not 0 gets at least one."""
    wanted = [count * cells / most for count in counts]
    given = [max(1, int(each)) if count else 0 for each, count in zip(wanted, counts, strict=True)]
    # Largest remainders first, as seats are given; and taken back from the longest where the ones made it too long.
    total = min(cells, max(sum(1 for count in counts if count), round(sum(wanted))))
    by_remainder = sorted(range(len(counts)), key=lambda at: wanted[at] - given[at], reverse=True)
    for at in by_remainder[: max(0, total - sum(given))]:
        given[at] += 1
    while sum(given) > total:
        given[given.index(max(given))] -= 1
    return given


def _causes(summary: Summary) -> RenderableType:
    """Return what probably stands behind the loops, in how many runs, and what to do about it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("probable cause", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("what to do")
    for name, runs in summary.causes.items():
        cause = CAUSES.get(name)
        table.add_row(printable(cause_title(name)), f"{runs:,}", "" if cause is None else cause.countermeasure)
    return table


def _stops(summary: Summary) -> RenderableType:
    stopped = summary.stopped
    parts: list[RenderableType] = []
    if stopped:
        steps = sum(run.steps_after for run in stopped)
        cost = sum(run.cost_usd_after for run in stopped)
        title = Text(f"{_plural(len(stopped), 'run')} would have been stopped", style="bold")
        spent = f" and spent ${cost:,.2f} more" if cost else ""
        they = "it" if len(stopped) == 1 else "they"
        title.append(f"; {they} went on for {_plural(steps, 'more step')}{spent}", style="not bold")
        held_back = {run.mode for run in stopped if not run.order}
        if held_back:
            title.append(f" (recorded only: mode {', '.join(sorted(held_back))})", style="not bold dim")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        for _ in range(5):
            table.add_column(no_wrap=True)
        for run in stopped[:_LISTED_STOPS]:
            table.add_row(*_stop_row(run))
        parts += [title, Padding(table, (0, 0, 0, 2))]
        if len(stopped) > _LISTED_STOPS:
            parts.append(Text(f"  and {len(stopped) - _LISTED_STOPS:,} more (--level kill, or --json)", style="dim"))
    else:
        parts.append(Text("No run would have been stopped.", style="green"))
    if summary.almost_stopped:
        runs = _plural(summary.almost_stopped, "run")
        parts.append(Text(f"{runs} came close: a nudge that was given before had yet to fail", style="dim"))
    return Group(*parts)


def _stop_row(run: StoppedRun) -> list[RenderableType]:
    return [
        Text(printable(f"{run.tenant}/{run.run_id}")),
        Text(run.detector),
        Text(f"at step {run.seq:,}, {_clock(run.at_ms)}", style="dim"),
        Text(f"{_plural(run.steps_after, 'step')} after", style="dim"),
        Text(f"-> {run.order.removesuffix('_run')}" if run.order else "", style="bold"),
        Text(printable(f"probably {cause_title(run.probable_cause)}") if run.probable_cause else "", style="dim"),
    ]


def new_console(*, stderr: bool = False, is_live: bool = False) -> Console:
    """Return a console that prints texts as they are: no markup, no emoji, no guessing at numbers.

    Args:
        stderr: Print to standard error.
        is_live: Redraw in place even where there is no terminal.
    """
    console = Console(stderr=stderr, force_terminal=is_live or None, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Rich would take the width of whatever terminal it finds, or 80.
        console.width = _PIPED_COLUMNS
    return console


def show(console: Console, *parts: RenderableType) -> None:
    """Print `parts`; into a pipe or file without the blanks that fill up the lines of a terminal.

    Raises:
        BrokenPipeError: The reader of the pipe went away.
    """
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    lines = [line.rstrip() for line in capture.get().splitlines()]
    console.file.write("\n".join([*lines, ""]))
    console.file.flush()


def printable(text: str) -> str:
    """Return `text` with everything that could steer a terminal replaced: names come from agents."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _moment(at_ms: int) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return None  # a clock may claim anything


def _date(at_ms: int) -> str:
    moment = _moment(at_ms)
    return moment.strftime("%Y-%m-%d") if moment is not None else "after 9999"


def _clock(at_ms: int) -> str:
    moment = _moment(at_ms)
    return moment.strftime("%H:%M:%S") if moment is not None else "--:--:--"


def _duration(span_ms: int) -> str:
    seconds = span_ms // 1000
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{span_ms / 1000:,.1f} seconds"
