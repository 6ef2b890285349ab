"""What became of every kill in the chaos: the ledgers of the agents against what stands in the topics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import quantiles
from typing import Any, Final

from benchmarks.chaos_agents import Entry
from msgspec import Struct

Message = Mapping[str, Any]

# Ledger and acknowledgement are of one clock, read one after the other, and cut to milliseconds.
CLOCK_MS: Final = 10
# A run that still goes on so long after its kill was written is lost to it: a broker that is away for five seconds, and
# clients that find it again, are over by then.
LOST_MS: Final = 30_000
_LANDED: Final = frozenset({"applied", "confirmed_dead"})


class Stay(Struct):
    """One incarnation of a run in one process. `ended_ms` is that of the process where it was killed."""

    runtime_id: str
    run_id: str
    incarnation: str
    began_ms: int
    ended_ms: int | None = None
    status: str | None = None
    command_id: str | None = None
    steps_ms: list[int] = []

    @property
    def is_loop(self) -> bool:
        """Whether it was made to loop."""
        return self.run_id.startswith("loop-")


class Report(Struct, kw_only=True):
    """The outcome. The three that must be empty name what happened; times in milliseconds.

    Attributes:
        kills_ordered: Kills with effect, by id. `kills_landed`: their runs were stopped by them. `kills_overtaken`:
            the run ended first: by itself, by another kill, or with its process.
        kills_lost: Never landed, and the run went on for `LOST_MS`.
        wrong_kills: Of healthy runs.
        steps_after_kill: Begun by an incarnation after it acknowledged `applied`, or by one that began after the run's
            record said `killed` and went on for `LOST_MS`: a process that is cut off cannot know of it.
        slipped_in: Incarnations that began between the end of a former one and that record, which does not bind them.
        resumed: Incarnations after the first. `refused_starts`: further ones that an order did not let begin.
        errors: Counts of the product's own that must be 0.
        alarms: What the detector told of orders that did not land, by pattern and process.
        looped_on: Loops that were still going on when there was no more patience.
        verdict_copies: Records of verdicts that were there before, as a worker that was killed says again what it said.
            `command_copies`: the same of commands. `contradictions`: ids that say two things.
    """

    runs: int = 0
    loops: int = 0
    steps: int = 0
    resumed: int = 0
    refused_starts: int = 0
    kills_ordered: int = 0
    kills_landed: int = 0
    kills_overtaken: int = 0
    kills_lost: list[str] = []
    wrong_kills: list[str] = []
    steps_after_kill: list[str] = []
    slipped_in: int = 0
    looped_on: dict[str, int] = {}
    verdict_copies: int = 0
    command_copies: int = 0
    contradictions: int = 0
    alarms: dict[str, int] = {}
    to_applied_ms: dict[str, float] = {}
    dead_letters: list[str] = []
    errors: dict[str, int] = {}

    @property
    def is_good(self) -> bool:
        """Whether no kill was wrong or lost, and none was broken."""
        return not (self.kills_lost or self.wrong_kills or self.steps_after_kill or self.contradictions)


class Topics(Struct):
    """What was written, decoded, each record with `append_ms`."""

    commands: Sequence[Message]
    acks: Sequence[Message]
    verdicts: Sequence[Message]
    states: Sequence[Message]
    letters: Sequence[str]


def stays_of(runtime_id: str, entries: Iterable[Entry], deaths_ms: Sequence[int]) -> list[Stay]:
    """Return the incarnations of a process, those that it took with it ended at its death."""
    stays: dict[str, Stay] = {}
    for entry in entries:
        if entry.what == "begin":
            stays[entry.incarnation] = Stay(runtime_id, entry.run_id, entry.incarnation, entry.at_ms, steps_ms=[])
            continue
        stay = stays.get(entry.incarnation)
        if stay is None:
            continue
        if entry.what == "end":
            stay.ended_ms, stay.status, stay.command_id = entry.at_ms, entry.status, entry.command_id
        elif entry.what in {"model", "tool"}:
            stay.steps_ms.append(entry.at_ms)
    for stay in stays.values():
        if stay.ended_ms is None:
            stay.ended_ms = next((at_ms for at_ms in deaths_ms if at_ms >= stay.began_ms), None)
            stay.status = None if stay.ended_ms is None else "lost_with_its_process"
    return list(stays.values())


def judge(stays: Sequence[Stay], topics: Topics, *, skews_ms: Mapping[str, int], ended_ms: int) -> Report:
    """Compare what the agents did with what was ordered, answered and said.

    Args:
        stays: Of all processes.
        topics: Everything that was written.
        skews_ms: By runtime, how far its clock is ahead: acknowledgements tell the time by it.
        ended_ms: When patience was over.
    """
    report = Report(runs=len({stay.run_id for stay in stays}), steps=sum(len(stay.steps_ms) for stay in stays))
    report.loops = len({stay.run_id for stay in stays if stay.is_loop})
    report.resumed = len(stays) - report.runs
    by_run: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_run[stay.run_id].append(stay)
    kills = _kills(topics.commands, report)
    applied = _applied(topics.acks, kills, skews_ms)
    _look_at_kills(kills, applied, by_run, report, ended_ms)
    _look_at_steps(kills, applied, by_run, topics.states, report)
    report.looped_on = dict(Counter(stay.runtime_id for stay in stays if stay.is_loop and stay.ended_ms is None))
    report.verdict_copies, wrong = _copies(topics.verdicts, "verdict_id", ("level", "run_id", "detector", "pattern"))
    report.command_copies, also = _copies(topics.commands, "command_id", ("type", "run_id", "incarnation", "scope"))
    report.contradictions = wrong + also
    said = {
        verdict["verdict_id"]: f"{verdict['pattern']} of {verdict['run_id'].split('-')[1]}"
        for verdict in topics.verdicts
        if verdict["detector"] == "landing"
    }
    report.alarms = dict(Counter(said.values()))
    report.dead_letters = list(topics.letters)
    return report


def _kills(commands: Sequence[Message], report: Report) -> dict[str, Message]:
    kills: dict[str, Message] = {}
    for command in commands:
        if command["type"] == "kill_run" and command["mode"] == "enforce":
            kills.setdefault(command["command_id"], command)
    report.kills_ordered = len(kills)
    report.wrong_kills = sorted(
        f"{kill['run_id']}: {kill['reason']}" for kill in kills.values() if kill["run_id"].startswith("healthy-")
    )
    return kills


def _applied(
    acks: Sequence[Message], kills: Mapping[str, Message], skews_ms: Mapping[str, int]
) -> dict[tuple[str, str], int]:
    """Return when each kill was applied by each runtime, in true time."""
    applied: dict[tuple[str, str], int] = {}
    for ack in acks:
        if ack["status"] in _LANDED and ack["command_id"] in kills:
            place = (ack["command_id"], ack["runtime_id"])
            at_ms = ack["at_ms"] - skews_ms[ack["runtime_id"]]
            applied[place] = min(at_ms, applied.get(place, at_ms))
    return applied


def _look_at_kills(
    kills: Mapping[str, Message],
    applied: Mapping[tuple[str, str], int],
    by_run: Mapping[str, Sequence[Stay]],
    report: Report,
    ended_ms: int,
) -> None:
    taken: list[int] = []
    heard = {own_id for own_id, _ in applied}
    first_ms = {own_id: min(at for (other, _), at in applied.items() if other == own_id) for own_id in heard}
    for own_id, kill in kills.items():
        bound = [stay for stay in by_run.get(kill["run_id"], ()) if kill["incarnation"] in {"*", stay.incarnation}]
        if own_id in heard or any(stay.command_id == own_id for stay in bound):
            report.kills_landed += 1
            if own_id in first_ms:
                taken.append(max(0, first_ms[own_id] - kill["append_ms"]))
        elif any((stay.ended_ms or ended_ms) - kill["append_ms"] > LOST_MS for stay in bound):
            report.kills_lost.append(f"{kill['run_id']} of {kill['incarnation']}: {own_id}")
        else:
            report.kills_overtaken += 1
    if len(taken) > 1:
        cuts = quantiles(taken, n=100)
        report.to_applied_ms = {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": max(taken)}


def _look_at_steps(
    kills: Mapping[str, Message],
    applied: Mapping[tuple[str, str], int],
    by_run: Mapping[str, Sequence[Stay]],
    states: Sequence[Message],
    report: Report,
) -> None:
    for (own_id, runtime_id), at_ms in applied.items():
        kill = kills[own_id]
        for stay in by_run.get(kill["run_id"], ()):
            if stay.runtime_id != runtime_id or stay.began_ms > at_ms:
                continue
            if kill["incarnation"] in {"*", stay.incarnation}:
                _count_late(stay, at_ms + CLOCK_MS, f"kill {own_id} was applied", report)
    for state in states:
        if state["state"] != "killed":
            continue
        # In force for every incarnation that begins later, until a person releases it.
        in_force_ms = state["append_ms"]
        for stay in by_run.get(state["key"].split("|")[-1], ()):
            if stay.began_ms > in_force_ms:
                _count_late(stay, in_force_ms + LOST_MS, "its record said killed", report)
            elif stay.incarnation != state.get("incarnation") and any(at_ms > in_force_ms for at_ms in stay.steps_ms):
                report.slipped_in += 1


def _count_late(stay: Stay, from_ms: int, what: str, report: Report) -> None:
    late = [at_ms for at_ms in stay.steps_ms if at_ms > from_ms]
    if late:
        report.steps_after_kill.append(
            f"{stay.run_id} ({stay.incarnation}): {len(late)} up to {late[-1] - from_ms} ms after {what}"
        )


def _copies(messages: Sequence[Message], own_id: str, meaning: Sequence[str]) -> tuple[int, int]:
    """Return how many messages were there before, and how many ids mean two things."""
    meant: dict[str, tuple[Any, ...]] = {}
    copies, contradictions = 0, set()
    for message in messages:
        means = tuple(message.get(field) for field in meaning)
        known = meant.setdefault(message[own_id], means)
        copies += known is not means
        if known != means:
            contradictions.add(message[own_id])
    return copies, len(contradictions)
