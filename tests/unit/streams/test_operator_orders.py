"""What a person's order is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden.fencing import Fences
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import MAX_INT
from loopwarden_streams.operator_orders import (
    ANY_TTL_MS,
    NAMED_TTL_MS,
    OrderType,
    Person,
    check_names,
    in_force,
    next_version,
    order_run,
    set_breaker,
    switch_enforcement,
)

NOW_MS = 1_800_000_000_000
KIM = Person("kim", "writes to the wrong account")


@given(st.lists(st.integers(0, 2 * NOW_MS), min_size=1, max_size=20))
def test_each_order_fences_all_before_it_whatever_the_clocks_show(clocks: list[int]) -> None:
    """Two people with clocks an hour apart: the later order must not be stale because the earlier one was ahead."""
    fences, newest = Fences(), None
    for now_ms in clocks:
        version = next_version(newest, now_ms)
        assert newest is None or version > newest
        assert not fences.is_old("r-1", "operator", (version[0], version[1]))
        newest = version


def test_versions_end_with_a_remedy() -> None:
    """The highest version there can be would otherwise lock every later order out in silence."""
    assert next_version([MAX_INT - 1, MAX_INT], NOW_MS) == [MAX_INT, 0]
    with pytest.raises(ConfigError, match="delete the key"):
        next_version([MAX_INT, MAX_INT], NOW_MS)


@pytest.mark.parametrize(
    ("kind", "incarnation", "ttl_ms", "life_ms", "record_life_ms"),
    [
        ("kill_run", "*", None, ANY_TTL_MS, ANY_TTL_MS),
        ("kill_run", "a", None, NAMED_TTL_MS, NAMED_TTL_MS),
        ("kill_run", "*", 5_000, 5_000, 5_000),
        ("pause_run", "*", None, ANY_TTL_MS, None),
        ("pause_run", "*", 5_000, 5_000, 5_000),
        ("resume_run", "*", None, ANY_TTL_MS, None),
    ],
)
def test_how_long_an_order_waits_and_how_long_it_binds(
    kind: OrderType, incarnation: str, ttl_ms: int | None, life_ms: int, record_life_ms: int | None
) -> None:
    """A kill of what has not begun waits for hours; a pause binds until it is lifted, a release for ever."""
    order = order_run(
        kind, "acme", "r-1", KIM, version=[NOW_MS, 0], now_ms=NOW_MS, incarnation=incarnation, ttl_ms=ttl_ms
    )

    assert order.command.expires_at_ms - NOW_MS == life_ms
    bound_until = order.record.expires_at_ms
    assert (None if bound_until is None else bound_until - NOW_MS) == record_life_ms


def test_the_three_records_of_an_order_name_each_other() -> None:
    """Who reads one of them later finds the other two, and the person."""
    order = order_run("kill_run", "acme", "r-1", KIM, version=[NOW_MS, 0], now_ms=NOW_MS, scope="tree")

    assert order.action.action_id == order.record.command_id == order.command.command_id
    assert int(order.command.command_id, 16) >= 0
    assert order.record.version == [order.command.epoch, order.command.seq] == order.action.version
    assert {order.record.writer, order.command.writer} == {"operator"}
    assert order.record.reason == order.command.reason
    assert order.command.reason is not None
    assert order.command.reason.note == "writes to the wrong account (kim)"
    assert in_force(order).version > order.record.version
    assert (in_force(order).state, in_force(order).expires_at_ms) == ("killed", None)


def test_states_of_a_person_have_no_lease() -> None:
    """A person who goes home must not find the tool open again two minutes later."""
    action, record = set_breaker("acme", "search", "forced_open", KIM, version=[NOW_MS, 0], now_ms=NOW_MS)
    assert (record.lease_until_ms, record.writer, record.opened_at_ms) == (None, "operator", NOW_MS)
    assert (action.tool, action.state, action.key) == ("search", "forced_open", "acme|breaker|search")

    action, switch = switch_enforcement("observe_only", KIM, version=[NOW_MS, 0], now_ms=NOW_MS)
    assert (action.tenant, action.who, switch.state) == (None, "kim", "observe_only")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"tenant": "a|b"}, "tenant 'a|b'"),
        ({"tenant": "acme", "run_id": ""}, "run ''"),
        ({"tenant": "acme", "tool": "x" * 257}, "1 to 256"),
        ({"tenant": "acme", "who": ""}, "--who ''"),
        ({"tenant": "acme", "why": "x" * 257}, "--why has 257 characters"),
    ],
)
def test_what_no_record_may_hold_is_refused(names: dict[str, str], said: str) -> None:
    """Before anything is written, and by the name of the argument."""
    with pytest.raises(ConfigError) as error:
        check_names(**{"who": "kim", "why": "", **names})
    assert said in str(error.value)
