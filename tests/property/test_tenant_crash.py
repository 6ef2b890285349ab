"""Cut anywhere, restart from the snapshots, send again in other pieces: what a tenant used is counted once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests._support.tools import T0

from loopwarden_detectors.tenant_fleet import TenantFleet
from loopwarden_detectors.tenant_limits import TenantState
from loopwarden_models.codec import decode_message
from loopwarden_models.policy import Policy
from loopwarden_models.tenant_load import TenantLoad
from loopwarden_streams.tenant_loads import TenantLoads

POLICY = Policy.from_builtins({"tenant_limits": {"max_calls_per_min": 20, "max_cost_usd_per_day": 8.0}})
Step = tuple[int, int, float]


def sent(loads: TenantLoads, epoch: int) -> list[TenantLoad]:
    """Return what is sent."""
    out = loads.take(0, epoch, 1, T0 + 10**8)
    return [decode_message(one.value, TenantLoad) for records in out.values() for one in records]


def worker(
    steps: list[Step], cuts: list[int], *, epoch: int, begin: int = 0, replay_until: int = 0
) -> list[TenantLoad]:
    """Return what an owner of these steps sends, who sends what it has at these cuts and at the end."""
    loads, said = TenantLoads(), []
    for offset in range(begin, len(steps)):
        at_s, calls, usd = steps[offset]
        add = loads.add_again if offset < replay_until else loads.add
        add("acme", T0 + at_s * 1000, calls, usd, offset)
        if offset in cuts:
            said += sent(loads, epoch)
    return said + sent(loads, epoch)


def judge(fleet: TenantFleet, log: list[TenantLoad], begin: int = 0) -> list[str]:
    """Return the ids of what is said."""
    return [one.verdict_id for at in range(begin, len(log)) for one in fleet.load(log[at], at)]


steps_of = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1), st.sampled_from([0.0, 0.25, 0.5])), max_size=60)


@settings(max_examples=150, deadline=None)
@given(steps=steps_of, data=st.data())
def test_nothing_is_lost_and_nothing_counted_twice(steps: list[Step], data: st.DataObject) -> None:
    """The owner of the steps dies somewhere, and what it sent last may not have arrived."""
    steps = sorted(steps, key=lambda step: step[0])
    cuts = data.draw(st.lists(st.integers(0, 60)), label="cuts")
    died = data.draw(st.integers(0, len(steps)), label="died at")
    first = worker(steps[:died], cuts, epoch=1)
    arrived = first[: data.draw(st.integers(0, len(first)), label="arrived")]
    begin = data.draw(st.integers(0, died), label="read again from")
    covered = max((load.last_offset for load in arrived), default=-1)
    begin = min(begin, covered + 1)  # a checkpoint is written after what it covers was sent
    log = [*arrived, *worker(steps, cuts, epoch=2, begin=begin, replay_until=len(steps))]

    fleet = TenantFleet(POLICY)
    judge(fleet, log)
    state = fleet.tenants.get("acme", TenantState("acme"))
    newest = max((at for at, _, _ in steps), default=0)
    used = state.used(T0 + newest * 1000, 0)
    assert used["max_calls_per_min"] == sum(calls for at, calls, _ in steps if at > newest - 60)
    assert used["max_cost_usd_per_day"] == sum(usd for _, _, usd in steps)


@settings(max_examples=100, deadline=None)
@given(steps=steps_of, data=st.data())
def test_a_cut_anywhere_changes_no_verdict(steps: list[Step], data: st.DataObject) -> None:
    """The owner of the tenant is saved at one point, dies at a later one, and reads again from the first or before."""
    log = worker(steps, data.draw(st.lists(st.integers(0, 60)), label="cuts"), epoch=1)
    expected = judge(TenantFleet(POLICY), log)
    saved_at = data.draw(st.integers(0, len(log)), label="saved after")
    fleet = TenantFleet(POLICY)
    before = judge(fleet, log[:saved_at])
    restored = TenantFleet(POLICY)
    restored.restore([TenantState.from_bytes(state.to_bytes()) for state in fleet.tenants.values()])
    after = judge(restored, log, data.draw(st.integers(0, saved_at), label="read again from"))

    assert before + after == expected
