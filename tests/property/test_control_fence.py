"""Commands in any order, any number of times: the gate ends in one state, and nothing is applied twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden import RunGuard
from loopwarden.testing import START_MS, GuardBench, command, fence, kill, nudge
from loopwarden_models.commands import Command

WRITERS = ("detector", "operator")


@st.composite
def orders(draw: st.DrawFn) -> list[Command]:
    """What two writers order for one run, each in its own order of versions.

    A kill is the last word of its writer, and nudges come before what changes the gate: a version orders a writer's
    commands whatever their type, so an older pause after a newer nudge is stale by contract, not by chance.
    """
    made: list[Command] = []
    for writer in WRITERS:
        kinds = draw(st.lists(st.sampled_from(["pause_run", "resume_run"]), max_size=4))
        kinds += ["kill_run"] * draw(st.integers(0, 1))
        nudges = draw(st.integers(0, 2)) if writer == "detector" else 0
        issued_ms = START_MS + draw(st.integers(0, 5))
        for n, kind in enumerate(["nudge"] * nudges + kinds):
            issued_ms += draw(st.integers(1, 5))
            made.append(
                command(
                    kind,
                    "r-42",
                    command_id=f"{writer}-{n}",
                    writer=writer,
                    epoch=draw(st.integers(1, 2)) + 2 * n,
                    seq=draw(st.integers(0, 9)),
                    issued_at_ms=issued_ms,
                    message_id="nudge.cycle",
                )
            )
    return made


def outcome(delivered: list[Command]) -> tuple[bool, bool]:
    """Deliver, check what must hold whatever the order, and return (stopped, paused)."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        for one in delivered:
            bench.transport.command(one)
        bench.pump()
        given_texts = Counter(given.command_id for given in run.nudges())
        assert all(times == 1 for times in given_texts.values())
        state = _state(run)
    bench.pump()
    applied = Counter(ack.command_id for ack in bench.transport.acks if ack.status == "applied")
    assert all(times == 1 for times in applied.values())
    # Every delivery is answered: received and what follows, or one refusal.
    answers = Counter(ack.command_id for ack in bench.transport.acks if ack.status not in {"applied", "confirmed_dead"})
    assert sum(answers.values()) >= len(delivered)
    assert "faults" not in bench.guard.stats()
    return state


def _state(run: RunGuard) -> tuple[bool, bool]:
    return run.stopped, not run.stopped and not run.before_model().allowed


@settings(max_examples=500)
@given(data=st.data(), made=orders())
def test_any_order_and_any_duplicates_end_in_one_state(data: st.DataObject, made: list[Command]) -> None:
    """Topics are read again after a reconnect, and two writers have no common order."""
    expected = outcome(made)
    again = data.draw(st.lists(st.sampled_from(made), max_size=6)) if made else []
    shuffled = data.draw(st.permutations([*made, *again]))

    assert outcome(shuffled) == expected


@given(made=orders())
def test_a_persons_kill_is_final(made: list[Command]) -> None:
    """Whatever the detector says before or after it."""
    stopped, _ = outcome(made)

    assert stopped == any(one.type == "kill_run" for one in made)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(1, 6)), max_size=20))
def test_nothing_of_a_fenced_owner_is_applied(events: list[tuple[bool, int, int]]) -> None:
    """From its announcement on, a new owner's epoch shuts out all older ones of its partition, and only of its own."""
    bench = GuardBench()
    newest: dict[int, int] = {}
    for n, (is_fence, partition, epoch) in enumerate(events):
        with bench.guard.run(f"r-{n}") as run:
            if is_fence:
                bench.transport.state(fence(partition, epoch))
                newest[partition] = max(epoch, newest.get(partition, 0))
            else:
                bench.transport.command(
                    kill(run.key, command_id=f"k{n}", epoch=epoch, seq=n, steps_partition=partition)
                )
            bench.pump()
            assert run.stopped == (not is_fence and epoch >= newest.get(partition, 0))


@given(st.integers(0, 200_000), st.integers(1, 150_000), st.sampled_from([-600_000, 0, 600_000]))
def test_expiry_depends_on_the_brokers_clock_alone(age_ms: int, life_ms: int, skew_ms: int) -> None:
    """A host's clock may be wrong by ten minutes in either direction."""
    bench = GuardBench()
    bench.clock.host_skew_ms = skew_ms
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key, command_id="n0", seq=1))
        bench.pump()
        bench.clock.advance(age_ms)
        bench.transport.command(kill(run.key, life_ms=life_ms), append_ms=START_MS)
        bench.pump()

        assert run.stopped == (age_ms < life_ms)
