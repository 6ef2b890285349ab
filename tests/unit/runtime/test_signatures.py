"""Which control records a runtime believes, what it answers to the others, and what they must not do (lifecycle 11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests._support.keys import DETECTOR, NEXT_DETECTOR, OPERATOR, STRANGER, public, ring, write_ring

from loopwarden import LoopwardenStopped
from loopwarden.signatures import REQUIRE_VARIABLE, RING_VARIABLE
from loopwarden.testing import (
    START_MS,
    TENANT,
    GuardBench,
    MemoryTransport,
    enforcement,
    fence,
    kill,
    nudge,
    resume,
    run_record,
)
from loopwarden_models.codec import encode
from loopwarden_models.commands import Command
from loopwarden_models.errors import ConfigError
from loopwarden_models.key_ring import KeyRing
from loopwarden_models.signing import SigningKey

Encode = Callable[[msgspec.Struct], bytes]

START = datetime.fromtimestamp(START_MS / 1_000, UTC)


def strict() -> GuardBench:
    """Return a guard that believes `DETECTOR` and `OPERATOR` alone."""
    return GuardBench(key_ring=ring(), require_signature=True)


def order(bench: GuardBench, command: Command, write: Encode = DETECTOR.encode) -> None:
    """Send a command and let the guard read it."""
    bench.transport.raw("commands", f"{command.tenant}|{command.run_id}", write(command))
    bench.pump()


def state(bench: GuardBench, record: msgspec.Struct, write: Encode = DETECTOR.encode, *, key: str = "") -> None:
    """Write a state, under another key than its own if one is given, and let the guard read it."""
    bench.transport.raw("state", key or json.loads(encode(record))["key"], write(record))
    bench.pump()


def test_a_signed_kill_lands() -> None:
    """The signature changes nothing for what is right."""
    bench = strict()
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key))
        assert run.stopped
    bench.pump()

    assert bench.transport.statuses("c1") == ["received", "applied", "confirmed_dead"]
    assert "signatures_refused" not in bench.guard.stats()


def tampered(message: msgspec.Struct) -> bytes:
    """Sign a kill of one run and aim it at another."""
    return DETECTOR.encode(message).replace(b'"expires_at_ms":18', b'"expires_at_ms":19')


@pytest.mark.parametrize(
    ("write", "detail", "reason"),
    [
        (encode, "not signed", "missing"),
        (STRANGER.encode, "key 'stranger' is not in the key ring", "unknown_key"),
        (SigningKey(STRANGER._private, "detector-1").encode, "not that of key 'detector-1' over this record", "wrong"),
        (tampered, "not that of key 'detector-1' over this record", "wrong"),
        (OPERATOR.encode, "key 'operator-1' is a key of the operator, this needs the detector's", "wrong_role"),
        (lambda message: b'{"run_id":"x",' + DETECTOR.encode(message)[1:], "a name comes twice", "wrong"),
    ],
)
def test_a_command_that_is_not_ours_is_answered_failed_and_not_applied(write: Encode, detail: str, reason: str) -> None:
    """Case 11: not applied, `failed` with the reason, counted."""
    bench = strict()
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key), write)
        assert run.before_model().allowed
        (ack,) = bench.transport.acks
        # The real one, later: the forgery has left no trace, no version and no applied id.
        order(bench, kill(run.key, epoch=1, seq=1))
        assert run.stopped

    assert ack.status == "failed"
    assert detail in (ack.detail or "")
    stats = bench.guard.stats()
    assert (stats["signatures_refused"], stats[f"signature_{reason}"], stats["acks_failed"]) == (1, 1, 1)


def test_a_withdrawn_key_and_one_whose_time_is_over_are_refused() -> None:
    """Both were once right; `detail` says which of the two it is."""
    rings = [(ring(withdrawn=True), "was withdrawn"), (ring(not_after=START), "not valid any more")]
    for keys, detail in rings:
        bench = GuardBench(key_ring=keys, require_signature=True)
        with bench.guard.run("r-42") as run:
            order(bench, kill(run.key))
            assert not run.stopped
        assert detail in (bench.transport.acks[0].detail or "")


def test_a_forged_copy_does_not_unsay_what_was_applied() -> None:
    """The detector must not be told by a stranger that its kill failed."""
    bench = strict()
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key))
        order(bench, kill(run.key), encode)
    bench.pump()

    assert bench.transport.statuses("c1") == ["received", "applied", "confirmed_dead"]
    assert bench.guard.stats()["signatures_refused"] == 1


def test_what_is_of_no_run_of_ours_is_refused_in_silence() -> None:
    """Each runtime of the tenant reads each command: only the host answers."""
    bench = strict()
    order(bench, kill("r-elsewhere"), encode)
    with bench.guard.run("r-elsewhere") as run:
        # It does not wait for a run that begins later either.
        assert not run.stopped

    assert bench.transport.acks == []
    assert bench.guard.stats()["signatures_refused"] == 1


def test_another_tenants_records_cost_no_arithmetic_and_are_not_counted() -> None:
    """Partitions are shared: their signatures are their runtimes' business."""
    bench = strict()
    order(bench, kill("r-42", tenant="globex"), encode)
    state(bench, msgspec.structs.replace(run_record("r-42", "killed"), key="globex|run|r-42"), encode)

    assert "signatures_refused" not in bench.guard.stats()
    assert bench.guard.stats()["run_records"] == 0


