"""Pages that were read already are read through once more."""

from __future__ import annotations

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

SWEEP = only("resweep")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, SWEEP))


def pages(
    run: Run, start: int, end: int, *, limit: int = 10, effect: str = "unknown", path: str = "a"
) -> list[AnyStep]:
    """Return reads of a file, page after page."""
    return [
        run.call("read", {"path": path, "offset": at, "limit": limit}, f"{path} {at}", effect=effect)
        for at in range(start, end, limit)
    ]


def test_levels_rise_with_the_sweeps() -> None:
    """The step back is observed, half of the second sweep nudged, half of the third ends the run."""
    #  sweep   1: 100…220   2: shifted by 5   3: shifted by 3
    run = Run()
    first, second, third = pages(run, 100, 220), pages(run, 105, 215), pages(run, 103, 213)

    assert said(first) == []
    assert said([*first, *second[:5]]) == ["observe"]
    assert said([*first, *second]) == ["observe", "nudge"]
    assert said([*first, *second, *third]) == ["observe", "nudge", "kill"]


def test_the_evidence_begins_at_the_step_back() -> None:
    """The first reading was right."""
    run = Run()
    decisions = decide([run.start(), *pages(run, 100, 220), *pages(run, 105, 215)], SWEEP)
    nudge = verdicts(decisions)[-1]

    assert (nudge.level, nudge.pattern, nudge.evidence.count) == ("nudge", "param_walk", 2)
    assert (nudge.evidence.first_seq, decisions[-1].first_offset) == (13, 13)


@pytest.mark.parametrize("limit", [10, 40, 200])
def test_plain_paging_is_healthy(limit: int) -> None:
    """However long the file."""
    assert said(pages(Run(), 0, 100 * limit, limit=limit)) == []


def test_a_second_look_at_one_page_is_healthy() -> None:
    """A step back, one page, and on."""
    run = Run()

    assert "nudge" not in said([*pages(run, 100, 220), *pages(run, 110, 120), *pages(run, 220, 340)])


def test_places_that_were_skipped_are_new() -> None:
    """Every hundredth line was looked at first; what is read then was never covered."""
    run = Run()
    skim = [
        run.call("read", {"path": "a", "offset": at, "limit": 10}, f"a {at}", effect="read")
        for at in range(100, 900, 100)
    ]

    assert "nudge" not in said([*skim, *pages(run, 110, 190), *pages(run, 210, 290), *pages(run, 310, 390)])


def test_two_files_are_two_things() -> None:
    """What stands in the one says nothing about the other."""
    run = Run()

    assert said([*pages(run, 100, 220), *pages(run, 100, 220, path="b")]) == []


def test_ranges_are_pages_too() -> None:
    """Two numbers that bound a range, as the shell has them."""
    run = Run()
    sweep = [(at, at + 99) for at in range(100, 900, 100)]
    steps = [run.call("sh", f"sed -n {low},{high} p a.py", f"{low}") for low, high in sweep * 2]

    assert said(steps) == ["observe", "nudge"]


def test_a_write_means_that_the_pages_may_have_changed() -> None:
    """Edit, and read again to check."""
    run = Run()
    first = pages(run, 100, 220, effect="read")
    edit = run.call("edit", "x", "ok", effect="write")

    assert said([*first, edit, *pages(run, 100, 220, effect="read")]) == []


def test_any_call_between_may_have_been_the_edit_if_effects_are_not_declared() -> None:
    """A shell reads and edits under one name."""
    run = Run()

    assert said([*pages(run, 100, 220), run.call("sh", "fix it", "ok"), *pages(run, 100, 220)]) == []


@pytest.mark.parametrize("effect", ["write", "poll", "clock"])
def test_only_reads_sweep(effect: str) -> None:
    """Items that are written one after another are work."""
    run = Run()

    assert said([*pages(run, 100, 220, effect=effect), *pages(run, 100, 220, effect=effect)]) == []


def test_a_batch_comes_in_any_order() -> None:
    """Pages that were asked for side by side make no step back."""
    run = Run()
    calls = [
        ("read", {"path": "a", "offset": at, "limit": 10}, f"a {at}") for at in (100, 190, 110, 180, 120, 170, 130)
    ]

    assert said(run.batch(*calls, effect="read")) == []


def test_new_answers_of_a_declared_read_take_the_kill_away() -> None:
    """Shifted pages are new answers, though nothing in them is: ending such a run is left to budgets."""
    run = Run()
    shifts = [pages(run, 100 + shift, 220 + shift, effect="read") for shift in (0, 5, 3)]

    assert said([step for sweep in shifts for step in sweep]) == ["observe", "nudge"]


def test_a_person_who_speaks_starts_afresh() -> None:
    """A new question is a reason to read again."""
    run = Run()

    assert said([*pages(run, 100, 220), run.user(), *pages(run, 100, 220)]) == []


def test_a_snapshot_changes_no_verdict() -> None:
    """A crash in the middle of a sweep gives the verdicts of an uninterrupted run."""
    run = Run()
    steps = [*pages(run, 100, 220), *pages(run, 105, 215), *pages(run, 103, 213)]
    tree = tree_of(steps[0])
    before = levels(decide(steps[:15], SWEEP, tree=tree))

    assert before + levels(decide(steps[15:], SWEEP, tree=TreeState.from_bytes(tree.to_bytes()))) == said(steps)
