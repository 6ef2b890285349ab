"""What people see of a replay."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console, RenderableType
from tests._support.replay_runs import Event, exact_repeat, lines_of

from loopwarden_models.causes import CAUSES
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.replay_core import Replay, Source, SourceRecord
from loopwarden_streams.replay_report import (
    Earliest,
    Row,
    bar_cells,
    new_console,
    printable,
    show,
    summary_view,
    verdict_table,
)

FILE = Source("loops.jsonl")


def replayed(events: list[Event], policy: Policy = DEFAULT_POLICY) -> tuple[Replay, list[Row]]:
    """Return the replay of the events, and a row for each verdict."""
    replay = Replay(policy)
    rows = [
        Row(decision.verdict, decision.order.type if decision.order else None, replay.agent_of(decision), FILE.place(0))
        for at, line in enumerate(lines_of(events))
        for decision in replay.feed(SourceRecord(line, FILE, at))
        if decision.verdict is not None
    ]
    return replay, rows


def drawn(part: RenderableType, *, width: int = 120) -> str:
    """Return `part` as it is printed into a file."""
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    show(console, part)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


@given(counts=st.lists(st.integers(0, 10**9), min_size=1, max_size=5), extra=st.integers(0, 10**9))
def test_bars_fit_and_hide_nothing(counts: list[int], extra: int) -> None:
    """A single killed run among a million must be seen, and no bar may break its line."""
    most = max(1, sum(counts) + extra)

    cells = bar_cells(counts, most, 40)

    assert sum(cells) <= 40
    assert [bool(each) for each in cells] == [bool(each) for each in counts]


def test_bars_are_proportional() -> None:
    """The longest bar fills the line, half as many runs fill half of it."""
    assert bar_cells([3, 1], 4, 40) == [30, 10]
    assert bar_cells([1, 1], 4, 40) == [10, 10]
    assert bar_cells([999_999, 1], 1_000_000, 40) == [39, 1]


@given(times=st.lists(st.integers(0, 20), max_size=30), limit=st.integers(0, 10))
def test_the_earliest_are_kept_in_order(times: list[int], limit: int) -> None:
    """A heap of `limit` rows gives what sorting all of them would; equal times stay in order of arrival."""
    _, (row, *_) = replayed(exact_repeat(times=2))
    rows = [row._replace(verdict=_at(row, ms), place=str(n)) for n, ms in enumerate(times)]
    earliest = Earliest(limit)
    for each in rows:
        earliest.add(each)

    expected = sorted(rows, key=lambda each: each.verdict.at_ms)[: limit or None]

    assert earliest.in_order() == expected
    assert earliest.hidden == len(rows) - len(expected)


def _at(row: Row, at_ms: int) -> Verdict:
    return replace(row.verdict, at_ms=at_ms)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """From 80 columns on nothing is cut off: notes and long names wrap."""
    replay, rows = replayed(exact_repeat("a-rather-long-name-for-a-run/" * 4))

    text = drawn(verdict_table(rows, hidden=3, level="nudge"), width=width)
    text += drawn(summary_view(replay.summary(), seconds=0.5, interrupted=False, plain=False), width=width)

    assert max(map(len, text.splitlines())) <= width
    assert "search was called 8 times in a row" in " ".join(text.split())
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_names_cannot_steer_the_terminal() -> None:
    """Run ids, agents and tools come from outside: no escape sequence, no markup, no line break gets through."""
    nasty = "\x1b[31m[red]\n\u202e:boom:"
    events = [{**event, "agent": nasty} for event in exact_repeat(nasty)]
    for event in events:
        if "tool" in event:
            event["tool"] = nasty
    replay, rows = replayed(events)

    text = drawn(verdict_table(rows, hidden=0, level="nudge"), width=300)
    text += drawn(summary_view(replay.summary(), seconds=0.5, interrupted=False, plain=False), width=300)

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "acme/\N{REPLACEMENT CHARACTER}[31m[red]\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}:boom:" in text
    assert printable("plain") == "plain"


def test_a_clock_may_claim_anything() -> None:
    """The contract allows times up to 2^53 ms, far beyond what a calendar knows."""
    events = [{**event, "ts_ms": 2**53 - 100 + n} for n, event in enumerate(exact_repeat())]
    replay, rows = replayed(events)

    text = drawn(verdict_table(rows, hidden=0, level="nudge"))
    text += drawn(summary_view(replay.summary(), seconds=0.5, interrupted=False, plain=False))

    assert "after 9999" in text
    assert "--:--:--" in text


def test_a_veto_is_shown() -> None:
    """A run that moves on is nudged where it would have been stopped, and the table says so."""
    events = exact_repeat()
    at = next(n for n, event in enumerate(events) if event["seq"] == 13)
    events[at] = {**events[at], "type": "progress", "note": "one more test passes"}

    _, rows = replayed(events)

    assert "(kill vetoed: it moves on)" in drawn(verdict_table(rows, hidden=0, level="nudge"))


def test_what_is_done_and_what_stands_behind_it_are_shown() -> None:
    """The person who reads this wants to repair something, not to learn a name."""
    replay, rows = replayed(exact_repeat())

    table = " ".join(drawn(verdict_table(rows, hidden=0, level="observe"), width=400).split())
    assert "[L1: state latch; probably no memory of results]" in table
    assert "[L2: circuit breaker; probably no memory of results]" in table
    assert "[L3: end with a report; probably no memory of results]" in table
    assert table.count("2 times in a row with the same arguments and the same answer [") == 0

    summary = replay.summary()
    assert summary.causes == {"no_memory_of_results": 1}
    assert summary.stopped[0].probable_cause == "no_memory_of_results"
    picture = drawn(summary_view(summary, seconds=0.5, interrupted=False, plain=False))
    assert CAUSES["no_memory_of_results"].countermeasure in picture


def test_words_of_a_later_version_are_shown_as_they_are() -> None:
    """A recording of verdicts, or a newer detector, may name what this version has no text for."""
    _, rows = replayed(exact_repeat())
    verdict = replace(rows[-1].verdict, recovery="hypnosis", recovery_level="L4", probable_cause="the\x1b[2Jmoon")

    text = drawn(verdict_table([rows[-1]._replace(verdict=verdict)], hidden=0, level="nudge"), width=400)

    assert "[L4: hypnosis; probably the\N{REPLACEMENT CHARACTER}[2Jmoon]" in text


def test_terminals_without_unicode_get_ascii() -> None:
    """The picture is drawn with what the terminal knows."""
    replay, _ = replayed(exact_repeat())

    text = drawn(summary_view(replay.summary(), seconds=0.5, interrupted=False, plain=True))

    assert "#" * 40 in text
    assert "# kill" in text
    assert "█" not in text


def test_interruption_is_said() -> None:
    """A sum over half of a file must not pass for the whole."""
    replay, _ = replayed(exact_repeat())

    assert drawn(summary_view(replay.summary(), seconds=0.0, interrupted=True, plain=False)).startswith(
        "Interrupted: the sum so far"
    )


def test_piped_output_has_a_fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of whatever terminal the pipe was started from, unless COLUMNS says so."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert new_console().width == 120
    monkeypatch.setenv("COLUMNS", "100")
    assert new_console().width == 100
