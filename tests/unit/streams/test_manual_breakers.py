"""What people ordered of breakers, out of a topic that the detector writes as well."""

from __future__ import annotations

from typing import Any

import msgspec

from loopwarden_models.ids import control_partition
from loopwarden_streams.manual_breakers import ManualBreakers
from loopwarden_streams.settings import Settings

SEARCH = ("acme", "search")


def take(manual: ManualBreakers, state: str | None, version: int = 1, *, key: str = "", **more: Any) -> None:
    """Let it read one record of the tool, appended at `version`."""
    key = key or "|".join([SEARCH[0], "breaker", SEARCH[1]])
    value: Any = {"v": 1, "key": key, "version": [version, 0], "state": state} | more
    manual.take(key.encode(), None if state is None else msgspec.json.encode(value), version)


def states(manual: ManualBreakers) -> dict[tuple[str, str], str]:
    """Return what people said last."""
    return {known: order.state for known, order in manual.orders.items()}


def test_the_newest_order_holds() -> None:
    """The detector's own records are no orders, whatever their version; an older order that comes late is none."""
    manual = ManualBreakers(Settings())
    take(manual, "open", 3)
    take(manual, "closed", 4)
    assert states(manual) == {}
    take(manual, "forced_open", 9)
    take(manual, "half_open", 10)
    take(manual, "closed", 11)
    take(manual, "closed", 8, writer="operator")
    assert states(manual) == {SEARCH: "forced_open"}
    order = manual.orders[SEARCH]
    assert (order.append_ms, order.partition) == (9, control_partition("acme", Settings().partitions))
    take(manual, "closed", 12, writer="operator")
    take(manual, "disabled", 10, writer="operator")
    assert states(manual) == {SEARCH: "closed"}


def test_a_deleted_record_is_no_order() -> None:
    """What is gone from the topic binds nobody."""
    manual = ManualBreakers(Settings())
    take(manual, "disabled")
    take(manual, None)

    assert states(manual) == {}


def test_other_records_and_broken_ones_are_passed_over() -> None:
    """The topic holds runs, fences and the big switch as well, and what anybody may have written by mistake."""
    manual = ManualBreakers(Settings())
    take(manual, "disabled", 9)
    take(manual, "killed", 10, key="acme|run|r-1")
    take(manual, "enforce", 10, key="*|enforcement|global")
    manual.take(b"acme|breaker|search", b"{", 11)
    manual.take(b"acme|breaker|search", b'{"v":1,"key":"acme|breaker|search","version":[9],"state":"closed"}', 11)
    manual.take(None, b"{}", 11)
    manual.take(b"\xff|breaker", b"{}", 11)

    assert states(manual) == {SEARCH: "disabled"}


def test_a_tool_may_have_any_name() -> None:
    """Only the first two bars part the key."""
    manual = ManualBreakers(Settings())
    take(manual, "disabled", key="acme|breaker|a|b")

    assert states(manual) == {("acme", "a|b"): "disabled"}
