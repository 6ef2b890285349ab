"""The picture of the demonstration: every run, what was seen, and what was ordered and answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loopwarden_streams.demo_board import Board, Order, Run, State
from loopwarden_streams.demo_report import short_number

STATE_STYLES: Final[dict[State, str]] = {
    "waiting": "bright_black",
    "running": "default",
    "nudged": "yellow",
    "paused": "magenta",
    "stopping": "bold dark_orange",
    "stopped": "bold red",
    "completed": "green",
    "survived": "bold white on red",
    "failed": "magenta",
}
_ORDER_STYLES: Final = {"nudge": "yellow", "pause_run": "magenta", "kill_run": "bold red"}
# The same as in `loopwarden replay`: told apart without colour too, the stronger the denser.
_LEVELS: Final = {
    "observe": ("░", "cyan"),
    "nudge": ("▒", "yellow"),
    "break": ("▓", "dark_orange"),
    "pause": ("◆", "magenta"),
    "kill": ("█", "bold red"),
}

_WIDE_COLUMNS: Final = 112
_SIDE_COLUMNS: Final = 41
_SIDE_LINES: Final = 18
_SHORT_FEED: Final = 5
_FEWEST_ROWS: Final = 2
_WIDE_FRAME_LINES: Final = 6  # head, foot, the frame and the titles of the table, and one to spare
_FRAME_LINES: Final = 5  # head, foot, titles, an empty line, and one to spare


def draw(
    board: Board, begin_s: float, elapsed_s: float, seconds: float, *, pace: float, width: int, height: int
) -> RenderableType:
    """Return the picture for a terminal of `width` columns and `height` lines.

    Cost: about 15 ms for thirty runs.
    """
    head = _head(board, elapsed_s, seconds, is_wide=width >= _WIDE_COLUMNS)
    runs = list(board.runs.values())
    if width >= _WIDE_COLUMNS:
        rows = max(_FEWEST_ROWS, height - _WIDE_FRAME_LINES)
        body = Table.grid(expand=True, padding=(0, 1, 0, 0))
        body.add_column(ratio=1)
        body.add_column(width=_SIDE_COLUMNS)
        lines = min(max(len(runs), _SIDE_LINES), rows) + 1
        seen = lines // 2 - 1
        ordered = lines - seen - 2
        side = Group(
            _panel("seen", _verdict_lines(board, begin_s, seen)),
            _panel("ordered and answered", _order_lines(board, begin_s, ordered)),
        )
        body.add_row(_panel("runs", _run_table(runs, rows)), side)
        return Group(head, body, _foot(board, pace, has_legend=True))
    rows = max(_FEWEST_ROWS, height - _FRAME_LINES - _SHORT_FEED)
    feed = _order_lines(board, begin_s, _SHORT_FEED)
    return Group(head, _run_table(runs, rows), Text(), feed, _foot(board, pace, has_legend=False))


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left", box=ROUNDED, border_style="bright_black", padding=(0, 1))


def _head(board: Board, elapsed_s: float, seconds: float, *, is_wide: bool) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True, overflow="ellipsis")
    head.add_column(justify="right", no_wrap=True)
    states = Counter(run.state for run in board.runs.values())
    left = Text(" loopwarden demo  " if is_wide else "", style="bold")
    for state, style in STATE_STYLES.items():
        if states[state]:
            left.append(f" {states[state]} ", style=style)
            left.append(f"{state} ", style="bright_black")
    at_most = f" of {seconds:.0f} s at most " if is_wide else ""
    head.add_row(left, Text(f"{max(0.0, elapsed_s):.0f} s{at_most}", style="bright_black"))
    return head


def _foot(board: Board, pace: float, *, has_legend: bool) -> RenderableType:
    tokens = sum(run.tokens for run in board.runs.values())
    cost_usd = sum(run.cost_usd for run in board.runs.values())
    text = (
        f" {board.steps:,} step events, {pace:.0f}/s   {board.verdict_count} verdicts   {len(board.orders)} orders   "
        f"{short_number(tokens)} tokens   ${cost_usd:.2f}"
    )
    if not has_legend:
        return Text(text, style="bright_black", no_wrap=True)
    foot = Table.grid(expand=True)
    foot.add_column()
    foot.add_column(justify="right")
    legend = Text()
    for level, (mark, style) in _LEVELS.items():
        if level != "pause":
            legend.append(f"{mark} ", style=style).append(f"{level}  ", style="bright_black")
    foot.add_row(Text(text, style="bright_black"), legend)
    return foot


def _run_table(runs: Sequence[Run], rows: int) -> RenderableType:
    shown = list(runs)
    hidden: list[Run] = []
    if len(runs) > rows:
        # What can still happen first; the order of the plan within.
        shown.sort(key=lambda run: (run.plan.kind == "healthy", run.ended is not None))
        shown, hidden = shown[: rows - 1], shown[rows - 1 :]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bright_black")
    table.add_column("", width=1)
    table.add_column("tenant", no_wrap=True)
    table.add_column("run", no_wrap=True)
    table.add_column("what it does", no_wrap=True, overflow="ellipsis", ratio=1)
    for name, columns in (("calls", 5), ("tokens", 6), ("cost", 5)):
        table.add_column(name, justify="right", width=columns, no_wrap=True)
    table.add_column("state", width=9, no_wrap=True)
    for run in shown:
        table.add_row(*_cells(run))
    if not hidden:
        return table
    states = Counter(run.state for run in hidden)
    counts = ", ".join(f"{states[state]} {state}" for state in STATE_STYLES if states[state])
    return Group(table, Text(f"… and {len(hidden)} more: {counts}", style="bright_black"))


def _cells(run: Run) -> list[Text]:
    state = run.state
    style = STATE_STYLES[state]
    quiet = "bright_black" if state in ("waiting", "completed") else "default"
    mark = "○" if state == "waiting" else "✓" if state == "completed" else "■" if state == "stopped" else "●"
    return [
        Text(mark, style=style if state != "running" else "cyan"),
        Text(run.plan.tenant, style=quiet),
        Text(run.plan.run_id, style=quiet if quiet != "default" else style),
        Text(run.plan.doing, style=quiet),
        Text(str(run.steps or ""), style=quiet),
        Text(short_number(run.tokens) if run.tokens else "", style=quiet),
        Text(f"${run.cost_usd:.2f}" if run.tokens else "", style=quiet),
        Text(state, style=style),
    ]


def _verdict_lines(board: Board, begin_s: float, lines: int) -> Table:
    newest = list(board.verdicts)[-lines:] if lines > 0 else []
    feed = _feed(("right", "left", "left", "left", "right"), wide=3)
    for verdict in newest:
        mark, style = _LEVELS.get(verdict.level, ("?", "default"))
        feed.add_row(
            Text(f"{verdict.at_ms / 1000 - begin_s:4.1f}", style="bright_black"),
            Text(mark, style=style),
            Text(verdict.run_id),
            Text(verdict.detector, style=style),
            Text(str(verdict.evidence.count), style=style),
        )
    return _filled(feed, lines - len(newest))


def _order_lines(board: Board, begin_s: float, lines: int) -> Table:
    newest = list(board.orders.values())[-lines:] if lines > 0 else []
    feed = _feed(("right", "left", "left", "right"), wide=2)
    for order in newest:
        kind = order.command.type
        style = _ORDER_STYLES.get(kind, "default")
        feed.add_row(
            Text(f"{order.command.issued_at_ms / 1000 - begin_s:4.1f}", style="bright_black"),
            Text(kind.removesuffix("_run"), style=style),
            Text(order.command.run_id),
            _answer(board, order),
        )
    return _filled(feed, lines - len(newest))


def _feed(columns: Sequence[Literal["left", "right"]], *, wide: int) -> Table:
    feed = Table.grid(expand=True, padding=(0, 1, 0, 0))
    for number, justify in enumerate(columns):
        ratio = 1 if number == wide else None
        feed.add_column(justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)
    return feed


def _filled(feed: Table, empty: int) -> Table:
    for _ in range(empty):
        feed.add_row("")
    return feed


def _answer(board: Board, order: Order) -> Text:
    said_ms = board.decided_ms(order)
    if order.status in ("sent", "received"):
        return Text("…", style="bright_black")
    if order.applied_ms is None or said_ms is None:
        return Text(order.status, style="bright_black")
    text = Text(f"{max(0, order.applied_ms - said_ms)} ms", style="green")
    if order.command.type == "kill_run":
        text.append(" ✓" if order.dead_ms is not None else "  ", style="bold green")
    return text
