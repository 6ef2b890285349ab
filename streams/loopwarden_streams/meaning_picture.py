"""A picture of how like texts are: of loops and of healthy runs, as a model sees them, and with what is new in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 760, 130, 60, 70, 70
_PLOT: Final = _WIDTH - 2 * _LEFT
_LEAST: Final = 20
_BIN: Final = 4
# The scale of a panel is that of its highest bar, but no larger than this: few are to look few.
_LEAST_TOP: Final = 10.0
_FONT: Final = 'font-family="sans-serif"'
_LOOP, _FINE = "#c2410c", "#0f766e"


class Likeness(NamedTuple):
    """How like an exchange is to the one before that it is most like, and whether it brings news.

    `confirmed` is what the second model says of the two, `None` without one.
    """

    is_loop: bool
    is_news: bool
    likeness: int
    confirmed: int | None


def picture(found: Sequence[Likeness], thresholds: Mapping[str, int], model: str) -> str:
    """Return an SVG image of three distributions; heights are shares of all exchanges of their kind.

    The first is what a rule by percentage alone would see; the second leaves out what brings news; the third is what
    the second model says of the rest, where the first is not sure. Lines are thresholds.

    Args:
        found: What was measured.
        thresholds: By name, as in the policy.
        model: Names and versions of the models.
    """
    same, maybe = thresholds["same_percent"], thresholds["maybe_percent"]
    old = [one for one in found if not one.is_news]
    unsure = [one for one in old if maybe <= one.likeness < same and one.confirmed is not None]
    panels = [
        (
            "All answers, by the first model: templates are as alike as loops",
            [(o.is_loop, o.likeness) for o in found],
            (),
        ),
        (
            "Answers that bring nothing new, by the first model",
            [(one.is_loop, one.likeness) for one in old],
            (maybe, same),
        ),
    ]
    if unsure:
        least = thresholds["confirmed_percent"]
        said = [(one.is_loop, one.confirmed or 0) for one in unsure]
        panels.append((f"Of these, those at {maybe} to {same} %, by the second model", said, (least,)))
    totals = {kind: max(1, sum(one.is_loop is kind for one in found)) for kind in (True, False)}
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-size="12" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">How like an answer is to the one before that it is most like</text>',
        f'<text x="{_LEFT}" y="40" fill="#555555">{escape(model)}</text>',
        *_legend(),
    ]
    for number, (title, values, lines) in enumerate(panels):
        parts += _panel(_TOP + number * (_HEIGHT + _GAP), title, values, lines, totals)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> Iterable[str]:
    for at, (colour, text) in enumerate(((_LOOP, "loops"), (_FINE, "healthy"))):
        x = _WIDTH - _LEFT - 150 + 80 * at
        yield f'<rect x="{x}" y="13" width="10" height="10" fill="{colour}" fill-opacity="0.6"/>'
        yield f'<text x="{x + 15}" y="22">{text}</text>'


def _panel(
    top: int, title: str, values: Sequence[tuple[bool, int]], lines: Sequence[int], totals: Mapping[bool, int]
) -> list[str]:
    floor = top + _HEIGHT
    shares = {kind: _shares([value for is_loop, value in values if is_loop is kind], totals[kind]) for kind in totals}
    most = max([*shares[True], *shares[False], _LEAST_TOP])
    counts = [sum(is_loop is kind for is_loop, _ in values) for kind in (True, False)]
    parts = [f'<text x="{_LEFT}" y="{top - 8}">{escape(title)} ({counts[0]} and {counts[1]})</text>']
    width = _PLOT / len(shares[True])
    for kind, colour in ((True, _LOOP), (False, _FINE)):
        for at, share in enumerate(shares[kind]):
            high = share / most * (_HEIGHT - 16)
            if high:
                parts.append(
                    f'<rect x="{_LEFT + at * width:.1f}" y="{floor - high:.1f}" width="{width - 1:.1f}" '
                    f'height="{high:.1f}" fill="{colour}" fill-opacity="0.6"/>'
                )
    parts.append(f'<line x1="{_LEFT}" y1="{floor}" x2="{_WIDTH - _LEFT}" y2="{floor}" stroke="#333333"/>')
    parts += [
        f'<text x="{_x(percent):.1f}" y="{floor + 16}" text-anchor="middle" fill="#555555">{percent}</text>'
        for percent in range(_LEAST, 101, 10)
    ]
    for x, percent in ((_x(percent), percent) for percent in lines):
        parts += [
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{floor}" stroke="#111111" stroke-dasharray="4 3"/>',
            f'<text x="{x + 3:.1f}" y="{top + 10}">{percent}</text>',
        ]
    return parts


def _x(percent: int) -> float:
    return _LEFT + (percent - _LEAST) / (100 - _LEAST) * _PLOT


def _shares(values: Sequence[int], total: int) -> list[float]:
    """Return how many per cent of a total each bin holds; what lies below the axis is in the first."""
    bins = [0] * ((100 - _LEAST) // _BIN)
    for value in values:
        bins[min(max(0, value - _LEAST) // _BIN, len(bins) - 1)] += 1
    return [100 * n / total for n in bins]
