"""Memory against old, doubled and replaced writers."""

from __future__ import annotations

from loopwarden.fencing import Fences


def test_an_older_version_of_the_same_writer_is_old() -> None:
    """A stale detector wakes up and repeats what it decided an hour ago."""
    fences = Fences()
    assert not fences.is_old("r-42", "detector", (42, 1_900))

    assert fences.is_old("r-42", "detector", (42, 1_871))
    assert fences.is_old("r-42", "detector", (41, 5_000))
    assert not fences.is_old("r-42", "detector", (42, 1_900))
    assert not fences.is_old("r-43", "detector", (1, 1))


def test_writers_are_compared_with_themselves_only() -> None:
    """An operator's command must not make the detector's next one stale for ever."""
    fences = Fences()
    fences.is_old("r-42", "operator", (1_800_000_000, 1))

    assert not fences.is_old("r-42", "detector", (42, 1))


def test_an_announced_owner_fences_out_the_one_before() -> None:
    """A new owner may have nothing to command: its announcement alone must stop the old one."""
    fences = Fences()
    fences.announce(3, 42)
    fences.announce(3, 40)

    assert fences.is_fenced("detector", 3, 41)
    assert not fences.is_fenced("detector", 3, 42)
    assert not fences.is_fenced("detector", 4, 1)
    assert not fences.is_fenced("detector", None, 1)
    assert not fences.is_fenced("operator", 3, 1)


def test_applied_ids_are_kept_per_run_and_bounded() -> None:
    """One command for a tree is applied once to each run of it."""
    fences = Fences(max_applied=2)
    fences.applied("c1", "r-42", "a")
    assert fences.was_applied("c1", "r-42", "a")
    assert not fences.was_applied("c1", "r-43", "x")
    assert not fences.was_applied("c1", "r-42", "b")

    fences.applied("c2", "r-42", "a")
    fences.applied("c3", "r-42", "a")
    assert not fences.was_applied("c1", "r-42", "a")


def test_the_versions_of_the_longest_silent_runs_are_forgotten() -> None:
    """Memory is bounded whatever the number of runs."""
    fences = Fences(max_versions=2)
    fences.is_old("r-1", "detector", (9, 9))
    fences.is_old("r-2", "detector", (9, 9))
    fences.is_old("r-1", "detector", (9, 9))
    fences.is_old("r-3", "detector", (9, 9))

    assert fences.is_old("r-1", "detector", (1, 1))
    assert not fences.is_old("r-2", "detector", (1, 1))
