"""Whatever decodes is judged: no event brings a worker down, and what comes out fits the wire."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests._support.meanings import WordMeaning
from tests._support.steps import START_MS, answer, decide, tree_of
from tests.contract.wire import messages
from tests.property.step_streams import EAGER, Script, play, scripts

from loopwarden_detectors import watch
from loopwarden_detectors.answers import acknowledge
from loopwarden_detectors.run_state import FORMAT, TreeState
from loopwarden_models.acks import ACK_STATUSES, Ack
from loopwarden_models.codec import decode_message, decode_step, encode
from loopwarden_models.errors import InvalidEvent, StateCorrupt
from loopwarden_models.events import AnyStep
from loopwarden_models.verdicts import Verdict

TENANT, ROOT = "acme", "boss"
WORDS = WordMeaning()


def check(tree: TreeState, steps: list[AnyStep], statuses: list[str]) -> None:
    """Judge the steps, answer what is ordered, and look at all that comes out."""
    for n, step in enumerate(steps):
        before = tree.to_bytes()
        try:
            decisions = watch.observe(tree, step, EAGER, offset=n, meaning=WORDS)
        except InvalidEvent:
            assert tree.to_bytes() == before
            continue
        for decision in decisions:
            is_silent = decision.verdict is None and decision.question is None and decision.record is None
            assert decision.is_violation is is_silent
            if decision.verdict is not None:
                assert msgspec.json.decode(msgspec.json.encode(decision.verdict), type=Verdict) == decision.verdict
            if decision.order is not None:
                reason = decision.order.reason
                assert msgspec.json.decode(msgspec.json.encode(reason), type=type(reason)) == reason
                answer(tree, decision.order, statuses[n % len(statuses)], at_ms=step.ts_ms)
    assert TreeState.from_bytes(tree.to_bytes()) == tree
    watch.tick(tree, tree.now_ms + 10**9, EAGER)


def forced(event: dict[str, Any], run_id: str, seq: int) -> bytes:
    """Return the event as one of a run that is known, so that it meets a state."""
    own = {"tenant": TENANT, "root_run_id": ROOT, "run_id": run_id, "seq": seq}
    return json.dumps({**event, **own}).encode()


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    events=st.lists(st.tuples(messages("step-event"), st.sampled_from([ROOT, "child"])), min_size=1, max_size=12),
    statuses=st.lists(st.sampled_from(ACK_STATUSES), min_size=1, max_size=5),
)
def test_any_event_that_decodes_is_judged_or_refused(
    events: list[tuple[dict[str, Any], str]], statuses: list[str]
) -> None:
    """All fields of the contract, with values up to its limits, in any order of types."""
    steps = []
    for seq, (event, run_id) in enumerate(events):
        with contextlib.suppress(InvalidEvent):
            step = decode_step(forced(event, run_id, seq))
            steps += [step] if step is not None else []

    check(TreeState(tenant=TENANT, root_run_id=ROOT), steps, statuses)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    script=scripts(max_scenes=12),
    odd=st.dictionaries(
        st.integers(0, 400),
        st.fixed_dictionaries(
            {},
            optional={
                "ts_ms": st.sampled_from([0, 1, START_MS - 10**9, 2**53 - 1]),
                "duration_ms": st.sampled_from([0.0, 1e15, 12.5]),
                "cost_usd": st.sampled_from([0.0, 5e-324, 1e9]),
                "fidelity": st.sampled_from(["low", "hash", "odd"]),
                "incarnation": st.sampled_from([None, "", "a", "b"]),
                "call_id": st.sampled_from([None, "x", "y"]),
                "outcome": st.sampled_from(["ok", "blocked", "timeout", "odd"]),
                "args": st.none(),
                "result": st.none(),
            },
        ),
        max_size=40,
    ),
    statuses=st.lists(st.sampled_from(ACK_STATUSES), min_size=1, max_size=5),
)
def test_odd_values_inside_loops_bring_nothing_down(
    script: Script, odd: dict[int, dict[str, Any]], statuses: list[str]
) -> None:
    """Clocks that jump, costs that overflow, incarnations that come and go, amid what the rules look for."""
    steps = [step for step in play(script) if (step.tenant, step.root_run_id) == (TENANT, ROOT)]
    changed = []
    for n, step in enumerate(steps):
        event = json.loads(encode(step)) | {
            name: value for name, value in odd.get(n, {}).items() if hasattr(step, name)
        }
        decoded = decode_step(json.dumps({name: value for name, value in event.items() if value is not None}).encode())
        assert decoded is not None
        changed.append(decoded)

    check(TreeState(tenant=TENANT, root_run_id=ROOT), changed, statuses)


@given(script=scripts(runs=1), heard=messages("acknowledgement"), odd=st.sampled_from(["k1", "0", "-1", "0" * 32, ""]))
def test_any_answer_that_decodes_is_taken(script: Script, heard: dict[str, Any], odd: str) -> None:
    """People call their commands as they like, and runtimes answer those too: such an answer is about no order of ours.

    An exception here would be one at every start: the answer is read again each time. All that is learnt from it is
    which runtime was heard of.
    """
    steps = play(script)
    tree = tree_of(steps[0])
    decide(steps, EAGER, tree=tree, heed=False)
    before = tree.to_bytes()
    hosts = [known.host for known in tree.runs.values()]

    for own_id in (heard["command_id"], odd):
        ack = decode_message(json.dumps(heard | {"command_id": own_id or "x", "run_id": steps[0].run_id}).encode(), Ack)
        acknowledge(tree, ack)

    for known in tree.runs.values():
        known.host = hosts.pop(0)
    assert tree.to_bytes() == before


@given(script=scripts(runs=1), at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_changed_bytes_are_no_snapshot(script: Script, at: int, value: int, cut: bool) -> None:
    """A byte that was changed, or an end that was lost: one exception, whatever it was."""
    steps = play(script)
    tree = tree_of(steps[0])
    decide(steps, EAGER, tree=tree)
    data = bytearray(tree.to_bytes())
    at %= len(data)
    if cut:
        del data[at:]
    elif data[at] == value:
        data[at] ^= 1
    else:
        data[at] = value

    with pytest.raises(StateCorrupt):
        TreeState.from_bytes(bytes(data))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(runs=1), at=st.integers(0, 10_000), value=st.binary(min_size=1, max_size=4))
def test_a_forged_snapshot_is_a_state_or_is_refused(script: Script, at: int, value: bytes) -> None:
    """With the right checksum over anything: what is read back is whole enough to go on with."""
    steps = play(script)
    tree = tree_of(steps[0])
    decide(steps, EAGER, tree=tree)
    body = bytearray(tree.to_bytes()[5:])
    at %= len(body)
    body[at : at + len(value)] = value
    forged = bytes([FORMAT]) + crc32(body).to_bytes(4, "big") + body

    with contextlib.suppress(StateCorrupt):
        read = TreeState.from_bytes(forged)
        assert isinstance(read, TreeState)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    """A foreign record on the changelog is no state."""
    with pytest.raises(StateCorrupt):
        TreeState.from_bytes(bytes([FORMAT]) + crc32(data).to_bytes(4, "big") + data)
