"""What the detectors say of recorded steps, and whether that is what a case expects. No input, no output, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from loopwarden_detectors import watch
from loopwarden_detectors.answers import acknowledge
from loopwarden_detectors.meaning import Meaning
from loopwarden_detectors.restart_loop import turn_of
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.task_fleet import TaskFleet
from loopwarden_detectors.tool_fleet import ToolFleet
from loopwarden_models.acks import Ack
from loopwarden_models.events import AnyStep, ToolEnd, root_of
from loopwarden_models.patterns import LEVEL_NAMES, Level, LevelName
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.evaluate_cases import Case, Expect

ENFORCE = Policy(mode="enforce")


class Said(Struct, frozen=True):
    """One verdict, and the number of the event that caused it, counted from 1."""

    at_event: int
    verdict: Verdict

    @property
    def level(self) -> Level:
        """The verdict's level as a number: a stronger level compares greater."""
        return level_of(self.verdict.level)


class Decided(Struct, frozen=True, kw_only=True):
    """A verdict as it is reported. `event` is its number in a case, from 1, and the step's `seq` in a recorded run."""

    event: int
    level: LevelName
    detector: str
    pattern: str


class Got(Struct, frozen=True, kw_only=True):
    """What was said of a case.

    Attributes:
        max_level: The strongest level, of any run.
        first: The first verdict that counts: of `min_level` or above, or of `nudge` where the case has none, about the
            target if it has one. If there is no such verdict, the first at all.
        kill_event: Event of the first `kill`, about the target if the case has one.
    """

    max_level: LevelName
    first: Decided | None
    kill_event: int | None


class CaseResult(Struct, frozen=True, kw_only=True):
    """A case, and what came of it.

    Attributes:
        ok: Nothing in `faults`. The pattern's name does not decide.
        pattern_ok: The first verdict that counts has the pattern that the case names; none if it names none.
        expected: The case's `expect`.
        faults: What is not as it should be, for people.
        decided_by: Detector of the first verdict of `nudge` or above, of any run.
        side: What that verdict was: `loop`, `healthy`, or `other` where a case does not say.
    """

    id: str
    kind: str
    title: str
    ok: bool
    pattern_ok: bool | None
    expected: Expect
    got: Got
    faults: list[str]
    decided_by: str | None
    side: str


def level_of(name: LevelName) -> Level:
    """Return a level's number."""
    return Level(LEVEL_NAMES.index(name))


def judge(
    steps: Iterable[AnyStep],
    policy: Policy = ENFORCE,
    *,
    is_fleet: bool = True,
    meaning: Meaning | None = None,
    on_fault: Callable[[int, Exception], None] | None = None,
) -> list[Said]:
    """Return every verdict on `steps`. A nudge counts as acknowledged `applied` at once, and as ignored.

    Args:
        steps: Of any number of runs, those of one run in order.
        policy: Its mode should be `enforce`: in another one nothing is ordered, and the ladder stands still.
        is_fleet: As for `Judge`.
        meaning: The same.
        on_fault: Called with the number of a step that could not be judged and the reason, and the next one is judged.
            Without it the error is raised.

    Cost: as `watch.observe`, and 1 µs; memory for the state of every run in `steps`.
    """
    judged = Judge(policy, is_fleet=is_fleet, meaning=meaning)
    said: list[Said] = []
    for number, step in enumerate(steps, 1):
        try:
            verdicts = judged.feed(step)
        except Exception as error:
            # A worker, too, reports such a step and judges the next one.
            if on_fault is None:
                raise
            on_fault(number, error)
            continue
        said += [Said(number, verdict) for verdict in verdicts]
    return said


