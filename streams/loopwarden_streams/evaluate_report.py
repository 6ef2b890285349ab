"""What people see of an evaluation: the cases that are not as they should be, and a table for each question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, TypeVar

from msgspec import UNSET
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from loopwarden_streams.evaluate_cases import Expect
from loopwarden_streams.evaluate_judge import Decided
from loopwarden_streams.evaluate_score import Ablation, CaseScore, DetectorScore, Evaluation, FolderScore, Share
from loopwarden_streams.replay_report import STYLES, printable

Justify = Literal["left", "right"]
_Cell = TypeVar("_Cell", str, Text)

_LISTED: Final = 10  # ablation: cases named for each detector
_INDENT: Final = (0, 0, 0, 2)
_NONE: Final = "-"
# Fields of `FolderScore` in which a nudge is no success.
_GROUPS: Final = ("no_loop", "success", "healthy", "other")


def evaluation_view(evaluation: Evaluation, *, seconds: float, is_verbose: bool) -> RenderableType:
    """Return the whole report.

    Args:
        evaluation: The figures.
        seconds: How long it took.
        is_verbose: Tell of the cases that are right, and name every missed loop and false alarm.
    """
    parts: list[RenderableType] = []
    if evaluation.cases:
        parts += [_rule("Cases"), _cases(evaluation.cases, is_verbose=is_verbose), Text()]
    if evaluation.traces:
        parts += [_rule("Recorded runs"), _folders(evaluation.traces), Text()]
        if is_verbose:
            parts += [*_wrong_runs(evaluation.traces), Text()]
    parts += [_rule("Who decided first"), _detectors(evaluation.detectors), Text()]
    if evaluation.ablation is not UNSET:
        parts += [_rule("Without one detector"), _ablation(evaluation.ablation, evaluation), Text()]
    events = sum(folder.events for folder in evaluation.traces.values())
    text = f"{len(evaluation.cases):,} cases, {events:,} events of recorded runs, policy {evaluation.policy}"
    parts.append(Text(printable(f"{text}, {seconds:.1f} s"), style="dim"))
    return Group(*parts)


def _rule(title: str) -> RenderableType:
    return Rule(title, style="dim", align="left")


def _table(*columns: tuple[str, Justify]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for at, (name, justify) in enumerate(columns):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis" if at == 0 else "fold")
    return table


def _cases(cases: Sequence[CaseScore], *, is_verbose: bool) -> RenderableType:
    parts: list[RenderableType] = []
    for case in cases:
        if not case.ok or is_verbose:
            parts += [_case(case)]
    right, of_kind = Counter(case.kind for case in cases if case.ok), Counter(case.kind for case in cases)
    table = _table(("kind", "left"), ("as expected", "right"), ("of", "right"))
    for kind, count in sorted(of_kind.items()):
        table.add_row(printable(kind), f"{right[kind]:,}", f"{count:,}")
    table.add_section()
    table.add_row("all", f"{right.total():,}", f"{len(cases):,}")
    parts += [Text(), table] if parts else [table]
    named = [case.pattern_ok for case in cases if case.pattern_ok is not None]
    if named:
        parts.append(Text(f"{sum(named):,} of {len(named):,} patterns named as expected (told apart)", style="dim"))
    return Group(*parts)


def _case(case: CaseScore) -> RenderableType:
    line = Text("ok     " if case.ok else "wrong  ", style="green" if case.ok else "red")
    line.append(printable(case.id), style="bold")
    line.append(printable(f"  {case.kind}"), style="dim")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("expected", Text(printable(expected_text(case.expected))))
    grid.add_row("got", _got(case))
    for fault in case.faults[:3]:
        grid.add_row("", Text(printable(fault), style="red"))
    if case.pattern_ok is False:
        grid.add_row("", Text(printable(f"the pattern is not {case.expected.pattern}"), style="yellow"))
    return Group(line, Padding(grid, (0, 0, 0, 7)))


def expected_text(expect: Expect) -> str:
    """Return a case's expectation as one line."""
    parts = []
    if expect.min_level is not None:
        by = f" by event {expect.by_event}" if expect.by_event is not None else ""
        parts.append(f"{expect.min_level}{by}")
    if expect.kill_by_event is not None:
        parts.append(f"kill by event {expect.kill_by_event}")
    if expect.target is not None:
        whom = (f"tenant {expect.target.tenant}", f"run {expect.target.run_id}")
        parts.append("of " + " ".join(each for each in whom if not each.endswith(" None")))
    if expect.max_level is not None:
        others = " for all others" if expect.target is not None else ""
        parts.append(f"at most {expect.max_level}{others}")
    if expect.pattern is not None:
        parts.append(f"as {expect.pattern}")
    return ", ".join(parts) or "nothing"


def _got(case: CaseScore) -> Text:
    got = case.got
    if got.first is None:
        return Text("nothing", style="dim")
    line = _decided(got.first)
    if got.kill_event is not None and (got.kill_event, "kill") != (got.first.event, got.first.level):
        line.append(", ").append("kill", style=STYLES["kill"]).append(f" at event {got.kill_event}")
    elif got.max_level not in ("kill", got.first.level):
        line.append(", at most ").append(got.max_level, style=STYLES.get(got.max_level, ""))
    return line


def _decided(first: Decided) -> Text:
    line = Text(first.level, style=STYLES.get(first.level, ""))
    line.append(f" at event {first.event} by {first.detector} ({first.pattern})", style="default")
    return line


