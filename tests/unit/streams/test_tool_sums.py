"""What the owner of runs adds up and sends to the owners of tools."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.codec import decode_message
from loopwarden_models.events import ToolEnd, ToolError
from loopwarden_models.ids import control_partition
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.tool_health import PartialSum, run_hash
from loopwarden_streams import tool_sums
from loopwarden_streams.batch_writer import Out
from loopwarden_streams.tool_sums import ToolSums

T0 = 1_760_000_000_000
LATER = T0 + 10**9


def call(at_ms: int, *, run: str = "r1", tool: str = "search", outcome: str = "ok", **more: Any) -> ToolEnd:
    """Return a finished call."""
    return ToolEnd(v=1, tenant="acme", run_id=run, seq=1, ts_ms=T0 + at_ms, tool=tool, outcome=outcome, **more)


def new_sums(**config: Any) -> ToolSums:
    """Return sums for tools with these numbers."""
    return ToolSums(lambda *_: msgspec.structs.replace(DEFAULT_POLICY.fleet_breaker, **config))


def taken(sums: ToolSums, *, now_ms: int = LATER, epoch: int = 4) -> list[PartialSum]:
    """Return what would be sent, in order."""
    out = sums.take(2, epoch, 12, now_ms)
    return [decode_message(one.value, PartialSum) for records in out.values() for one in records]


def test_calls_are_added_up_by_tool_and_second() -> None:
    """One sum a tool, its seconds in order, each with what failed and who."""
    sums = new_sums(slow_ms=1_000)
    sums.add("acme", call(1_500, outcome="timeout"), 10)
    sums.add("acme", call(200), 11)
    sums.add("acme", call(300, tool="mail"), 12)
    sums.add("acme", call(1_999, run="r2", duration_ms=1_001), 13)
    sums.add("acme", call(900, duration_ms=1_000), 15)
    search, mail = taken(sums)

    assert (search.tool, search.partition, search.epoch, search.first_offset, search.last_offset) == (
        "search",
        2,
        4,
        10,
        15,
    )
    first, second = search.seconds
    assert (first.at_ms, first.calls, first.failures, first.slow) == (T0, 2, 0, 0)
    assert (second.at_ms, second.calls, second.failures, second.slow) == (T0 + 1_000, 2, 1, 1)
    assert (second.failed_runs, second.slow_runs) == ([run_hash("r1")], [run_hash("r2")])
    assert (mail.first_offset, mail.last_offset, mail.seconds[0].calls) == (12, 12, 1)
    assert not sums
    assert taken(sums) == []


def test_what_says_nothing_about_the_tool_is_not_sent() -> None:
    """No record for a tool whose calls were all refused."""
    sums = new_sums()
    sums.add("acme", call(0, outcome="blocked"), 1)
    sums.add("acme", call(0, outcome="error", error=ToolError(status=404)), 2)

    assert not sums


def test_at_most_three_runs_are_named() -> None:
    """Whether it is one run or several is all that is asked."""
    sums = new_sums()
    for run in range(9):
        sums.add("acme", call(run, run=f"r{run % 5}", outcome="error"), run)
    (one,) = taken(sums)

    assert one.seconds[0].failures == 9
    assert one.seconds[0].failed_runs == [run_hash(f"r{run}") for run in range(3)]


def test_no_call_ends_in_the_future() -> None:
    """A host whose clock is ahead would push everybody else out of the window."""
    sums = new_sums()
    sums.add("acme", call(600_000, run="r1", outcome="error"), 1)
    sums.add("acme", call(5_000, run="r2", outcome="error"), 2)
    (one,) = taken(sums, now_ms=T0 + 5_900)

    assert [(each.at_ms, each.failures) for each in one.seconds] == [(T0 + 5_000, 2)]
    assert sorted(one.seconds[0].failed_runs) == sorted([run_hash("r1"), run_hash("r2")])


def test_all_tools_of_a_tenant_go_to_one_partition_under_their_own_keys() -> None:
    """How many of them may be held open is for one worker to know."""
    sums = new_sums()
    for number in range(5):
        sums.add("acme", call(0, tool=f"tool-{number}"), number)
    out: dict[int, list[Out]] = sums.take(2, 4, 12, LATER)

    assert list(out) == [control_partition("acme", 12)]
    assert [one.key for one in out[control_partition("acme", 12)]] == [b"acme|tool-%d" % number for number in range(5)]


def test_a_backlog_is_sent_before_it_is_too_long_for_a_record() -> None:
    """Read at full speed, a quarter of a second holds hours."""
    sums = new_sums()
    for second in range(tool_sums.MAX_SECONDS):
        assert not sums.is_full
        sums.add("acme", call(1_000 * second, outcome="error"), second)

    assert sums.is_full
    out = sums.take(2, 4, 12, LATER)
    assert max(len(one.value or b"") for records in out.values() for one in records) < 300_000
    assert not sums.is_full


@given(
    cuts=st.lists(st.integers(0, 60), max_size=8),
    again_from=st.integers(0, 60),
    died_at=st.integers(0, 60),
    tools=st.lists(st.sampled_from(["a", "b"]), min_size=60, max_size=60),
)
def test_what_is_read_again_is_counted_once(cuts: list[int], again_from: int, died_at: int, tools: list[str]) -> None:
    """Whatever the first owner had sent when it died, and wherever it had cut: the next one sends single calls."""
    calls = [call(number, tool=tool) for number, tool in enumerate(tools)]
    states = {tool: ToolState("acme", tool, born=0) for tool in ("a", "b")}
    again_from, died_at = sorted((again_from, died_at))
    counted = dict.fromkeys(states, 0)

    def deliver(sent: list[PartialSum]) -> None:
        for one in sent:
            if states[one.tool].admit(one) == "new":
                counted[one.tool] += sum(second.calls for second in one.seconds)

    first = new_sums()
    # What was committed was sent; of the rest some was.
    ends = sorted({again_from, *(cut for cut in cuts if cut <= died_at)})
    for start, end in pairwise([0, *ends]):
        for number in range(start, end):
            first.add("acme", calls[number], number)
        deliver(taken(first, epoch=1))
    heir = new_sums()
    for number in range(again_from, 60):
        (heir.add_again if number < died_at else heir.add)("acme", calls[number], number)
    deliver(taken(heir, epoch=2))

    assert counted == {tool: tools.count(tool) for tool in states}


def test_beyond_the_first_thousands_sums_are_sums_again() -> None:
    """A day that is read again must not be a message a call."""
    sums = new_sums()
    for number in range(tool_sums.MAX_SINGLE + 100):
        sums.add_again("acme", call(0), number)
    sent = taken(sums)

    assert len(sent) == tool_sums.MAX_SINGLE + 1
    assert sent[-1].seconds[0].calls == 100
    assert [one.first_offset for one in sent] == list(range(tool_sums.MAX_SINGLE + 1))


def test_slow_is_by_the_tools_own_limit() -> None:
    """The policy of the tool, without the layers of agents."""
    asked: list[tuple[str, str]] = []

    def config_of(tenant: str, tool: str) -> BreakerConfig:
        asked.append((tenant, tool))
        return BreakerConfig(slow_ms=50 if tool == "mail" else None)

    sums = ToolSums(config_of)
    for number, tool in enumerate(["mail", "mail", "search"]):
        sums.add("acme", call(0, tool=tool, duration_ms=60), number)
    mail, search = taken(sums)

    assert (mail.seconds[0].slow, search.seconds[0].slow) == (2, 0)
    assert asked == [("acme", "mail"), ("acme", "search")]


def test_a_name_for_each_call_fills_neither_the_topic_nor_another_tenants_sums() -> None:
    """A thousand names of one tenant a sending; the rest is counted as left out, and the next sending begins anew."""
    sums = new_sums()
    for number in range(5_000):
        sums.add("acme", call(0, tool=f"tool-{number}"), number)
    sums.add("globex", call(0, tool="mail"), 5_000)
    sent = taken(sums)

    assert len(sent) == tool_sums.MAX_TOOLS + 1
    assert (sent[-1].tenant, sent[-1].tool) == ("globex", "mail")
    assert sums.crowded == 4_000
    sums.add("acme", call(0, tool="tool-4999"), 5_001)
    assert [one.tool for one in taken(sums)] == ["tool-4999"]
