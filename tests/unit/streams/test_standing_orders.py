"""What binds, as the records of `control.state` say."""

from __future__ import annotations

from typing import Any

import msgspec

from loopwarden_models.codec import encode
from loopwarden_models.control_state import BreakerState
from loopwarden_streams.standing_orders import StandingOrders

SEARCH = "acme|breaker|search"


def state_after(*records: tuple[str, str, list[int]]) -> str | None:
    """Return the state in force after `(state, writer, version)` in this order."""
    standing = StandingOrders()
    for at_ms, (state, writer, version) in enumerate(records):
        record = BreakerState(v=1, key=SEARCH, version=version, state=state, writer=writer)
        standing.put(SEARCH.encode(), encode(record), at_ms)
    said = standing.breaker("acme", "search")
    return None if said is None else said.record.state


def test_what_a_person_holds_stands_until_a_person_gives_it_back() -> None:
    """Lifecycle 61: the probes would succeed and the detector wants to close."""
    held = ("forced_open", "operator", [9, 0])

    assert state_after(held, ("closed", "detector", [42, 7])) == "forced_open"
    assert state_after(held, ("closed", "operator", [10, 0])) == "closed"
    assert state_after(held, ("closed", "operator", [10, 0]), ("open", "detector", [42, 8])) == "open"
    assert state_after(("open", "detector", [42, 8]), ("closed", "operator", [10, 0])) == "closed"


def test_the_highest_version_of_a_writer_wins_in_any_order() -> None:
    """Lifecycle 59: compaction leaves old records behind newer ones of other keys, and readers begin anywhere."""
    assert state_after(("closed", "detector", [42, 1950]), ("open", "detector", [42, 1899])) == "closed"
    assert state_after(("disabled", "operator", [9, 1]), ("forced_open", "operator", [9, 0])) == "disabled"


def put(standing: StandingOrders, key: str, **fields: Any) -> None:
    """Append a record."""
    standing.put(key.encode(), msgspec.json.encode({"v": 1, "key": key, **fields}), 1)


def test_the_switch_is_on_until_somebody_touches_it() -> None:
    """And what cannot be read, or is of a kind of a later version, changes nothing."""
    standing = StandingOrders()
    assert standing.is_enforcing
    key = "*|enforcement|global"
    put(standing, key, version=[2, 0], state="observe_only")
    put(standing, key, version=[1, 9], state="enforce")
    put(standing, "*|hologram|global", anything=True)
    put(standing, "acme|run|r-1", version="one", state="killed")

    assert not standing.is_enforcing
    assert standing.unreadable == 1
    assert standing.run("acme", "r-1") is None
    assert standing.newest_version(key) == [2, 0]
    standing.put(key.encode(), None, 2)
    assert standing.is_enforcing


def test_versions_are_those_of_people_alone() -> None:
    """A detector counts in epochs of its own; a person's next order is not compared with them."""
    standing = StandingOrders()
    put(standing, "acme|run|r-1", version=[42, 1900], state="kill_wanted")
    assert standing.newest_version("acme|run|r-1") is None

    put(standing, "acme|run|r-1", version=[7, 0], state="paused", writer="operator")
    assert standing.newest_version("acme|run|r-1") == [7, 0]
    said = standing.run("acme", "r-1")
    assert said is not None
    assert said.record.state == "paused"
