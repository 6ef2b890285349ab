"""The judge of the chaos: what is wrong, lost or broken is found, and what only looks so is not."""

from __future__ import annotations

from typing import Any

from benchmarks.chaos_agents import Entry
from benchmarks.chaos_report import LOST_MS, Report, Topics, judge, stays_of

NOW = 1_800_000_000_000
GRACE_MS = 5_000


def begun(run_id: str, *steps_ms: int, incarnation: str = "a", ended_ms: int | None = None) -> list[Entry]:
    """Return the ledger of one incarnation that began at 0; times are after `NOW`."""
    entries = [Entry("begin", run_id, incarnation, NOW)]
    entries += [Entry("tool", run_id, incarnation, NOW + at_ms) for at_ms in steps_ms]
    if ended_ms is not None:
        entries.append(Entry("end", run_id, incarnation, NOW + ended_ms, "killed", "other"))
    return entries


def kill(run_id: str, command_id: str = "k1", *, at_ms: int = 1_000, incarnation: str = "a") -> dict[str, Any]:
    """Return a kill that was written so long after `NOW`."""
    command = {"command_id": command_id, "type": "kill_run", "run_id": run_id, "incarnation": incarnation}
    return {**command, "scope": "run", "mode": "enforce", "grace_ms": GRACE_MS, "reason": {}, "append_ms": NOW + at_ms}


def applied(command_id: str = "k1", *, at_ms: int = 1_100, skew_ms: int = 0) -> dict[str, Any]:
    """Return the answer of a runtime whose clock is wrong."""
    ack = {"command_id": command_id, "runtime_id": "rt", "status": "applied"}
    return {**ack, "at_ms": NOW + at_ms + skew_ms}


def report(
    entries: list[Entry],
    commands: list[dict[str, Any]],
    *acks: dict[str, Any],
    states: list[dict[str, Any]] | None = None,
    deaths_ms: tuple[int, ...] = (),
    skew_ms: int = 0,
) -> Report:
    """Return what is said of one runtime, two minutes after `NOW`."""
    topics = Topics(commands=commands, acks=acks, verdicts=[], states=states or [], letters=[])
    stays = stays_of("rt", entries, deaths_ms)
    return judge(stays, topics, skews_ms={"rt": skew_ms}, ended_ms=NOW + 120_000)


def test_a_kill_that_landed() -> None:
    """Told by the answer, in true time whatever the host's clock says."""
    found = report(begun("loop-1", 500, 1_000), [kill("loop-1")], applied(skew_ms=-60_000), skew_ms=-60_000)

    assert found.is_good
    assert (found.kills_ordered, found.kills_landed, found.steps) == (1, 1, 2)


def test_a_kill_of_a_healthy_run_is_wrong() -> None:
    """Whether or not it landed."""
    assert len(report(begun("healthy-1", 500), [kill("healthy-1")], applied()).wrong_kills) == 1


def test_a_kill_is_lost_when_its_run_went_on() -> None:
    """And overtaken when the run ended soon after, by another order or with its process."""
    lost = report(begun("loop-1", 500, 90_000), [kill("loop-1")])
    assert (len(lost.kills_lost), lost.is_good) == (1, False)

    soon_ms = 1_000 + LOST_MS
    for entries, deaths_ms in ((begun("loop-1", 500, ended_ms=soon_ms), ()), (begun("loop-1", 500), (NOW + soon_ms,))):
        found = report(entries, [kill("loop-1")], deaths_ms=deaths_ms)
        assert (found.kills_overtaken, found.kills_lost) == (1, [])


def test_a_step_of_the_incarnation_that_said_applied_is_broken_at_once() -> None:
    """Before it, and in the same moment, it is none."""
    assert report(begun("loop-1", 1_099, 1_100), [kill("loop-1")], applied()).steps_after_kill == []
    found = report(begun("loop-1", 1_099, 1_200), [kill("loop-1")], applied())
    assert len(found.steps_after_kill) == 1
    assert not found.is_good


def test_an_incarnation_that_began_under_the_record_is_broken() -> None:
    """One that began before it came is not bound by it: it slipped in."""
    state = {"key": "acme|run|loop-1", "state": "killed", "incarnation": "a", "append_ms": NOW + 1_200}
    late_ms = 1_200 + LOST_MS + 1
    for began_ms, broken, slipped in ((1_160, 0, 1), (1_201, 1, 0)):
        entries = [*begun("loop-1", 500, ended_ms=1_150), Entry("begin", "loop-1", "b", NOW + began_ms)]
        entries.append(Entry("tool", "loop-1", "b", NOW + late_ms))
        found = report(entries, [kill("loop-1")], applied(), states=[state])
        assert (len(found.steps_after_kill), found.slipped_in) == (broken, slipped)


def test_one_id_that_says_two_things() -> None:
    """The same again is a copy."""
    commands = [kill("loop-1"), kill("loop-1"), kill("loop-2")]
    found = report(begun("loop-1", 500), commands, applied())

    assert (found.command_copies, found.contradictions, found.is_good) == (2, 1, False)
