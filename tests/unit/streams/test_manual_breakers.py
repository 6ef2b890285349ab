"""What people ordered of breakers, out of a topic that the detector writes as well."""

from __future__ import annotations

from typing import Any

import msgspec

from loopwarden_models.ids import control_partition
from loopwarden_streams.manual_breakers import ManualBreakers
from loopwarden_streams.settings import Settings

SEARCH = ("acme", "search")


def take(manual: ManualBreakers, state: str | None, version: list[int] | None = None, key: str = "") -> None:
    """Let it read one record of the tool."""
    key = key or "|".join([SEARCH[0], "breaker", SEARCH[1]])
    value: Any = {"v": 1, "key": key, "version": version or [1, 1], "state": state}
    manual.take(key.encode(), None if state is None else msgspec.json.encode(value))


def states(manual: ManualBreakers) -> dict[tuple[str, str], str]:
    """Return what is in force."""
    return {known: order.state for known, order in manual.orders.items()}


def test_an_order_holds_until_a_newer_one() -> None:
    """The detector's own records, before and after, are no orders; neither is an older `closed` that comes late."""
    manual = ManualBreakers(Settings())
    take(manual, "open", [3, 8])
    assert states(manual) == {}
    take(manual, "forced_open", [3, 9])
    take(manual, "half_open", [4, 2])
    take(manual, "closed", [3, 8])
    assert states(manual) == {SEARCH: "forced_open"}
    assert manual.orders[SEARCH].partition == control_partition("acme", Settings().partitions)
    take(manual, "observe_only", [5, 1])
    take(manual, "disabled", [4, 9])
    assert states(manual) == {SEARCH: "observe_only"}


def test_closed_and_a_deletion_give_it_back() -> None:
    """With the version that the detector's next record must be above."""
    manual = ManualBreakers(Settings())
    take(manual, "disabled", [3, 9])
    take(manual, "closed", [3, 10])
    assert (states(manual), manual.lifted) == ({}, {SEARCH: 10})
    take(manual, "disabled", [3, 11])
    assert manual.lifted == {}
    take(manual, None)
    assert (states(manual), manual.lifted) == ({}, {SEARCH: 0})


def test_other_records_and_broken_ones_are_passed_over() -> None:
    """The topic holds runs, fences and the big switch as well, and what anybody may have written by mistake."""
    manual = ManualBreakers(Settings())
    take(manual, "disabled", [3, 9])
    take(manual, "killed", [3, 10], key="acme|run|r-1")
    take(manual, "enforce", [3, 10], key="*|enforcement|global")
    manual.take(b"acme|breaker|search", b"{")
    manual.take(b"acme|breaker|search", b'{"v":1,"key":"acme|breaker|search","version":[9],"state":"closed"}')
    manual.take(None, b"{}")
    manual.take(b"\xff|breaker", b"{}")

    assert states(manual) == {SEARCH: "disabled"}


def test_a_tool_may_have_any_name() -> None:
    """Only the first two bars part the key."""
    manual = ManualBreakers(Settings())
    take(manual, "disabled", key="acme|breaker|a|b")

    assert states(manual) == {("acme", "a|b"): "disabled"}