def test_states_that_are_not_ours_are_ignored_and_counted() -> None:
    """A forged fence would shut out the real detector, a forged switch would end all enforcement."""
    bench = strict()
    state(bench, run_record("r-42", "killed"), encode)
    state(bench, fence(3, 2**40), STRANGER.encode)
    state(bench, enforcement("observe_only"), DETECTOR.encode)
    with bench.guard.run("r-42") as run:
        assert not run.stopped
        order(bench, kill(run.key, steps_partition=3))
        assert run.stopped

    stats = bench.guard.stats()
    assert stats["signatures_refused"] == 3
    assert (stats["enforcing"], stats["run_records"]) == (1, 0)


def test_states_that_are_ours_bind() -> None:
    """Run record, fence and switch, each by the one who may write it."""
    bench = strict()
    state(bench, run_record("r-1", "killed"))
    state(bench, fence(3, 43))
    with pytest.raises(LoopwardenStopped), bench.guard.run("r-1"):
        pytest.fail("the run was started")
    with bench.guard.run("r-2") as run:
        order(bench, kill(run.key, steps_partition=3, epoch=42))
        assert not run.stopped
    state(bench, enforcement("observe_only"), OPERATOR.encode)

    assert bench.guard.stats()["enforcing"] == 0
    assert "signatures_refused" not in bench.guard.stats()


def test_a_signed_state_binds_under_its_own_key_alone() -> None:
    """Kafka's key is not signed: a kill of one run, copied under the key of another, must not bind that one."""
    bench = strict()
    state(bench, run_record("r-1", "killed"), key=f"{TENANT}|run|r-2")
    with bench.guard.run("r-2") as run:
        assert not run.stopped

    assert bench.guard.stats()["signature_wrong_key"] == 1


def test_a_signed_command_is_no_state_and_a_signed_state_no_command() -> None:
    """What was signed for one topic means nothing on the other."""
    bench = strict()
    bench.transport.raw("state", f"{TENANT}|run|r-42", DETECTOR.encode(kill("r-42")))
    bench.transport.raw("commands", f"{TENANT}|r-42", DETECTOR.encode(run_record("r-42", "killed")))
    bench.pump()
    with bench.guard.run("r-42") as run:
        assert not run.stopped


def test_a_deletion_that_nobody_can_sign_lifts_nothing() -> None:
    """Who may write to the topic could otherwise set every killed run free."""
    bench = strict()
    state(bench, run_record("r-1", "killed"))
    state(bench, run_record("r-2", "released"), DETECTOR.encode)
    state(bench, enforcement("observe_only"), OPERATOR.encode)
    for key in (f"{TENANT}|run|r-1", f"{TENANT}|run|r-2", "*|enforcement|global", "globex|run|r-1"):
        bench.transport.raw("state", key, None)
    bench.pump()
    with pytest.raises(LoopwardenStopped), bench.guard.run("r-1"):
        pytest.fail("the run was started")

    stats = bench.guard.stats()
    # r-2 was released: a deletion a day later is how its record is meant to go.
    assert (stats["run_records"], stats["enforcing"], stats["tombstones_refused"]) == (1, 0, 3)


def test_with_keys_and_no_requirement_a_signature_need_not_be_there_but_must_be_right() -> None:
    """The step between no signatures and required ones: what is counted as absent would be refused."""
    bench = GuardBench(key_ring=ring())
    with bench.guard.run("r-1") as run:
        order(bench, kill(run.key, command_id="c1"), encode)
        assert run.stopped
    with bench.guard.run("r-2") as run:
        order(bench, kill(run.key, command_id="c2"), tampered)
        assert not run.stopped

    stats = bench.guard.stats()
    assert (stats["signatures_absent"], stats["signatures_refused"]) == (1, 1)


