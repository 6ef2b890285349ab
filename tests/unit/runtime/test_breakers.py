"""Breakers of tools: which record is in force, and what becomes of a call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from loopwarden import Action, Decision, Guard, Limits, RunGuard
from loopwarden.breakers import DEFAULT_LEASE_MS, MAX_LEASE_MS, Breakers
from loopwarden.control import HOST_CLOCK_ERROR_MS
from loopwarden.faults import Counters
from loopwarden.records import ControlRecord
from loopwarden.testing import (
    START_MS,
    TENANT,
    GuardBench,
    ManualClock,
    MemoryTransport,
    breaker,
    enforcement,
    fence,
    pause,
    run_record,
)
from loopwarden_models.codec import encode
from loopwarden_models.control_state import BlockedTool, BreakerState, EnforcementRecord, Probe
from loopwarden_models.events import ToolEnd, ToolStart
from loopwarden_models.hashes import is_probe

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
# Three of these twenty have their turn at epoch 9 and a share of 5 %.
RUNS = [f"r-{n}" for n in range(1, 21)]
HALF_OPEN: dict[str, Any] = {"probe": Probe(9, 0.05), "retry_after_ms": 120_000}


def call(run: RunGuard, number: int = 1, tool: str = "search") -> Decision:
    """Ask for one call."""
    return run.before_tool(tool, {"q": "x"}, f"c{number}")


def passes(bench: GuardBench, tool: str = "search", run_id: str = "r-42") -> bool:
    """Read what is there, and ask for one call in a run of its own."""
    bench.pump()
    with bench.guard.run(run_id) as run:
        return call(run, tool=tool).allowed


def bench_with(*records: BreakerState | EnforcementRecord) -> GuardBench:
    """Return a bench whose topic holds these records, read."""
    bench = GuardBench()
    for record in records:
        bench.transport.state(record)
    bench.pump()
    return bench


def count(guard: Guard, name: str) -> float:
    """Return one of the guard's numbers."""
    return guard.stats().get(name, 0)


def test_an_open_breaker_refuses_and_the_refusal_is_a_step() -> None:
    """55 and 6: outcome `blocked`, a `seq` of its own, the breaker's name, and a text for the model that says what."""
    bench = bench_with(breaker("search", "open", retry_after_ms=120_000))
    with bench.guard.run("r-42") as run:
        decision = call(run)
        assert call(run, 2, tool="read").allowed
        again = call(run, 3)
    bench.pump()

    assert decision.action is Action.BLOCK
    answer = json.loads(decision.message or "")
    assert (answer["error"], answer["tool"], answer["reason"]) == ("tool_unavailable", "search", "breaker_open")
    assert answer["retry_after_ms"] == decision.retry_after_ms
    assert decision.reason == "the breaker of search is open"
    # The model reads the same text each time.
    assert again.message == decision.message
    refusal = next(step for step in bench.transport.steps if isinstance(step, ToolEnd))
    assert (refusal.call_id, refusal.outcome, refusal.tool, refusal.seq) == ("c1", "blocked", "search", 1)
    assert refusal.args_hash is not None
    assert refusal.error is not None
    assert (refusal.error.error_class, refusal.error.message) == ("breaker:search", "the breaker of search is open")
    assert [step.call_id for step in bench.transport.steps if isinstance(step, ToolStart)] == ["c2"]
    assert count(bench.guard, "breaker_refusals") == count(bench.guard, "calls_refused") == 2
    assert count(bench.guard, "breakers_open") == 1


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        ("closed", True),
        ("open", False),
        ("forced_open", False),
        ("disabled", True),
        ("observe_only", True),
        ("ajar", True),  # a word of a later version
    ],
)
def test_what_each_state_means(state: str, allowed: bool) -> None:
    """A word that nobody knows lets calls pass, and is counted."""
    bench = bench_with(breaker("search", state))

    assert passes(bench) is allowed
    assert count(bench.guard, "breaker_unknown_states") == (state == "ajar")
    assert count(bench.guard, "breakers_open") == (not allowed)
    assert "faults" not in bench.guard.stats()


