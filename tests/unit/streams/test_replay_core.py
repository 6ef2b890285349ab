"""Behaviour of the judge behind `loopwarden replay`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from tests._support.replay_runs import Event, budget, cycle, exact_repeat, healthy_fix, lines_of, same_error

from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import observe
from loopwarden_models.codec import decode_step
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.verdicts import Verdict
from loopwarden_streams import replay_core
from loopwarden_streams.replay_core import Broken, Replay, Source, SourceRecord, replay_steps

FILE = Source("loops.jsonl")
TOPIC = Source("loopwarden.steps", 3, is_topic=True)
ENFORCE = Policy(mode="enforce")


def records(events: Iterable[Event], source: Source = FILE, first: int = 0) -> list[SourceRecord]:
    """Return the events as records of `source`."""
    return [SourceRecord(line, source, offset) for offset, line in enumerate(lines_of(events), first)]


def keyed(event: Event, offset: int, *, key: bytes | None = b"", latest_ms: int | None = None) -> SourceRecord:
    """Return the event as a record of a topic, with the right key unless another is given."""
    right = f"{event['tenant']}|{event.get('root_run_id', event['run_id'])}".encode()
    return SourceRecord(next(lines_of([event])), TOPIC, offset, latest_ms, right if key == b"" else key)


def feed(replay: Replay, fed: Iterable[SourceRecord]) -> list[Decision]:
    """Return what `replay` decides on all of them."""
    return [decision for record in fed for decision in replay.feed(record)]


def verdicts(decisions: Iterable[Decision]) -> list[Verdict]:
    """Return the verdicts among the decisions."""
    return [decision.verdict for decision in decisions if decision.verdict is not None]


def judged_without_replay(events: Sequence[Event], policy: Policy) -> list[str]:
    """What a worker does with each event, and nothing else."""
    trees: dict[str, TreeState] = {}
    ids = []
    for offset, line in enumerate(lines_of(events)):
        step = decode_step(line)
        assert step is not None
        tree = trees.setdefault(step.run_id, TreeState(step.tenant, step.run_id))
        ids += [d.verdict.verdict_id for d in observe(tree, step, policy, offset=offset) if d.verdict is not None]
    return ids


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, ENFORCE])
def test_says_what_the_detectors_say(policy: Policy) -> None:
    """Same verdicts, same ids, same order as the detectors that a worker runs."""
    events = [*exact_repeat(), *cycle(), *same_error(), *budget(), *healthy_fix()]

    told = verdicts(replay_steps(records(events), policy))

    assert [verdict.verdict_id for verdict in told] == judged_without_replay(events, policy)
    assert len(told) > 15


def test_evidence_names_the_lines() -> None:
    """People open the file at the first line of the pattern; offsets are line numbers less one."""
    nudge = next(v for v in verdicts(replay_steps(records(exact_repeat()), DEFAULT_POLICY)) if v.level == "nudge")

    assert nudge.source is not None
    assert nudge.source.topic == "loops.jsonl"
    # start, (think, search) x 3: the first search is line 3, the third line 7
    assert nudge.source.offsets == [2, 6]


def test_a_run_may_go_on_in_the_next_file() -> None:
    """Log rotation must not hide a loop; the evidence then begins at the first line of the second file."""
    events = exact_repeat()
    second = Source("second.jsonl")

    told = feed(Replay(DEFAULT_POLICY), [*records(events[:5]), *records(events[5:], second)])
    nudge = next(v for v in verdicts(told) if v.level == "nudge")

    assert nudge.source is not None
    assert (nudge.source.topic, nudge.source.offsets) == ("second.jsonl", [0, 1])


def test_a_long_path_is_cut_to_what_the_contract_allows() -> None:
    """`EvidenceRange.topic` holds 256 characters; the end of a path says more than its beginning."""
    source = Source("d/" * 200 + "loops.jsonl")

    told = verdicts(replay_steps(records(exact_repeat(), source), DEFAULT_POLICY))

    assert told[0].source is not None
    assert len(told[0].source.topic) == 256
    assert told[0].source.topic.endswith("/loops.jsonl")


def test_places_read_as_people_look_for_them() -> None:
    """Editors count lines from 1, Kafka counts offsets from 0."""
    assert FILE.place(0) == "loops.jsonl:1"
    assert TOPIC.place(881) == "loopwarden.steps/3/881"


@pytest.mark.parametrize(
    ("line", "reason", "field"),
    [
        (b"no json", "not_json", ""),
        (b'{"v":2,"type":"run_end"}', "unsupported_version", "v"),
        (b'{"v":1,"type":"run_end","tenant":"acme","run_id":"r","seq":-1,"ts_ms":0}', "out_of_range", "seq"),
        (
            b'{"v":1,"type":"tool_end","tenant":"acme","run_id":"r","seq":1,"ts_ms":0,"tool":"t","args_hash":"xyz"}',
            "bad_value",
            "args_hash",
        ),
        (None, "tombstone", ""),
    ],
)
def test_broken_records_are_named_and_the_rest_is_judged(line: bytes | None, reason: str, field: str) -> None:
    """A broken line costs that line: the run before and after it is judged."""
    broken: list[Broken] = []
    replay = Replay(DEFAULT_POLICY, on_broken=broken.append)
    whole = records(exact_repeat())

    told = feed(replay, [*whole[:4], SourceRecord(line, FILE, 99), *whole[4:]])

    assert [(b.source.place(b.offset), b.error.reason, b.error.field) for b in broken] == [
        ("loops.jsonl:100", reason, field)
    ]
    assert [d.verdict for d in told] == [d.verdict for d in feed(Replay(DEFAULT_POLICY), whole)]
    assert replay.summary().broken == {reason: 1}
    assert replay.summary().runs == 1


def test_a_fault_of_ours_is_reported_and_the_rest_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker: one event that trips a detector must not end the replay of a million."""

    def trip(_tree: TreeState, step: object, _policy: Policy, **_: object) -> Sequence[Decision]:
        if getattr(step, "seq", 0) == 3:
            raise ZeroDivisionError("of all things")
        return ()

    monkeypatch.setattr(replay_core, "observe", trip)
    broken: list[Broken] = []
    replay = Replay(DEFAULT_POLICY, on_broken=broken.append)
    feed(replay, records(exact_repeat(times=3)))

    assert [(b.offset, b.error.reason) for b in broken] == [(3, "unhandled")]
    assert "of all things" in broken[0].error.detail
    assert replay.summary().events == 7