def test_without_keys_nothing_is_checked() -> None:
    """A runtime without keys obeys whoever may write, as before."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key), tampered)
        assert run.stopped

    assert not any("signature" in name for name in bench.guard.stats())


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(("write", "expected"), [(DETECTOR.encode, ["free words"]), (encode, []), (tampered, [])])
def test_free_text_reaches_a_model_only_with_a_signature(required: bool, write: Encode, expected: list[str]) -> None:
    """Whoever may write commands must not be able to write prompts, even where free text is allowed."""
    bench = GuardBench(key_ring=ring(), require_signature=required, allow_free_text=True)
    with bench.guard.run("r-42") as run:
        order(bench, nudge(run.key, message="free words", message_id=None), write)

        assert [given.text for given in run.nudges()] == expected


def test_an_unsigned_nudge_falls_back_to_its_template() -> None:
    """Where unsigned commands are still obeyed, their counted evidence is shown and their text is not."""
    bench = GuardBench(key_ring=ring(), allow_free_text=True)
    with bench.guard.run("r-42") as run:
        order(bench, nudge(run.key, message="free words"), encode)

        (given,) = run.nudges()
        assert "free words" not in given.text
        assert "`search`" in given.text


def test_signed_free_text_needs_permission_all_the_same() -> None:
    """The signature says who wrote it, not that this fleet wants it."""
    bench = strict()
    with bench.guard.run("r-42") as run:
        order(bench, nudge(run.key, message="free words"))

        assert "free words" not in run.nudges()[0].text


def test_operators_release_with_a_key_of_their_own() -> None:
    """What a person ordered is lifted by a person: that is the key, and not the word in `writer`."""
    bench = strict()
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key, command_id="k", incarnation="other"), OPERATOR.encode)
        order(bench, resume(run.key, command_id="r", writer="operator"), DETECTOR.encode)

    assert [ack.status for ack in bench.transport.acks] == ["failed", "failed"]


def test_a_ring_on_disk_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A rotation or a withdrawal must not wait for every agent of the fleet to be restarted."""
    place = write_ring(tmp_path / "ring", public(DETECTOR))
    bench = GuardBench(key_ring=place, require_signature=True)
    with bench.guard.run("r-1") as run:
        order(bench, kill(run.key, command_id="early"), NEXT_DETECTOR.encode)
        assert not run.stopped
        write_ring(place, public(NEXT_DETECTOR))
        bench.clock.advance(1_000)
        # A name that is missing is looked for at once, and the old key goes on being valid.
        order(bench, kill(run.key, command_id="new"), NEXT_DETECTOR.encode)
        assert run.stopped
    with bench.guard.run("r-2") as run:
        write_ring(place, public(DETECTOR, withdrawn=True))
        bench.clock.advance(5_000)
        order(bench, kill(run.key, command_id="old"))
        assert not run.stopped

    assert bench.guard.stats()["key_ring_reloads"] == 2


@pytest.mark.parametrize("damage", ["half", "gone"])
def test_a_ring_that_became_unreadable_changes_nothing(tmp_path: Path, damage: str) -> None:
    """A file that is being written, or a mount that went away, must not disarm the detector."""
    place = write_ring(tmp_path / "ring", public(DETECTOR))
    bench = GuardBench(key_ring=place, require_signature=True)
    file = place / "detector-1.pub"
    if damage == "half":
        file.write_text(file.read_text()[:20])
    else:
        file.unlink()
    bench.clock.advance(5_000)
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key))
        assert run.stopped

    assert bench.guard.stats()["key_ring_errors"] == 1


def test_the_environment_configures_what_arguments_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's code need not change for its operator to require signatures."""
    monkeypatch.setenv(RING_VARIABLE, str(write_ring(tmp_path / "ring", public(DETECTOR))))
    monkeypatch.setenv(REQUIRE_VARIABLE, "true")
    for required, expected in [(None, False), (False, True)]:
        bench = GuardBench(require_signature=required)
        with bench.guard.run("r-42") as run:
            order(bench, kill(run.key), encode)
            assert run.stopped is expected


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        ({"require_signature": True}, {}, "require_signature is on and there are no keys .*LOOPWARDEN_KEY_RING"),
        ({}, {REQUIRE_VARIABLE: "1"}, "no keys to check with"),
        ({}, {REQUIRE_VARIABLE: "maybe"}, "LOOPWARDEN_REQUIRE_SIGNATURE = 'maybe' is neither true nor false"),
        ({"key_ring": "/nowhere"}, {}, "key ring '/nowhere' does not exist"),
        ({}, {RING_VARIABLE: "/nowhere"}, "key ring '/nowhere' does not exist"),
    ],
)
def test_what_cannot_be_checked_fails_at_the_start(
    options: dict[str, Any], environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that believes it is protected, and is not, is worse than one that does not start."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError, match=message):
        GuardBench(**options)


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass on what is not set as an empty text."""
    monkeypatch.setenv(RING_VARIABLE, "")
    monkeypatch.setenv(REQUIRE_VARIABLE, "")
    bench = GuardBench(transport=MemoryTransport())
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key), encode)

        assert run.stopped


def test_rings_may_be_given_as_objects() -> None:
    """Who keeps keys elsewhere than in files builds the ring himself."""
    bench = GuardBench(key_ring=KeyRing([public(NEXT_DETECTOR)]), require_signature=True)
    with bench.guard.run("r-42") as run:
        order(bench, kill(run.key), NEXT_DETECTOR.encode)

        assert run.stopped
