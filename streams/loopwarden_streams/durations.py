"""Spans of time as people type and read them: `90s`, `15m`, `6h`, `2d`."""

from __future__ import annotations

import argparse
import re
from typing import Final

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd]?)")


def parse_ms(text: str) -> int:
    """Return milliseconds of a text such as `15m`; a bare number counts seconds. For `argparse`.

    Raises:
        ArgumentTypeError: The message says what to write.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time; write 90s, 15m, 6h or 2d")
    return int(float(found["number"]) * _UNITS_MS[found["unit"] or "s"])


def shown(ms: float) -> str:
    """Return the two largest units of a span, as `2h 05m`; below a second, milliseconds."""
    if ms < _UNITS_MS["s"]:
        return f"{max(0, round(ms))}ms"
    seconds = int(ms // 1000)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days}d {hours % 24:02d}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{minutes}m {seconds % 60:02d}s" if minutes else f"{seconds}s"