def test_unknown_types_are_counted_apart() -> None:
    """A newer runtime's events are no fault of the file."""
    line = b'{"v":1,"type":"telepathy","tenant":"acme","run_id":"r","seq":1,"ts_ms":0}'
    replay = Replay(DEFAULT_POLICY)

    replay.feed(SourceRecord(line, FILE, 0))

    summary = replay.summary()
    assert (summary.unknown_types, summary.events, summary.broken, summary.runs) == (1, 0, {}, 0)


def test_only_one_tenant() -> None:
    """The others are not judged at all."""
    other = [{**event, "tenant": "umbrella"} for event in exact_repeat()]
    replay = Replay(DEFAULT_POLICY, tenant="umbrella")

    told = verdicts(feed(replay, records([*exact_repeat(), *other])))

    assert {verdict.tenant for verdict in told} == {"umbrella"}
    assert (replay.summary().events, replay.summary().runs) == (len(other), 1)


def test_equal_run_ids_of_two_tenants_are_two_runs() -> None:
    """State is keyed by tenant and root: two halves of a loop in two tenants are none."""
    events = exact_repeat(times=4)
    mixed = [{**event, "tenant": "ab"[n // 2 % 2]} for n, event in enumerate(events[1:-1])]

    told = verdicts(replay_steps(records(mixed), DEFAULT_POLICY))

    assert {verdict.level for verdict in told} == {"observe"}


@pytest.mark.parametrize("only", ["child", "root"])
def test_only_one_run_counts_its_tree_in_full(only: str) -> None:
    """`--run` tells of one run; what the rest of its tree did is judged with it."""
    root = [{**event, "root_run_id": "root"} for event in budget("root")]
    child = [{**event, "root_run_id": "root", "parent_run_id": "root"} for event in exact_repeat("child")]
    replay = Replay(DEFAULT_POLICY, run=only)

    told = verdicts(feed(replay, records([*root, *child, *cycle("stranger")])))

    assert {v.run_id for v in told} == ({"child"} if only == "child" else {"child", "root"})
    assert "budget" in {v.detector for v in told if v.run_id == only} or only == "child"
    assert replay.summary().runs == (1 if only == "child" else 2)


def test_a_topic_judges_as_a_worker_does() -> None:
    """Keys are checked, the broker's time bounds the event's, and each partition has a state of its own."""
    events = exact_repeat()
    broken: list[Broken] = []
    replay = Replay(DEFAULT_POLICY, on_broken=broken.append)
    first_ms = int(events[0]["ts_ms"])

    told = feed(replay, [keyed(event, at, latest_ms=first_ms + 7_000) for at, event in enumerate(events)])
    replay.feed(keyed(events[0], 100, key=None))
    replay.feed(keyed(events[0], 101, key=b"acme|another"))

    assert [(b.source.place(b.offset), b.error.reason) for b in broken] == [
        ("loopwarden.steps/3/100", "empty_key"),
        ("loopwarden.steps/3/101", "key_mismatch"),
    ]
    assert [v.verdict_id for v in verdicts(told)] == judged_without_replay(events, DEFAULT_POLICY)
    assert verdicts(told)[-1].at_ms == first_ms + 7_000
    source = verdicts(told)[0].source
    assert source is not None
    assert (source.topic, source.partition, source.offsets) == ("loopwarden.steps", 3, [2, 4])


def test_a_tree_in_two_partitions_has_two_states() -> None:
    """A worker that owns one partition knows nothing of the other."""
    events = exact_repeat(times=4)[1:-1]
    other = Source(TOPIC.name, 4, is_topic=True)
    fed = [keyed(event, at)._replace(source=(TOPIC, other)[at // 2 % 2]) for at, event in enumerate(events)]

    told = verdicts(feed(Replay(DEFAULT_POLICY), fed))

    assert {verdict.level for verdict in told} == {"observe"}


def test_a_full_memory_forgets_ended_runs_first_and_says_so() -> None:
    """What is forgotten is counted: verdicts may be missing."""
    looping = exact_repeat("looping")
    replay = Replay(DEFAULT_POLICY, max_runs=2)

    feed(replay, records(looping[:5]))
    for number in range(5):
        feed(replay, records(healthy_fix(f"ended-{number}")))
    told = verdicts(feed(replay, records(looping[5:])))

    assert "kill" in {verdict.level for verdict in told}
    summary = replay.summary()
    assert (summary.runs, summary.evicted_runs) == (6, 4)


def test_summary_counts_runs_by_their_strongest_level() -> None:
    """A run that was nudged and then killed is one killed run."""
    replay = Replay(DEFAULT_POLICY)
    feed(replay, records([*exact_repeat("a"), *exact_repeat("b", times=3), *same_error("c", times=4), *healthy_fix()]))

    summary = replay.summary()

    assert summary.runs == 4
    assert summary.runs_with_verdict == 3
    assert summary.runs_by_level["exact_repeat"] == {"nudge": 1, "kill": 1}
    assert summary.runs_by_level["same_error"] == {"nudge": 1}
    assert summary.runs_by_level["any"] == {"nudge": 2, "kill": 1}
    assert summary.verdicts["exact_repeat"] == {"observe": 2, "nudge": 3, "break": 1, "kill": 1}
    assert summary.last_ms - summary.first_ms == 14 * 6_000 + 1_000


def test_what_a_stop_would_have_spared() -> None:
    """In `warn` a run counts as stopped where the evidence asked for it; what came after was spent in vain."""
    replay = Replay(DEFAULT_POLICY)
    feed(replay, records(exact_repeat()))

    (stopped,) = replay.summary().stopped

    assert (stopped.run_id, stopped.agent, stopped.detector, stopped.mode) == (
        "report-1",
        "researcher",
        "exact_repeat",
        "warn",
    )
    assert (stopped.seq, stopped.order) == (16, None)
    assert stopped.steps_after == 13  # six more laps of two steps, and the end
    assert stopped.cost_usd_after == pytest.approx(6 * 0.012)


def test_in_enforce_a_run_is_stopped_by_an_order() -> None:
    """The ladder holds: without an answer to the second nudge the order comes 30 s later, and counts from there."""
    replay = Replay(ENFORCE)
    decisions = feed(replay, records([*exact_repeat("long"), *exact_repeat("short", times=8)]))

    summary = replay.summary()

    assert [(d.order.type, d.order.run_id) for d in decisions if d.order and d.order.type != "nudge"] == [
        ("kill_run", "long")
    ]
    assert [(run.run_id, run.seq, run.order) for run in summary.stopped] == [("long", 22, "kill_run")]
    assert summary.almost_stopped == 1
    assert summary.orders == {"kill_run": 1, "nudge": 4}


def test_a_new_incarnation_is_not_what_the_stop_would_have_spared() -> None:
    """Its steps are numbered from the start again."""
    again = [{**event, "incarnation": "b"} for event in healthy_fix("report-1")]
    replay = Replay(DEFAULT_POLICY)
    feed(replay, records([*exact_repeat(), *again]))

    assert [run.steps_after for run in replay.summary().stopped] == [0]


def test_agents_are_known_by_name() -> None:
    """The table shows who it was."""
    replay = Replay(DEFAULT_POLICY)
    names = {replay.agent_of(d) for record in records(exact_repeat()) for d in replay.feed(record)}

    assert names == {"researcher"}


def test_nothing_fed_gives_an_empty_summary() -> None:
    """An empty file is no error."""
    summary = Replay(DEFAULT_POLICY).summary()

    assert (summary.events, summary.runs, summary.first_ms, summary.last_ms) == (0, 0, 0, 0)
