"""What people see while the demonstration runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests._support.demo_records import BEGIN_MS, Topics

from loopwarden_streams.demo_drawing import draw
from loopwarden_streams.demo_fleet import plan_fleet
from loopwarden_streams.demo_view import LiveView, Pace, PlainView

BEGIN_S = BEGIN_MS / 1000


def crowd(agents: int = 30) -> Topics:
    """A fleet in the middle of its play: some stopped, some nudged, some done, some not begun."""
    plans = plan_fleet(agents, seed=1)
    topics = Topics(*plans)
    own = [plan.run_id for plan in plans if plan.tenant == "acme"]
    topics.kill(own[0])
    topics.verdict(own[1])
    topics.ack(topics.order("nudge", own[1], topics.round(own[1], 500), 510), "applied", 700, run_id=own[1])
    topics.live(own[-1])
    return topics


def lines_of(topics: Topics, width: int, height: int) -> list[str]:
    """Return the picture as lines."""
    console = Console(file=io.StringIO(), width=width, height=height, record=True, force_terminal=True)
    console.print(draw(topics.board, BEGIN_S, 12.0, 45.0, pace=150.0, width=width, height=height))
    return console.export_text().splitlines()


@pytest.mark.parametrize("agents", [9, 30, 200])
@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (100, 30), (200, 60), (120, 24), (60, 16)])
def test_the_picture_fits_its_terminal(width: int, height: int, agents: int) -> None:
    """A line too many scrolls, and a picture that scrolls is no picture."""
    lines = lines_of(crowd(agents), width, height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_the_picture_shows_runs_verdicts_orders_and_answers() -> None:
    """Who loops, who saw it, what was done, and how fast."""
    text = "\n".join(lines_of(crowd(), 120, 40))

    for part in (
        "1 stopped",
        "1 nudged",
        "1 completed",
        "booker-1",
        "exact_repeat",
        "200 ms",
        "20 ms ✓",
        "150/s",
        "12 s of 45 s",
    ):
        assert part in text


def test_what_may_still_happen_is_shown_first_where_room_is_short() -> None:
    """The healthy may wait; what is left out is counted."""
    text = "\n".join(lines_of(crowd(200), 80, 24))

    assert "more: " in text
    assert "loops, takes advice" not in text.split("more: ")[1]
    assert "reads page after page" not in text


def test_plain_lines_tell_each_order_once() -> None:
    """In a log the same line five times a second is noise."""
    out = io.StringIO()
    view = PlainView(Console(file=out, width=120))
    topics = crowd()

    with view:
        for _ in range(3):
            view.show(topics.board, BEGIN_S)

    text = out.getvalue()
    assert text.count("kill   acme/booker-1: exact_repeat x8, applied after 20 ms, dead after 30 ms") == 1
    assert text.count("nudge  acme/") == 1
    assert text.count("step events") == 1
    assert text.isascii()


def test_an_order_without_an_answer_is_not_told_yet() -> None:
    """The line is about what became of it."""
    out = io.StringIO()
    view = PlainView(Console(file=out, width=120))
    topics = crowd()
    run_id = next(plan.run_id for plan in plan_fleet(30, seed=1) if plan.tenant == "acme" and plan.agent == "analyst")
    command_id = topics.order("kill_run", run_id, topics.round(run_id, 900), 910)
    topics.ack(command_id, "applied", 920, run_id=run_id)

    view.show(topics.board, BEGIN_S)

    assert f"kill   acme/{run_id}" not in out.getvalue()


def test_the_live_picture_leaves_the_terminal_as_it_was() -> None:
    """It is drawn on the other screen, which is left whatever happens."""
    out = io.StringIO()
    console = Console(file=out, width=120, height=40, force_terminal=True, legacy_windows=False)

    def break_off() -> None:
        with LiveView(console, 45.0) as view:
            view.show(crowd().board, BEGIN_S)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()

    text = out.getvalue()
    assert "booker-1" in text
    assert text.index("\x1b[?1049h") < text.index("\x1b[?1049l")


def test_pace_is_of_the_last_moments() -> None:
    """The mean since the start would still fall when nothing moves any more."""
    pace = Pace()

    assert pace.of(0.0, 0) == 0.0
    assert pace.of(1.0, 100) == 100.0
    assert pace.of(10.0, 100) == 0.0
    assert pace.of(11.0, 150) == 50.0
