"""Levels of `control.state`."""

from __future__ import annotations

import pytest

from loopwarden.run_records import RunRecords, binds
from loopwarden.testing import run_record


def state_after(*records: tuple[str, str, tuple[int, int], int]) -> str:
    """Return the state in force after (writer, state, version, append time) were read in this order."""
    kept = RunRecords()
    for writer, state, version, append_ms in records:
        kept.put("r-42", run_record("r-42", state, writer=writer, version=version), append_ms)
    stored = kept.get("r-42")
    assert stored is not None
    return stored.record.state


def test_the_newest_version_wins_whatever_the_order() -> None:
    """Compaction and reading from the beginning bring old records late."""
    old = ("detector", "killed", (42, 1_899), 1)
    new = ("detector", "released", (42, 1_950), 2)

    assert state_after(old, new) == state_after(new, old) == "released"


def test_only_people_lift_what_people_have_ordered() -> None:
    """The detector's versions may be higher: they count in another unit."""
    order = ("operator", "killed", (1, 1), 10)

    assert state_after(order, ("detector", "released", (99, 9), 20)) == "killed"
    assert state_after(("detector", "released", (99, 9), 20), order) == "killed"
    assert state_after(order, ("operator", "released", (1, 2), 20)) == "released"


def test_after_a_release_the_detector_may_speak_again() -> None:
    """A released run may loop again, and must then be stopped again."""
    release = ("operator", "released", (1, 2), 20)

    assert state_after(release, ("detector", "killed", (42, 5), 30)) == "killed"
    assert state_after(release, ("detector", "killed", (42, 1), 10)) == "released"
    assert state_after(("detector", "killed", (42, 5), 30), release) == "killed"


@pytest.mark.parametrize(
    ("state", "named", "bound"),
    [
        ("killed", "a", True),  # every later incarnation, until a person releases it
        ("kill_wanted", "a", False),  # the incarnation that the command named
        ("kill_wanted", "b", True),
        ("kill_wanted", "*", True),
        ("paused", "a", True),
        ("released", "*", False),
        ("open", "*", False),
        ("of_tomorrow", "*", False),
    ],
)
def test_which_records_bind_a_run_that_starts_as_b(state: str, named: str, bound: bool) -> None:
    """A kill that is wanted is for one incarnation; a kill in force is for all that come."""
    assert binds(run_record("r-42", state, incarnation=named), "b", 1_000.0) is bound


def test_a_wanted_kill_expires_and_a_kill_in_force_does_not() -> None:
    """Everything expires but what was done: a dead detector sets the fleet free, not the killed."""
    wanted = run_record("r-42", "kill_wanted", expires_at_ms=500)
    in_force = run_record("r-42", "killed", expires_at_ms=500)

    assert binds(wanted, "b", 499.0)
    assert binds(wanted, "b", None)
    assert not binds(wanted, "b", 500.0)
    assert binds(in_force, "b", 500.0)


def test_a_deleted_record_binds_nobody() -> None:
    """A tombstone on the compacted topic."""
    kept = RunRecords()
    kept.put("r-42", run_record("r-42", "killed"), 1)
    kept.remove("r-42")
    kept.remove("r-43")

    assert kept.get("r-42") is None
    assert len(kept) == 0
