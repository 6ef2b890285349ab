"""Draws the picture of `loopwarden demo` in the README from a real run of it.

python -m loopwarden_streams.demo_picture docs/images/demo.svg
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.text import Text

from loopwarden_streams.demo import play
from loopwarden_streams.demo_board import Board
from loopwarden_streams.demo_drawing import draw
from loopwarden_streams.demo_fleet import plan_fleet
from loopwarden_streams.demo_report import summarise, summary_view
from loopwarden_streams.demo_services import Services
from loopwarden_streams.demo_view import Pace

_COLUMNS: Final = 120
_LINES: Final = 38
_SECONDS: Final = 45.0
# Some loops are over at this moment, and some are on their way.
_MOMENT_S: Final = 13.2

# Rich names web fonts in its picture: whoever looks at it shall not call anyone, and any font of one width will do.
_FONTS: Final = re.compile(r"@font-face\s*\{[^}]*\}")


class Photographer:
    """A view that looks once."""

    def __init__(self) -> None:
        self.picture: RenderableType | None = None
        self._pace = Pace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, board: Board, begin_s: float) -> None:
        """Keep the picture of the moment."""
        elapsed_s = time.time() - begin_s
        pace = self._pace.of(time.monotonic(), board.steps)
        if self.picture is None and elapsed_s >= _MOMENT_S:
            self.picture = draw(board, begin_s, elapsed_s, _SECONDS, pace=pace, width=_COLUMNS, height=_LINES)


def main() -> None:
    """Run the demonstration and write the picture."""
    parser = argparse.ArgumentParser(description="Draw the picture of `loopwarden demo` from a real run of it.")
    parser.add_argument("file", type=Path, help="SVG file to write")
    path: Path = parser.parse_args().file
    board = Board(plan_fleet(30, seed=1))
    view = Photographer()
    with tempfile.TemporaryDirectory(prefix="loopwarden-demo-") as folder:
        asyncio.run(play(Services(Path(folder), None), board, Console(), view, _SECONDS))
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(view.picture or Text("over before the moment came"))
    console.print()
    console.print(summary_view(summarise(board), width=_COLUMNS))
    svg = _FONTS.sub("", console.export_svg(title="loopwarden demo"))
    path.write_text(svg.replace("Fira Code, monospace", "monospace"), encoding="utf-8")


if __name__ == "__main__":
    main()