def test_a_record_of_a_later_version_with_an_unknown_word_closes() -> None:
    """It is the newest all the same: what it said before no longer holds."""
    bench = bench_with(breaker("search", "open"), breaker("search", "ajar", version=(42, 101)))

    assert passes(bench)


# Leases.


def test_a_lease_that_is_over_closes_the_breaker_and_is_counted_once() -> None:
    """56: by each runtime itself, to the millisecond, by the broker's clock; the host's may be hours off."""
    bench = GuardBench(transport=MemoryTransport(ManualClock(host_skew_ms=-10 * HOUR_MS)))
    bench.transport.state(breaker("search", "open", lease_ms=MINUTE_MS))
    bench.pump()
    with bench.guard.run("r-42") as run:
        bench.clock.advance(MINUTE_MS - 1)
        assert not call(run, 1).allowed
        bench.clock.advance(1)
        # Not yet noticed by any thread of ours.
        assert call(run, 2).allowed
        bench.pump()
        bench.pump()
        assert call(run, 3).allowed

    assert count(bench.guard, "breaker_leases_expired") == 1
    assert count(bench.guard, "breakers_open") == 0


def test_a_renewed_lease_goes_on_and_an_older_renewal_changes_nothing() -> None:
    """A renewal has the same version: the later lease of the two counts, in whichever order they are read."""
    bench = bench_with(
        breaker("search", "open", lease_ms=3 * MINUTE_MS),
        breaker("search", "open", lease_ms=MINUTE_MS),
    )
    bench.clock.advance(2 * MINUTE_MS)
    assert not passes(bench)

    bench.clock.advance(MINUTE_MS)
    assert passes(bench)
    # Read once more after a reconnect: neither opens again nor counts again.
    bench.transport.state(breaker("search", "open", lease_ms=3 * MINUTE_MS), append_ms=START_MS)
    assert passes(bench)
    assert count(bench.guard, "breaker_leases_expired") == 1
    bench.transport.state(breaker("search", "open", lease_ms=5 * MINUTE_MS))
    assert not passes(bench)


@pytest.mark.parametrize(
    ("lease_ms", "binds_ms"),
    [
        (None, DEFAULT_LEASE_MS),  # forgotten
        (365 * 24 * HOUR_MS, MAX_LEASE_MS),  # by a clock that is a year fast
    ],
)
def test_no_breaker_of_the_detector_binds_for_ever(lease_ms: int | None, binds_ms: int) -> None:
    """Everything expires: a dead detector sets the fleet free."""
    bench = bench_with(breaker("search", "open", lease_ms=lease_ms))
    bench.clock.advance(binds_ms - 1)
    assert not passes(bench)
    bench.clock.advance(1)
    assert passes(bench)


def test_while_the_past_is_read_no_lease_counts_as_expired() -> None:
    """The renewal is a few thousand records further on."""
    bench = GuardBench()
    plane = bench.guard._plane
    for lease_ms, append_ms in ((MINUTE_MS, START_MS), (3 * MINUTE_MS, START_MS + 2 * MINUTE_MS)):
        record = breaker("search", "open", lease_ms=lease_ms)
        plane.receive(ControlRecord("state", record.key.encode(), encode(record), append_ms))
        fence_record = fence(3, 1)
        plane.receive(ControlRecord("state", b"*|fence|3", encode(fence_record), START_MS + 2 * MINUTE_MS))
        plane.tick()
    plane.ready()

    assert not passes(bench)
    assert count(bench.guard, "breaker_leases_expired") == 0


def test_a_lease_that_was_over_on_arrival_binds_nobody() -> None:
    """Written by a detector that was asleep between the decision and the write."""
    bench = GuardBench()
    bench.clock.advance(HOUR_MS)
    bench.transport.state(breaker("search", "open", lease_ms=MINUTE_MS))

    assert passes(bench)
    assert count(bench.guard, "breaker_leases_expired") == 1


