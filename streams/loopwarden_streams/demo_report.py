"""What a demonstration adds up to: who was stopped and how fast, who was left alone, and what that saved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopwarden_streams.demo_board import STOPS, Board, Order, Run

# What one run may cost by the default policy: no run is said to have saved more.
_RUN_BUDGET_USD: Final = 3.0


_COLUMNS: Final = ("run", "what it did", "stopped by", "nudges", "calls", "applied", "dead", "spent", "saved")
_LEFT: Final = frozenset({"run", "what it did", "stopped by"})
_WIDE_ONLY: Final = frozenset({"what it did", "nudges", "spent"})
_WIDE_COLUMNS: Final = 110


class Stopped(Struct, frozen=True):
    """A run that was stopped.

    Attributes:
        detector: Who saw it, `count` times. `nudges`: orders before the kill.
        decided_ms: From the report of the deciding step to the order, in milliseconds; so are the next two.
        applied_ms: ... to the gate being shut. `dead_ms`: ... to the return of the run's code.
        saved_usd: Estimate. `saved_tokens`: likewise.
    """

    run: Run
    detector: str
    count: int
    nudges: int
    decided_ms: int | None
    applied_ms: int | None
    dead_ms: int | None
    saved_usd: float
    saved_tokens: int


class Summary(Struct, frozen=True):
    """The sum of a demonstration.

    Attributes:
        looping: Runs that loop until they are stopped. `survivors`: those that were not.
        stopped: Those that were, in order of their stops.
        advised: Runs that loop until they are nudged, and then come to their end by themselves if all is well.
        healthy: Runs that are well. `touched`: those that were stopped or paused. `nudged`: those that were advised.
        late_steps: Stopped runs that began a step after their gate was shut. Must be empty.
        unfinished: Healthy runs that the time was too short for.
    """

    looping: int
    stopped: list[Stopped]
    survivors: list[Run]
    advised: list[Run]
    healthy: int
    touched: list[Run]
    nudged: list[Run]
    late_steps: list[Run]
    unfinished: list[Run]

    @property
    def is_ok(self) -> bool:
        """Every loop was stopped and nothing else."""
        return not self.survivors and not self.touched


def summarise(board: Board) -> Summary:
    """Add up what the topics said."""
    runs = list(board.runs.values())
    looping = [run for run in runs if run.plan.kind == "loops"]
    healthy = [run for run in runs if run.plan.kind == "healthy"]
    stops = [(run, stop) for run in looping if (stop := run.stop) is not None and run.ended == "killed"]
    stops.sort(key=lambda pair: pair[1].command.issued_at_ms)
    touched = [run for run in healthy if any(order.command.type in STOPS for order in run.orders)]
    return Summary(
        looping=len(looping),
        stopped=[_stopped(board, run, stop) for run, stop in stops],
        survivors=[run for run in looping if run.ended != "killed"],
        advised=[run for run in runs if run.plan.kind == "recovers"],
        healthy=len(healthy),
        touched=touched,
        nudged=[run for run in healthy if run.nudges],
        late_steps=[run for run, stop in stops if stop.applied_ms is not None and run.began_ms > stop.applied_ms],
        unfinished=[run for run in healthy if run.ended != "completed" and run not in touched],
    )


def as_json(summary: Summary) -> dict[str, Any]:
    """Return the object that `--json` prints. Scripts read it: fields are not renamed."""
    return {
        "ok": summary.is_ok,
        "looping": {"of": summary.looping, "stopped": len(summary.stopped)},
        "healthy": {"of": summary.healthy, "touched": len(summary.touched)},
        "latency_ms": {
            "applied": quantiles(each.applied_ms for each in summary.stopped),
            "confirmed_dead": quantiles(each.dead_ms for each in summary.stopped),
        },
    }


def quantiles(values: Iterable[int | None]) -> dict[str, int | None]:
    """Return `p50` and `p99` of the values that are known, `None` without any."""
    known = [value for value in values if value is not None]
    return {"p50": percentile(known, 50), "p99": percentile(known, 99)}


def percentile(values: Sequence[int], percent: int) -> int | None:
    """Return the nearest-rank percentile: the smallest value that at least `percent` % of all do not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def saved(run: Run) -> tuple[int, float]:
    """Estimate the tokens and US dollars that a stopped run did not spend.

    Mean price of its last ten steps, times the steps up to the limit that would have ended it; at most what one run
    may cost. It supposes that the run would have gone on at that pace, which nobody knows.
    """
    steps = len(run.paid) - 1
    left = max(0, run.plan.max_steps - run.steps)
    if steps < 1 or not left:
        return 0, 0.0
    tokens = (run.paid[-1][0] - run.paid[0][0]) / steps
    cost_usd = (run.paid[-1][1] - run.paid[0][1]) / steps
    return round(tokens * left), min(cost_usd * left, _RUN_BUDGET_USD)