def _folders(folders: dict[str, FolderScore]) -> RenderableType:
    return Group(_loops(folders), Text(), _alarms(folders))


def _loops(folders: dict[str, FolderScore]) -> RenderableType:
    table = _table(
        ("loops caught", "left"),
        ("loops", "right"),
        ("nudged", "right"),
        ("", "right"),
        ("killed", "right"),
        ("", "right"),
        ("median", "right"),
        ("p90 events after the onset", "left"),
    )
    for name, score in folders.items():
        if score.loop.runs:
            delay = score.delay
            middle = f"{delay.median:g}" if delay.median is not None else _NONE
            late = f"{delay.p90}" if delay.p90 is not None else _NONE
            table.add_row(printable(name), *_share(score.loop, digits=0), middle, late)
    if not table.row_count:
        return Text("No run is labelled a loop.", style="dim")
    if table.row_count > 1:
        table.add_section()
        table.add_row("all", *_share(_sum([score.loop for score in folders.values()]), digits=0), "", "")
    return table


def _alarms(folders: dict[str, FolderScore]) -> RenderableType:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("false alarms", no_wrap=True, overflow="ellipsis")
    for group in _GROUPS:
        for name in (group, "nudge", *_percent(group, ""), "kill"):
            table.add_column(name, justify="right", no_wrap=True)
    for name, score in folders.items():
        table.add_row(printable(name), *_alarm_cells([score]))
    if len(folders) > 1:
        table.add_section()
        table.add_row("all", *_alarm_cells(list(folders.values())))
    text = "healthy: labelled no_loop, or successful, or both. other: not known to be either; neither right nor wrong"
    return Group(table, Text(text, style="dim"))


def _alarm_cells(scores: list[FolderScore]) -> list[Text]:
    cells: list[Text] = []
    for group in _GROUPS:
        share = _sum([getattr(score, group) for score in scores])
        runs, nudged, percent, killed, _ = _share(share, digits=1)
        if share.killed and group != "other":
            killed.stylize("red")
        cells += [runs, nudged, *_percent(group, percent), killed]
    return cells


def _percent(group: str, cell: _Cell) -> list[_Cell]:
    # The line has room for two of them.
    return [cell] if group in ("success", "healthy") else []


def _share(share: Share, *, digits: int) -> list[Text]:
    """Return runs, how many were nudged, their percentage, how many were killed, and theirs."""
    if not share.runs:
        return [Text(each, style="dim") for each in (_NONE, "", "", "", "")]
    counts = (share.nudged, share.killed)
    cells = [Text(f"{share.runs:,}")]
    for count in counts:
        cells += [Text(f"{count:,}"), Text(f"{100 * count / share.runs:.{digits}f}%", style="dim")]
    return cells


def _sum(shares: Sequence[Share]) -> Share:
    return Share(
        runs=sum(share.runs for share in shares),
        nudged=sum(share.nudged for share in shares),
        killed=sum(share.killed for share in shares),
    )


def _wrong_runs(folders: dict[str, FolderScore]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for name, score in folders.items():
        lines = [Text(printable(f"missed       {run_id}")) for run_id in score.missed_loops]
        for run in score.false_alarms:
            line = Text(printable(f"false alarm  {run.run_id}  "))
            if run.first is not None:
                line.append_text(_decided(run.first))
            if run.kill_event is not None:
                line.append(f", kill at event {run.kill_event}", style="red")
            lines.append(line)
        if lines:
            parts += [Text(printable(name), style="bold"), Padding(Group(*lines), _INDENT)]
    return parts


def _detectors(scores: dict[str, DetectorScore]) -> RenderableType:
    table = _table(
        ("first nudge or more", "left"),
        ("all", "right"),
        ("in loops", "right"),
        ("in healthy", "right"),
        ("in others", "right"),
        ("precision", "right"),
        ("cases", "right"),
        ("runs", "right"),
    )
    for name, score in scores.items():
        precision = _NONE if score.precision is None else f"{100 * score.precision:.0f}%"
        figures = [f"{count:,}" for count in (score.first, score.loop, score.healthy, score.other)]
        split = [f"{part.loop:,}+{part.healthy:,}+{part.other:,}" for part in (score.cases, score.traces)]
        table.add_row(name, *figures, precision, *split, style="" if score.first else "dim")
    return table


def _ablation(ablation: Ablation, evaluation: Evaluation) -> RenderableType:
    table = _table(
        ("without", "left"),
        ("cases right", "right"),
        ("loops nudged", "right"),
        ("killed", "right"),
        ("healthy nudged", "right"),
        ("killed", "right"),
    )
    names = ("cases_right", "loops_nudged", "loops_killed", "healthy_nudged", "healthy_killed")
    table.add_row("none", *(f"{getattr(ablation.all, name):,}" for name in names))
    for detector, one in ablation.without.items():
        changes = [getattr(one, name) - getattr(ablation.all, name) for name in names]
        is_idle = not any(changes) and not one.cases_lost and not one.cases_won
        table.add_row(detector, *(f"{change:+,}" if change else _NONE for change in changes), style="dim" * is_idle)
    parts: list[RenderableType] = [table]
    if evaluation.cases:
        for detector, one in ablation.without.items():
            for verb, ids in (("loses", one.cases_lost), ("wins", one.cases_won)):
                if ids:
                    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
                    text = f"without {detector} {verb}: {', '.join(ids[:_LISTED])}{more}"
                    parts.append(Text(printable(text), style="dim"))
    return Group(*parts)