def test_what_a_person_set_has_no_lease() -> None:
    """Even if the record names one."""
    bench = bench_with(breaker("search", "forced_open", lease_until_ms=START_MS + MINUTE_MS))
    bench.clock.advance(30 * 24 * HOUR_MS)

    assert not passes(bench)
    with bench.guard.run("r-1") as run:
        assert call(run).retry_after_ms is None


def test_a_new_process_does_not_take_the_record_of_a_dead_detector_for_news() -> None:
    """The only record of the partition says of the broker's time no more than when it was appended itself."""
    bench = GuardBench()
    bench.transport.state(breaker("search", "open"))
    bench.clock.advance(2 * HOUR_MS)

    assert passes(bench)
    assert count(bench.guard, "breaker_leases_expired") == 1


@pytest.mark.parametrize("skew_ms", [-10 * HOUR_MS, -10 * MINUTE_MS, 10 * MINUTE_MS, HOST_CLOCK_ERROR_MS])
def test_a_new_process_with_a_wrong_clock_obeys_a_live_breaker(skew_ms: int) -> None:
    """75, 76: ten minutes fast or slow are no reason to let a call through."""
    bench = GuardBench(transport=MemoryTransport(ManualClock(host_skew_ms=skew_ms)))
    bench.transport.state(breaker("search", "open"))

    assert not passes(bench)


def test_a_clock_that_is_hours_fast_is_overruled_by_the_first_renewal() -> None:
    """From then on the host's clock is not asked."""
    bench = GuardBench(transport=MemoryTransport(ManualClock(host_skew_ms=10 * HOUR_MS)))
    bench.transport.state(breaker("search", "open"))
    assert passes(bench)

    bench.clock.advance(30_000)
    bench.transport.state(breaker("search", "open", lease_ms=150_000))
    assert not passes(bench)
    bench.pump()
    assert not passes(bench)


# Half open.


def test_half_open_lets_the_same_runs_through_each_time() -> None:
    """57: by the hash alone; the others are refused, and the probes come back as ordinary events."""
    bench = bench_with(breaker("search", "half_open", **HALF_OPEN))
    through = {run_id for run_id in RUNS if passes(bench, run_id=run_id)}

    assert through == {run_id for run_id in RUNS if is_probe(run_id, 9, 0.05)} == {"r-7", "r-10", "r-14"}
    assert through == {run_id for run_id in RUNS if passes(bench, run_id=run_id)}
    assert count(bench.guard, "breaker_probes") == 6
    assert count(bench.guard, "breaker_refusals") == 34
    with bench.guard.run("r-7") as probe, bench.guard.run("r-8") as other:
        assert call(probe, 1).allowed
        probe.after_tool("c1", result="well again")
        refusal = call(other, 2)
    assert "breaker_half_open" in (refusal.message or "")
    bench.pump()
    ends = [step for step in bench.transport.steps if isinstance(step, ToolEnd) and step.run_id == "r-7"]
    assert ends[-1].outcome == "ok"


def test_the_next_epoch_is_the_turn_of_others() -> None:
    """A run that happened to fail would otherwise keep the tool shut for all."""
    bench = bench_with(breaker("search", "half_open", **HALF_OPEN))
    bench.transport.state(breaker("search", "half_open", version=(42, 101), probe=Probe(10, 0.05)))
    bench.pump()

    assert {run_id for run_id in RUNS if passes(bench, run_id=run_id)} == {
        run_id for run_id in RUNS if is_probe(run_id, 10, 0.05)
    }


def test_half_open_without_a_probe_is_nobodys_turn() -> None:
    """It was not said who may try; the lease ends it."""
    bench = bench_with(breaker("search", "half_open"))
    assert not any(passes(bench, run_id=run_id) for run_id in RUNS)
    bench.clock.advance(120_000)
    assert passes(bench)


def test_a_half_open_breaker_whose_lease_is_over_is_closed_for_all() -> None:
    """Without a detector nobody evaluates probes."""
    bench = bench_with(breaker("search", "half_open", lease_ms=MINUTE_MS, **HALF_OPEN))
    bench.clock.advance(MINUTE_MS)

    assert all(passes(bench, run_id=run_id) for run_id in RUNS)


