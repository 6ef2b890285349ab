"""From what was said of cases and runs to figures. Field for field what `loopwarden eval --json` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from loopwarden_detectors.tool_fleet import RULES
from loopwarden_models.patterns import Level, LevelName
from loopwarden_streams.evaluate_cases import Expect
from loopwarden_streams.evaluate_judge import CaseResult, Decided, Got, level_of
from loopwarden_streams.evaluate_policy import ALL_ON
from loopwarden_streams.evaluate_problems import Problem
from loopwarden_streams.evaluate_traces import Label, RunOutcome

_TENTHS: Final = 9  # the 90th percentile


class CaseScore(Struct, frozen=True, kw_only=True):
    """One case. See `CaseResult`."""

    id: str
    kind: str
    ok: bool
    pattern_ok: bool | None
    expected: Expect
    got: Got
    faults: list[str]


class Share(Struct, frozen=True, kw_only=True):
    """Some runs, and how many of them reached `nudge` and `kill`, or something stronger."""

    runs: int
    nudged: int
    killed: int


class Delay(Struct, frozen=True, kw_only=True):
    """Events of a run from the labelled onset to the first nudge, negative if that came before.

    Attributes:
        runs: Loops that were nudged and have an onset.
        p90: By nearest rank.
    """

    runs: int
    median: float | None
    p90: int | None


class WrongRun(Struct, frozen=True, kw_only=True):
    """A healthy run that was nudged."""

    run_id: str
    label: str | None
    success: bool | None
    max_level: LevelName
    first: Decided | None
    kill_event: int | None


class FolderScore(Struct, frozen=True, kw_only=True):
    """One data set.

    Attributes:
        broken: Lines that are no step events.
        loop: Runs labelled `loop`. `delay`: how long after the onset.
        no_loop: Runs labelled `no_loop`.
        success: Runs with `success: true` that are not labelled `loop`; some may be labelled `no_loop`, too.
        healthy: Runs that are one of these two, or both.
        other: The rest: failed or of unknown success, and not read or labelled `maybe`. Neither right nor wrong.
        missed_loops: Runs labelled `loop` that were not nudged.
    """

    runs: int
    events: int
    broken: int
    loop: Share
    delay: Delay
    no_loop: Share
    success: Share
    healthy: Share
    other: Share
    missed_loops: list[str]
    false_alarms: list[WrongRun]


class Sides(Struct, kw_only=True):
    """First decisions by where they fell: in loops, in healthy cases or runs, or where nobody can say."""

    loop: int = 0
    healthy: int = 0
    other: int = 0


class DetectorScore(Struct, kw_only=True):
    """How often a detector was the first to say `nudge` or above of a case or run.

    Attributes:
        first: The sum of the three.
        precision: `loop` / (`loop` + `healthy`), none where both are 0.
        cases: The part of it in cases. `traces`: in recorded runs.
    """

    first: int = 0
    loop: int = 0
    healthy: int = 0
    other: int = 0
    precision: float | None = None
    cases: Sides
    traces: Sides


class Totals(Struct, frozen=True, kw_only=True):
    """The figures that an absent detector may change: cases as expected, and recorded runs of all folders."""

    cases_right: int
    loops_nudged: int
    loops_killed: int
    healthy_nudged: int
    healthy_killed: int


class WithoutOne(Totals, frozen=True, kw_only=True):
    """The same with one detector switched off, and the cases that are right only with, or only without it."""

    cases_lost: list[str]
    cases_won: list[str]


class Ablation(Struct, frozen=True, kw_only=True):
    """What each detector is good for."""

    all: Totals
    without: dict[str, WithoutOne]


class Evaluation(Struct, frozen=True, kw_only=True):
    """All figures. Holds nothing that depends on the machine or on the number of processes.

    Attributes:
        policy: Its version.
        cases: By id.
        traces: By folder.
        detectors: All there are, in the order of the catalogue.
        errors: What was wrong with the input.
        ablation: Where it was asked for.
    """

    policy: str
    cases: list[CaseScore]
    traces: dict[str, FolderScore]
    detectors: dict[str, DetectorScore]
    errors: list[Problem]
    ablation: Ablation | UnsetType = UNSET


class Folder(Struct):
    """What is known of one data set, gathered from its parts.

    Attributes:
        runs: Events by run.
        outcomes: By variant and run; runs of which nothing was said are not there.
    """

    labels: dict[str, Label]
    runs: dict[str, int] = {}
    broken: int = 0
    outcomes: dict[str, dict[str, RunOutcome]] = {}

    def add(self, runs: dict[str, int], broken: int, outcomes: dict[str, list[RunOutcome]]) -> None:
        """Add a share of the runs."""
        self.runs.update(runs)
        self.broken += broken
        for variant, told in outcomes.items():
            self.outcomes.setdefault(variant, {}).update({outcome.run_id: outcome for outcome in told})

    def label_of(self, run_id: str) -> Label:
        """Return the label of a run; of one that has none, one that says nothing."""
        return self.labels.get(run_id) or Label(run_id)

    def runs_on(self, side: str) -> list[str]:
        """Return the runs on one side, as `Label.side`."""
        return [run_id for run_id in sorted(self.runs) if self.label_of(run_id).side == side]

    def share(self, run_ids: Iterable[str], variant: str = ALL_ON) -> Share:
        """Return how many of the runs were nudged and killed."""
        outcomes = self.outcomes.get(variant, {})
        levels = [
            level_of(outcomes[run_id].max_level) if run_id in outcomes else Level.NONE for run_id in list(run_ids)
        ]
        return Share(
            runs=len(levels),
            nudged=sum(level >= Level.NUDGE for level in levels),
            killed=sum(level >= Level.KILL for level in levels),
        )


def score_case(result: CaseResult) -> CaseScore:
    """Return what is reported of a case."""
    return CaseScore(**{name: getattr(result, name) for name in CaseScore.__struct_fields__})


def score_folder(folder: Folder) -> FolderScore:
    """Return the figures of a data set. Cost: O(runs)."""
    labels = {run_id: folder.label_of(run_id) for run_id in sorted(folder.runs)}
    outcomes = folder.outcomes.get(ALL_ON, {})
    loops = folder.runs_on("loop")
    nudged = {run_id: first for run_id, told in outcomes.items() if (first := told.first) is not None}
    delays = sorted(
        nudged[run_id].event - onset
        for run_id in loops
        if run_id in nudged and (onset := labels[run_id].onset_event_seq) is not None
    )
    return FolderScore(
        runs=len(folder.runs),
        events=sum(folder.runs.values()),
        broken=folder.broken,
        loop=folder.share(loops),
        delay=Delay(
            runs=len(delays),
            median=float(median(delays)) if delays else None,
            p90=delays[math.ceil(len(delays) * _TENTHS / 10) - 1] if delays else None,
        ),
        no_loop=folder.share(run_id for run_id, label in labels.items() if label.label == "no_loop"),
        success=folder.share(run_id for run_id, label in labels.items() if label.success and label.label != "loop"),
        healthy=folder.share(folder.runs_on("healthy")),
        other=folder.share(folder.runs_on("other")),
        missed_loops=[run_id for run_id in loops if run_id not in nudged],
        false_alarms=[
            WrongRun(
                run_id=run_id,
                label=labels[run_id].label,
                success=labels[run_id].success,
                max_level=outcomes[run_id].max_level,
                first=nudged[run_id],
                kill_event=outcomes[run_id].kill_event,
            )
            for run_id in folder.runs_on("healthy")
            if run_id in nudged
        ],
    )


def score_detectors(cases: Iterable[CaseResult], folders: Iterable[Folder]) -> dict[str, DetectorScore]:
    """Return for every detector how often it was the first to decide, and how often rightly."""
    scores = {name: DetectorScore(cases=Sides(), traces=Sides()) for name in RULES}
    for result in cases:
        if result.decided_by is not None:
            _count(scores[result.decided_by].cases, result.side)
    for folder in folders:
        for run_id, outcome in folder.outcomes.get(ALL_ON, {}).items():
            if outcome.first is not None:
                _count(scores[outcome.first.detector].traces, folder.label_of(run_id).side)
    for score in scores.values():
        for side in Sides.__struct_fields__:
            setattr(score, side, getattr(score.cases, side) + getattr(score.traces, side))
        score.first = score.loop + score.healthy + score.other
        judged = score.loop + score.healthy
        score.precision = round(score.loop / judged, 4) if judged else None
    return scores


def score_ablation(cases: dict[str, list[CaseResult]], folders: Sequence[Folder]) -> Ablation:
    """Return what each detector's absence changes.

    Args:
        cases: By variant, in the same order for each.
        folders: With the outcomes of each variant.
    """
    right = {result.id for result in cases.get(ALL_ON, []) if result.ok}
    without = {}
    for name in RULES:
        now = {result.id for result in cases.get(name, []) if result.ok}
        without[name] = WithoutOne(
            cases_lost=sorted(right - now), cases_won=sorted(now - right), **_totals(cases, folders, name)
        )
    return Ablation(all=Totals(**_totals(cases, folders, ALL_ON)), without=without)


def _totals(cases: dict[str, list[CaseResult]], folders: Sequence[Folder], variant: str) -> dict[str, int]:
    loops = [folder.share(folder.runs_on("loop"), variant) for folder in folders]
    healthy = [folder.share(folder.runs_on("healthy"), variant) for folder in folders]
    return {
        "cases_right": sum(result.ok for result in cases.get(variant, [])),
        "loops_nudged": sum(share.nudged for share in loops),
        "loops_killed": sum(share.killed for share in loops),
        "healthy_nudged": sum(share.nudged for share in healthy),
        "healthy_killed": sum(share.killed for share in healthy),
    }


def _count(sides: Sides, side: str) -> None:
    setattr(sides, side, getattr(sides, side) + 1)
