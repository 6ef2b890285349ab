"""The breakers of a replay: order of time, whatever the order of the files, and what the summary makes of them."""

from __future__ import annotations

from itertools import chain

from loopwarden_models.codec import encode
from loopwarden_models.events import ToolEnd
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_streams.replay_core import Replay, Source, SourceRecord
from loopwarden_streams.replay_tools import ReplayTools

T0 = 1_760_000_000_000


def call(run: int, at_s: int, *, outcome: str = "error") -> ToolEnd:
    """Return a call of `search` by one run."""
    return ToolEnd(
        v=1, tenant="acme", run_id=f"r{run}", seq=at_s, ts_ms=T0 + at_s * 1000, tool="search", outcome=outcome
    )


def test_runs_in_different_files_share_their_tools() -> None:
    """Each file holds one run that fails four times; together they are a storm."""
    records = [
        SourceRecord(encode(call(run, 2 * number + 1)), source, number)
        for run, source in ((run, Source(f"run-{run}.jsonl")) for run in range(3))
        for number in range(4)
    ]
    replay = Replay(DEFAULT_POLICY)
    of_runs = list(chain.from_iterable(map(replay.feed, records)))
    found = list(replay.finish())
    summary = replay.summary()

    assert [each.decision.verdict.level for each in found if each.decision.verdict] == ["observe", "break"]
    opened = found[-1]
    assert opened.source.name == "run-2.jsonl"
    assert opened.decision.verdict is not None
    assert opened.decision.verdict.source is not None
    assert opened.decision.verdict.source.offsets == [3, 3]
    assert summary.verdicts["fleet_breaker"] == {"observe": 1, "break": 1}
    assert summary.runs_by_level["fleet_breaker"] == {}
    assert summary.runs_with_verdict == len({each.verdict.run_id for each in of_runs if each.verdict})


def test_one_run_alone_is_told_nothing_about_tools() -> None:
    """Whoever asks for a run gets its verdicts, and no others."""
    replay = Replay(DEFAULT_POLICY, run="r1")
    for number, run in enumerate([0, 1, 2] * 5):
        replay.feed(SourceRecord(encode(call(run, number)), Source("steps.jsonl"), number))

    assert list(replay.finish()) == []


def test_copies_of_a_call_count_once() -> None:
    """A file that holds every record twice has the breakers of one that does not."""
    calls = [call(run, 3 * at + run) for at in range(3) for run in range(3)]
    replay = Replay(DEFAULT_POLICY)
    for number, step in enumerate(one for each in calls for one in (each, each)):
        replay.feed(SourceRecord(encode(step), Source("steps.jsonl"), number))

    assert [each.decision.verdict.level for each in replay.finish() if each.decision.verdict] == ["observe"]


def test_what_is_held_is_bounded() -> None:
    """Beyond the bound the older half is judged, and in a file in order of time nothing is lost by it."""
    tools: ReplayTools[int] = ReplayTools(DEFAULT_POLICY, max_held=4)
    for at in range(12):
        tools.add("acme", call(at % 3, at), at)
        assert len(tools._held) <= 4
    said = list(tools.finish())

    assert [each.verdict.level for each in said] == ["observe", "break"]
    assert said[-1].place == 9