def summary_view(summary: Summary, *, width: int) -> RenderableType:
    """Return what people see at the end, for a terminal of `width` columns."""
    is_all = not summary.survivors
    parts: list[RenderableType] = [
        Text(
            f"{len(summary.stopped)} of {summary.looping} looping runs were stopped",
            style="bold green" if is_all else "bold red",
        )
    ]
    if summary.stopped:
        parts += [_stopped_table(summary.stopped, is_wide=width >= _WIDE_COLUMNS), Text()]
    parts += [_line("bold red", "survived", f"{_name(run)}: {run.plan.doing}") for run in summary.survivors]
    parts += [_line("yellow", "advised", f"{_name(run)}: {_advice(run)}") for run in summary.advised]
    parts.append(_healthy_line(summary))
    parts += [_line("bold red", "touched", f"{_name(run)}: {run.plan.doing}") for run in summary.touched]
    parts += [_line("bold red", "late step", f"{_name(run)} began a step after its stop") for run in summary.late_steps]
    if summary.unfinished:
        names = ", ".join(_name(run) for run in summary.unfinished)
        parts.append(_line("yellow", "unfinished", f"the time was too short for {names}"))
    if summary.stopped:
        parts += _speed_lines(summary.stopped)
        tokens = sum(each.saved_tokens for each in summary.stopped)
        usd = sum(each.saved_usd for each in summary.stopped)
        text = f"${usd:.2f} and {short_number(tokens)} tokens, if each had gone on to its own limit of steps (estimate)"
        parts.append(_line("cyan", "saved", text))
    return Group(*parts)


def short_number(number: float) -> str:
    """Return a count in at most five characters: `870`, `61.2k`, `1.4M`."""
    for unit in ("", "k", "M"):
        if number < 1_000:  # noqa: PLR2004 - of the next unit
            return f"{number:.1f}{unit}" if unit and number < 100 else f"{number:.0f}{unit}"  # noqa: PLR2004 - three digits
        number /= 1_000
    return f"{number:.1f}G"


def _stopped(board: Board, run: Run, stop: Order) -> Stopped:
    said_ms = board.decided_ms(stop)
    reason = stop.command.reason
    tokens, usd = saved(run)
    return Stopped(
        run=run,
        detector=reason.detector if reason is not None else "",
        count=reason.count if reason is not None else 0,
        nudges=run.nudges,
        decided_ms=_since(said_ms, stop.command.issued_at_ms),
        applied_ms=_since(said_ms, stop.applied_ms),
        dead_ms=_since(said_ms, stop.dead_ms),
        saved_usd=usd,
        saved_tokens=tokens,
    )


def _since(begin_ms: int | None, end_ms: int | None) -> int | None:
    return None if begin_ms is None or end_ms is None else max(0, end_ms - begin_ms)


def _stopped_table(stopped: Sequence[Stopped], *, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    columns = [name for name in _COLUMNS if is_wide or name not in _WIDE_ONLY]
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in _LEFT else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    for each in stopped:
        cells = {
            "run": Text(_name(each.run), style="bold"),
            "what it did": Text(each.run.plan.doing),
            "stopped by": Text(f"{each.detector} x{each.count}", style="red"),
            "nudges": Text(str(each.nudges)),
            "calls": Text(str(each.run.steps)),
            "applied": Text(_ms(each.applied_ms)),
            "dead": Text(_ms(each.dead_ms)),
            "spent": Text(f"${each.run.cost_usd:.2f}"),
            "saved": Text(f"${each.saved_usd:.2f}", style="cyan"),
        }
        table.add_row(*(cells[name] for name in columns))
    return table


def _healthy_line(summary: Summary) -> Text:
    alone = summary.healthy - len(summary.touched) - len([run for run in summary.nudged if run not in summary.touched])
    text = f"{alone} of {summary.healthy} healthy runs: not stopped, not paused, not nudged"
    return _line("green" if alone == summary.healthy else "yellow", "left alone", text)


def _speed_lines(stopped: Sequence[Stopped]) -> list[Text]:
    lines = []
    for name, values, text in (
        ("decided", [each.decided_ms for each in stopped], "until the order was given"),
        ("applied", [each.applied_ms for each in stopped], "until the gate of the run was shut"),
        ("dead", [each.dead_ms for each in stopped], "until its code had returned"),
    ):
        found = quantiles(values)
        lines.append(_line("magenta", name, f"p50 {_ms(found['p50'])}, p99 {_ms(found['p99'])} {text}"))
    lines[0].append(", counted from the report of the step that decided", style="dim")
    return lines


def _line(style: str, name: str, text: str) -> Text:
    return Text.assemble((f"{name:<11}", style), text)


def _advice(run: Run) -> str:
    nudges = "one nudge" if run.nudges == 1 else f"{run.nudges} nudges"
    return f"{nudges}, and it finished by itself" if run.ended == "completed" else f"{nudges}, {run.state} all the same"


def _name(run: Run) -> str:
    return f"{run.plan.tenant}/{run.plan.run_id}"


def _ms(value: int | None) -> str:
    return "-" if value is None else f"{value} ms"