def test_a_paused_run_holds_no_probe() -> None:
    """It would report in an hour."""
    bench = bench_with(breaker("search", "half_open", **HALF_OPEN))
    with bench.guard.run("r-7") as run:
        bench.transport.command(pause(run.key))
        bench.pump()
        assert call(run).action is Action.PAUSE

    assert count(bench.guard, "breaker_probes") == 0


def test_a_run_whose_id_cannot_be_sent_decides_by_the_id_that_is() -> None:
    """A lone surrogate becomes a question mark in its events."""
    bench = bench_with(breaker("search", "half_open", probe=Probe(9, 0.5), retry_after_ms=1_000))
    for run_id in ("r-\ud800", "r-\udfff\ud800", "\ud800"):
        sent = run_id.encode("utf-8", "replace").decode()
        assert passes(bench, run_id=run_id) is is_probe(sent, 9, 0.5)
    assert "faults" not in bench.guard.stats()


# Retries.


def test_refused_runs_do_not_come_back_all_at_once() -> None:
    """64: between one and two times the interval, evenly, and for one run always the same."""
    bench = bench_with(breaker("search", "open", retry_after_ms=60_000))

    def waits() -> list[int]:
        found = []
        for number in range(400):
            with bench.guard.run(f"run-{number}") as run:
                found.append(call(run).retry_after_ms or 0)
        return found

    first = waits()
    assert first == waits()
    assert all(60_000 <= wait < 120_000 for wait in first)
    # A tenth of them in each tenth of the interval: 40 +- 5 standard deviations of 6.
    tenths = [sum(wait // 6_000 == tenth for wait in first) for tenth in range(10, 20)]
    assert all(10 <= found <= 70 for found in tenths)

    bench.transport.state(breaker("search", "open", version=(42, 200), retry_after_ms=60_000))
    bench.pump()
    assert waits() != first


@pytest.mark.parametrize("retry_after_ms", [None, 0])
def test_a_breaker_that_names_no_time_promises_none(retry_after_ms: int | None) -> None:
    """Zero is a time."""
    bench = bench_with(breaker("search", "open", retry_after_ms=retry_after_ms))
    with bench.guard.run("r-42") as run:
        assert call(run).retry_after_ms == retry_after_ms


# Which record is in force.


def test_the_newest_version_wins_whatever_the_order() -> None:
    """59: compaction leaves old records behind, and reading from the beginning brings them."""
    closed, opened = breaker("search", "closed", version=(42, 1_950)), breaker("search", "open", version=(42, 1_899))

    assert passes(bench_with(closed, opened))
    assert passes(bench_with(opened, closed))
    assert not passes(bench_with(closed, breaker("search", "open", version=(43, 1))))


def test_a_deleted_breaker_is_closed() -> None:
    """60: also where our own copy says open."""
    bench = bench_with(breaker("search", "open"), breaker("read", "forced_open"))
    bench.clock.advance(10)
    for tool in ("search", "read", "never heard of"):
        bench.transport.raw("state", f"acme|breaker|{tool}", None)

    assert passes(bench)
    assert passes(bench, tool="read")
    # What was there before it was deleted does not come back when the topic is read again.
    bench.transport.state(breaker("read", "forced_open"), append_ms=START_MS)
    assert passes(bench, tool="read")
    bench.clock.advance(10)
    bench.transport.state(breaker("read", "forced_open"))
    assert not passes(bench, tool="read")


def test_deleted_and_set_in_one_batch_is_set() -> None:
    """The records of a batch have one append time: their order has to do."""
    bench = bench_with(breaker("search", "open"))
    bench.transport.raw("state", "acme|breaker|search", None)
    bench.transport.state(breaker("search", "forced_open"))

    assert not passes(bench)


@pytest.mark.parametrize(("held", "allowed"), [("forced_open", False), ("disabled", True), ("observe_only", True)])
def test_what_a_person_holds_the_detector_does_not_change(held: str, allowed: bool) -> None:
    """61: its versions may be higher, they count in another unit; a person lifts it, then the detector may speak."""
    theirs = breaker("search", held, version=(1, 1))
    opened, closed = breaker("search", "open", version=(99, 9)), breaker("search", "closed", version=(99, 10))

    for records in ([theirs, opened], [opened, theirs], [theirs, opened, closed], [closed, theirs, opened]):
        assert passes(bench_with(*records)) is allowed
    bench = bench_with(opened, theirs)
    bench.clock.advance(10)
    bench.transport.state(breaker("search", "closed", version=(1, 2), writer="operator"))
    assert passes(bench)
    bench.clock.advance(10)
    bench.transport.state(breaker("search", "open", version=(99, 11)))
    assert not passes(bench)


def test_a_person_closes_what_the_detector_opened() -> None:
    """Until the detector says otherwise: its renewal of the same version is news again."""
    bench = bench_with(breaker("search", "open", version=(42, 100)))
    bench.clock.advance(10)
    bench.transport.state(breaker("search", "closed", version=(1, 1), writer="operator"))
    assert passes(bench)

    bench.clock.advance(10)
    bench.transport.state(breaker("search", "open", version=(42, 100), lease_ms=150_000))
    assert not passes(bench)


def test_observe_only_counts_what_the_detector_would_have_refused() -> None:
    """A person wants to see what it would do."""
    bench = bench_with(breaker("search", "open"), breaker("search", "observe_only", version=(1, 1)))
    assert passes(bench)
    assert count(bench.guard, "breaker_advice") == 1

    bench.clock.advance(120_000)
    bench.pump()
    assert passes(bench)
    assert count(bench.guard, "breaker_advice") == 1
    assert count(bench.guard, "breaker_refusals") == count(bench.guard, "breakers_open") == 0


def test_under_the_big_switch_every_breaker_is_advice() -> None:
    """73: also what a person forced open, and from the next call on."""
    bench = bench_with(breaker("search", "open"), breaker("read", "forced_open"), enforcement("observe_only"))
    assert passes(bench)
    assert passes(bench, tool="read")
    assert count(bench.guard, "breaker_advice") == 2

    bench.transport.state(enforcement("enforce", version=(1, 2)))
    assert not passes(bench)
    assert not passes(bench, tool="read")


def test_one_tenants_trouble_is_not_anothers() -> None:
    """62: tenants share a partition, and a record for everybody does not exist."""
    bench = bench_with(breaker("search", "open", tenant="borealis"), breaker("search", "open", tenant="*"))

    assert passes(bench)
    assert count(bench.guard, "breakers_open") == 0


def test_a_block_of_this_run_is_told_before_the_breaker_of_all() -> None:
    """It is the run's own, and has another end."""
    bench = bench_with(breaker("search", "open", retry_after_ms=10))
    blocked = [BlockedTool("search", START_MS + MINUTE_MS, "v1")]
    bench.transport.state(run_record("r-42", "open", blocked_tools=blocked))
    bench.pump()
    with bench.guard.run("r-42") as run:
        assert "blocked_for_this_run" in (call(run, 1).message or "")
        bench.clock.advance(MINUTE_MS)
        assert "breaker_open" in (call(run, 2).message or "")


@pytest.mark.parametrize("tool", ["a|b", "läs 日本", "x" * 256, "y" * 300])
def test_names_of_tools_are_what_the_events_call_them(tool: str) -> None:
    """A bar in a name, and a name that was cut for the wire."""
    bench = GuardBench()
    with bench.guard.run("r-1") as run:
        run.before_tool(tool, {}, "c1")
    bench.pump()
    told = next(step.tool for step in bench.transport.steps if isinstance(step, ToolStart))
    bench.transport.state(breaker(told, "open"))

    assert not passes(bench, tool=tool)


def test_a_step_budget_counts_refused_attempts() -> None:
    """Blocking alone ends nothing: a model that hammers a closed door comes to its end."""
    bench = bench_with(breaker("search", "open"))
    with bench.guard.run("r-42", limits=Limits(max_steps=3)) as run:
        actions = [call(run, number).action for number in range(5)]

    assert actions == [Action.BLOCK] * 3 + [Action.STOP] * 2


# The board by itself.


def put_all(board: Breakers, records: Iterable[tuple[BreakerState, int]]) -> None:
    """Let a board read records with their append times."""
    for record, append_ms in records:
        board.put("search", record, encode(record), append_ms)


def test_of_equal_versions_the_later_lease_counts_whenever_it_was_written() -> None:
    """A renewal that was delayed on its way is shorter than the one that overtook it."""
    board = Breakers(Counters())
    later, sooner = breaker("search", "open", lease_ms=90_000), breaker("search", "open", lease_ms=9_000)
    put_all(board, [(later, START_MS), (sooner, START_MS + 1)])

    assert board.in_force["search"].until_ms == START_MS + 90_000


def test_a_deletion_that_is_read_again_does_not_delete_what_came_after_it() -> None:
    """By either writer."""
    board = Breakers(Counters())
    for record in (breaker("search", "forced_open"), breaker("search", "open")):
        put_all(board, [(record, START_MS + 20)])
        board.delete("search", START_MS + 10)
        assert board.in_force["search"].state == "forced_open"
    board.put("read", breaker("read", "open"), b"", START_MS + 20)
    board.delete("read", START_MS + 10)
    assert set(board.in_force) == {"search", "read"}


def test_of_two_writers_in_one_millisecond_the_person_is_obeyed() -> None:
    """Nothing else tells who was later."""
    board = Breakers(Counters())
    closed = breaker("search", "closed", version=(1, 1), writer="operator")
    put_all(board, [(breaker("search", "open"), START_MS), (closed, START_MS)])

    assert board.in_force == {}


def test_a_tool_that_a_person_watches_is_watched_when_the_lease_is_over() -> None:
    """The process's own breaker has to know."""
    board = Breakers(Counters())
    put_all(board, [(breaker("search", "open"), START_MS), (breaker("search", "observe_only"), START_MS)])
    board.expire(START_MS + HOUR_MS)

    assert board.in_force["search"].state == "observe_only"


def test_a_reader_keeps_the_view_that_it_has() -> None:
    """No lock: what an agent's thread looks at is never changed, only replaced."""
    board = Breakers(Counters())
    put_all(board, [(breaker("search", "open"), START_MS)])
    view = board.in_force
    put_all(board, [(breaker("search", "closed", version=(42, 101)), START_MS)])

    assert set(view) == {"search"}
    assert board.in_force == {}


def test_the_memory_of_versions_is_bounded_and_forgets_no_open_breaker() -> None:
    """A fleet that invents names of tools must not fill the process; a person's order of last year stays."""
    counters = Counters()
    board = Breakers(counters, max_tools=10)
    held = breaker("held", "forced_open")
    board.put("held", held, encode(held), START_MS)
    for number in range(50):
        closed = breaker(f"t{number}", "closed")
        board.put(f"t{number}", closed, encode(closed), START_MS)

    assert set(board.in_force) == {"held"}
    assert counters.snapshot()["breakers_forgotten"] == 41


def test_before_any_time_of_the_broker_a_lease_binds_nobody() -> None:
    """A broker that stamps nothing cannot say when a lease is over."""
    bench = GuardBench()
    bench.transport.state(breaker("search", "open"), append_ms=-1)
    bench.transport.state(breaker("read", "forced_open"), append_ms=-1)

    assert passes(bench)
    assert not passes(bench, tool="read")


def test_the_key_of_a_breaker_names_tenant_and_tool() -> None:
    """As the contract has it."""
    fields: dict[str, Any] = json.loads(encode(breaker("search", "open", retry_after_ms=5, writer="operator")))

    assert fields["key"] == f"{TENANT}|breaker|search"
    assert (fields["writer"], fields["retry_after_ms"]) == ("operator", 5)