class Judge:
    """Judges steps one by one. A nudge counts as acknowledged `applied` at once, and as ignored. Not thread-safe."""

    def __init__(self, policy: Policy = ENFORCE, *, is_fleet: bool = True, meaning: Meaning | None = None) -> None:
        """Judge by `policy`, the state of every run and tool held in memory.

        Args:
            policy: With its layers.
            is_fleet: The runs lived side by side: the breakers of their tools are judged as well, and whether a task
                is started again and again. False for recordings that were put together from different days.
            meaning: A model of texts, if there is one.
        """
        self._policy = policy
        self._meaning = meaning
        self._fleet = ToolFleet(policy) if is_fleet else None
        self._tasks = TaskFleet(policy) if is_fleet else None
        self._trees: dict[tuple[str, str], TreeState] = {}
        self._steps = 0

    def feed(self, step: AnyStep) -> list[Verdict]:
        """Return the verdicts on the next step: on its run, then on its tool.

        Raises:
            InvalidEvent: As `watch.observe`.
        """
        self._steps += 1
        key = (step.tenant, root_of(step))
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = TreeState(tenant=key[0], root_run_id=key[1])
        verdicts = []
        calls = tree.calls
        for decision in watch.observe(tree, step, self._policy, offset=self._steps - 1, meaning=self._meaning):
            order = decision.order
            if order is not None and order.type == "nudge":
                ack = Ack(
                    v=1,
                    command_id=order.command_id,
                    tenant=order.tenant,
                    run_id=order.run_id,
                    status="applied",
                    at_ms=step.ts_ms,
                )
                acknowledge(tree, ack)
            if decision.verdict is not None:
                verdicts.append(decision.verdict)
        if self._fleet is not None and type(step) is ToolEnd and tree.calls > calls:
            verdicts += [said.verdict for said in self._fleet.call(step.tenant, step, self._steps - 1)]
        if self._tasks is not None:
            turn = turn_of(tree, step, partition=0, epoch=0, offset=self._steps - 1)
            said = None if turn is None else self._tasks.turn(turn)
            if said is not None:
                verdicts.append(said)
        return verdicts


def first_of(said: Iterable[Said], least: Level) -> Said | None:
    """Return the first verdict of level `least` or above."""
    return next((one for one in said if one.level >= least), None)


def faults(case: Case, said: list[Said]) -> list[str]:
    """Return what is wrong with the verdicts of a case, empty if they are what the case expects."""
    expect = case.expected
    meant = [one for one in said if _is_meant(case, one)]
    others = [one for one in said if not _is_meant(case, one)] if expect.target is not None else said
    found = []
    if expect.max_level is not None:
        highest = level_of(expect.max_level)
        found += [f"{_told(one)} is above {expect.max_level}" for one in others if one.level > highest]
    if expect.min_level is not None:
        by = expect.by_event or len(case.steps)
        if not any(one.level >= level_of(expect.min_level) and one.at_event <= by for one in meant):
            found.append(f"nothing of level {expect.min_level} by event {by}")
    if expect.kill_by_event is not None:
        by = expect.kill_by_event
        if not any(one.level >= Level.KILL and one.at_event <= by for one in meant):
            found.append(f"no kill by event {by}")
    return found


def result_of(case: Case, said: list[Said]) -> CaseResult:
    """Return what came of a case."""
    expect = case.expected
    meant = [one for one in said if _is_meant(case, one)]
    least = max(level_of(expect.min_level), Level.OBSERVE) if expect.min_level is not None else Level.NUDGE
    counts = first_of(meant, least)
    first = counts or next(iter(meant or said), None)
    kill = first_of(meant, Level.KILL)
    decided = first_of(said, Level.NUDGE)
    named = None if counts is None else counts.verdict.pattern
    found = faults(case, said)
    return CaseResult(
        id=case.name,
        kind=case.kind,
        title=case.title,
        ok=not found,
        pattern_ok=None if expect.pattern is None else named == expect.pattern,
        expected=expect,
        got=Got(
            max_level=LEVEL_NAMES[max((one.level for one in said), default=Level.NONE)],
            first=None if first is None else decided_as(first.verdict, first.at_event),
            kill_event=None if kill is None else kill.at_event,
        ),
        faults=found,
        decided_by=None if decided is None else decided.verdict.detector,
        side="" if decided is None else _side(case, decided),
    )


def decided_as(verdict: Verdict, event: int) -> Decided:
    """Return a verdict as it is reported."""
    return Decided(event=event, level=verdict.level, detector=verdict.detector, pattern=verdict.pattern)


def _is_meant(case: Case, one: Said) -> bool:
    target = case.expected.target
    if target is None:
        return True
    verdict = one.verdict
    return target.run_id in (None, verdict.run_id) and target.tenant in (None, verdict.tenant)


def _side(case: Case, one: Said) -> str:
    """Return whether a nudge was due, was a mistake, or may have been either."""
    expect = case.expected
    if _is_meant(case, one) and expect.min_level is not None and level_of(expect.min_level) >= Level.NUDGE:
        return "loop"
    return "healthy" if expect.max_level is not None and level_of(expect.max_level) < Level.NUDGE else "other"


def _told(one: Said) -> str:
    return f"event {one.at_event}: {one.verdict.level} by {one.verdict.detector}"
