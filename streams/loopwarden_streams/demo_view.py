"""What people see while the demonstration runs: a calm picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loopwarden_streams.demo_board import Board, Order
from loopwarden_streams.demo_drawing import STATE_STYLES, draw

_EVERY_S: Final = 0.2
_PLAIN_EVERY_S: Final = 5.0
_RATE_WINDOW_S: Final = 2.0


class View(Protocol):
    """Shows a board as it fills. A context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, board: Board, begin_s: float) -> None:
        """Show what is new; cheap if it is too early for that.

        Args:
            board: What is known.
            begin_s: When the fleet began, in Unix seconds.
        """
        ...


class LiveView:
    """The picture on a terminal: every run, what was seen, and what was ordered and answered."""

    def __init__(self, console: Console, seconds: float) -> None:
        """Draw on `console`; the fleet may take `seconds`."""
        self._console = console
        self._seconds = seconds
        self._next_s = 0.0
        self._pace = Pace()
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, board: Board, begin_s: float) -> None:
        """Draw the board, five times a second at most."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        width, height = self._console.size
        elapsed_s = time.time() - begin_s
        picture = draw(
            board,
            begin_s,
            elapsed_s,
            self._seconds,
            pace=self._pace.of(now_s, board.steps),
            width=width,
            height=height,
        )
        self._live.update(picture, refresh=True)


class PlainView:
    """Lines for a pipe, a log or a terminal that is not to be drawn on: each order with its answer, and the state."""

    def __init__(self, console: Console) -> None:
        """Print on `console`."""
        self._console = console
        self._told: set[str] = set()
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, board: Board, begin_s: float) -> None:
        """Print orders that were answered since the last call, and every few seconds how the fleet is."""
        for command_id, order in board.orders.items():
            if command_id not in self._told and _is_answered(order):
                self._told.add(command_id)
                self._print(order.command.issued_at_ms / 1000 - begin_s, _sentence(board, order))
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PLAIN_EVERY_S
            states = Counter(run.state for run in board.runs.values())
            counts = ", ".join(f"{states[state]} {state}" for state in STATE_STYLES if states[state])
            self._print(time.time() - begin_s, f"{counts}; {board.steps:,} step events")

    def _print(self, at_s: float, text: str) -> None:
        self._console.print(Text(f"{at_s:6.1f} s  {text}"), soft_wrap=True)


class Pace:
    """Step events a second, over the last moments."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, now_s: float, steps: int) -> float:
        """Note how many there were by now, and return how many a second there are."""
        self._seen.append((now_s, steps))
        while now_s - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        return (steps - before) / (now_s - since_s) if now_s > since_s else 0.0


def _is_answered(order: Order) -> bool:
    if order.command.type == "kill_run" and order.status == "applied":
        return order.dead_ms is not None
    return order.status not in ("sent", "received")


def _sentence(board: Board, order: Order) -> str:
    command = order.command
    reason = command.reason
    said_ms = board.decided_ms(order)
    why = f"{reason.detector} x{reason.count}" if reason is not None else ""
    text = f"{command.type.removesuffix('_run'):<5}  {command.tenant}/{command.run_id}: {why}, {order.status}"
    if order.applied_ms is not None and said_ms is not None:
        text += f" after {max(0, order.applied_ms - said_ms)} ms"
        if order.dead_ms is not None:
            text += f", dead after {max(0, order.dead_ms - said_ms)} ms"
    return text
