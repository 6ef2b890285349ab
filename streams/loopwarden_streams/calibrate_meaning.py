"""`loopwarden calibrate --semantic`: thresholds of the rule over meaning, for the models at hand, from cases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loopwarden_detectors.exchanges import Exchange, exchange_of_call, exchange_of_text, is_answer
from loopwarden_detectors.identity import keys_of
from loopwarden_detectors.meaning import MAX_CHARS, Meaning, cosine_percent
from loopwarden_detectors.semantic_repeat import SemanticRepeat, SemanticState, channel_of, takes_news
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_models.codec import MAX_STEP_BYTES
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import AnyStep, ToolEnd, UserInput
from loopwarden_models.patterns import Level
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.semantic_rules import WINDOW
from loopwarden_streams.evaluate_cases import Case, find_cases, load
from loopwarden_streams.evaluate_judge import judge, level_of
from loopwarden_streams.evaluate_traces import find_folders, read_labels, read_share
from loopwarden_streams.meaning import waited_for
from loopwarden_streams.meaning_picture import Likeness, picture
from loopwarden_streams.replay_report import new_console
from loopwarden_streams.settings import Settings

NAME: Final = SemanticRepeat.name
# Of the healthy ones so many may be nudged, as of recorded runs.
MAX_HEALTHY_SHARE: Final = 0.02
MIN_CASES: Final = 10

_SIDES: Final = ("loop", "healthy")
_STRICTEST: Final = 99
_STEP: Final = 4
_SAME: Final = range(75, 99, 2)
_MAYBE: Final = range(50, 80, 5)
_CONFIRMED: Final = range(45, 80, 5)


class Found(NamedTuple):
    """What a choice of thresholds finds: loops and healthy cases that are nudged, of so many."""

    loops: int
    healthy: int


class Recording(NamedTuple):
    """Recorded steps, and the ids of those runs among them that are known to be loops and to be healthy."""

    steps: list[AnyStep]
    loops: frozenset[str]
    healthy: frozenset[str]


class Calibration(NamedTuple):
    """The thresholds, as a part of a policy, with what they and the first model alone find, of so many cases.

    `recorded` is what they find of recorded runs, `recorded_healthy` how many of these are healthy.
    """

    thresholds: dict[str, int]
    found: Found
    alone: Found
    loops: int
    healthy: int
    recorded: Found
    recorded_healthy: int


def calibrate(
    cases: Sequence[Case],
    meaning: Meaning,
    advance: Callable[[int, int], None],
    recordings: Sequence[Recording] = (),
) -> Calibration:
    """Choose thresholds: as many loops as can be nudged where hardly a healthy case is.

    All that is tried is judged by the rule as it is, with what is new in each answer and what moves beside it: the
    percentage alone separates nothing. First the percentage of the first model alone; then, with a second one, from
    where on it is asked, and what it must say. Of equal choices the strictest is taken. It is made stricter still until
    hardly a recorded healthy run is nudged.

    Args:
        cases: Labelled, with the level that each should reach or stay below.
        meaning: The models.
        advance: Called with how much is done and how much there is to do.
        recordings: Recorded runs with labels.

    Raises:
        ConfigError: Too few of a kind.

    Cost: about 0.1 s for 100 cases and choice, the vectors of all texts once, and 30 µs a recorded event.
    """
    loops = [case for case in cases if is_loop(case)]
    healthy = [case for case in cases if not is_loop(case)]
    if min(len(loops), len(healthy)) < MIN_CASES:
        raise ConfigError(
            f"{len(loops)} cases expect a nudge or more and {len(healthy)} expect less: at least {MIN_CASES} of each "
            f"are needed to choose between them (docs/semantic.md)"
        )
    choices = [{"same_percent": same, "maybe_percent": same} for same in reversed(_SAME)]
    grid = [(maybe, least) for maybe in reversed(_MAYBE) for least in reversed(_CONFIRMED)] if meaning.confirms else []
    total, done = len(choices) + len(grid), 0

    def tried(choice: dict[str, int]) -> Found:
        nonlocal done
        done += 1
        advance(done, total)
        policy = _policy_of(choice)
        return Found(_nudged(loops, policy, meaning), _nudged(healthy, policy, meaning))

    most = int(MAX_HEALTHY_SHARE * len(healthy))
    alone = _best(choices, tried, most)
    same = alone[0]["same_percent"]
    more = [
        {
            "same_percent": same,
            "maybe_percent": min(maybe, same),
            "confirmed_percent": least,
            "confirmed_text_percent": least,
        }
        for maybe, least in grid
    ]
    chosen, found = _best(more, tried, most) if more else alone
    runs = sum(len(one.healthy) for one in recordings)
    recorded = _recorded(recordings, chosen, meaning)
    while recorded.healthy > MAX_HEALTHY_SHARE * runs and chosen["same_percent"] < _STRICTEST:
        chosen = _stricter(chosen)
        found, recorded = tried(chosen), _recorded(recordings, chosen, meaning)
    return Calibration(chosen, found, alone[1], len(loops), len(healthy), recorded, runs)


def _stricter(choice: dict[str, int]) -> dict[str, int]:
    return {name: min(_STRICTEST, value + _STEP) for name, value in choice.items()}


def _recorded(recordings: Iterable[Recording], choice: dict[str, int], meaning: Meaning) -> Found:
    policy = _policy_of(choice)
    loops = healthy = 0
    for one in recordings:
        said = judge(one.steps, policy, is_fleet=False, meaning=meaning, on_fault=lambda _number, _error: None)
        nudged = {each.verdict.run_id for each in said if each.level >= Level.NUDGE}
        loops += len(nudged & one.loops)
        healthy += len(nudged & one.healthy)
    return Found(loops, healthy)


def read_recordings(paths: list[str]) -> list[Recording]:
    """Return the recorded runs of data sets, with what is known of them.

    Raises:
        ConfigError: A path is wrong, or a file cannot be read.
    """
    found = []
    for path in find_folders(paths) if paths else ():
        labels, _ = read_labels(path.parent)
        sides = {side: frozenset(run for run, label in labels.items() if label.side == side) for side in _SIDES}
        steps = read_share(path, 0, 1, max_bytes=MAX_STEP_BYTES).steps
        found.append(Recording(steps, sides["loop"], sides["healthy"]))
    return found


def is_loop(case: Case) -> bool:
    """Return whether a case should be nudged at least."""
    least = case.expected.min_level
    return least is not None and level_of(least) >= Level.NUDGE


def likenesses(cases: Iterable[Case], meaning: Meaning) -> Iterator[Likeness]:
    """Yield, for each exchange but the first of its kind, how like it is to those before it: what a picture shows."""
    for case in cases:
        state = SemanticState()
        known: dict[int, list[tuple[Exchange, bytes]]] = {}
        for step in case.steps:
            if type(step) is UserInput:
                state, known = SemanticState(), {}
            said = _exchange(step)
            if said is None or not is_answer(said.answer):
                continue
            is_news = takes_news(state, channel_of(state, said.key), said.question, said.answer, DEFAULT_POLICY)
            vector = meaning.vector(said.answer[:MAX_CHARS])
            meaning.ask(said.answer_key, said.answer[:MAX_CHARS])
            before = known.setdefault(said.key, [])
            if before:
                like, one = max(
                    ((cosine_percent(vector, other), one) for one, other in before[1 - WINDOW :]),
                    key=lambda own: own[0],
                )
                yield Likeness(is_loop(case), is_news, like, meaning.confirmed_percent(said.answer_key, one.answer_key))
            before.append((said, vector))


def _exchange(step: AnyStep) -> Exchange | None:
    if isinstance(step, ToolEnd):
        return exchange_of_call(step, keys_of(step)[1], 0)
    return exchange_of_text(step)


def _policy_of(choice: dict[str, int]) -> Policy:
    off = {name: {"mode": "off"} for name in RULES if name != NAME}
    return Policy.from_builtins({"mode": "enforce", **off, NAME: choice})


def _nudged(cases: Iterable[Case], policy: Policy, meaning: Meaning) -> int:
    return sum(
        any(said.level >= Level.NUDGE for said in judge(case.steps, policy, is_fleet=False, meaning=meaning))
        for case in cases
    )


def _best(
    choices: Sequence[dict[str, int]], tried: Callable[[dict[str, int]], Found], most: int
) -> tuple[dict[str, int], Found]:
    """Return the choice that finds most loops with at most so many healthy cases, the strictest of equals."""
    found = [(choice, tried(choice)) for choice in choices]
    allowed = [one for one in found if one[1].healthy <= most] or [min(found, key=lambda one: one[1].healthy)]
    return max(allowed, key=lambda one: one[1].loops)


def run(args: argparse.Namespace) -> int:
    """Print the thresholds as a part of a policy, and return 0.

    Raises:
        ConfigError: No model, a path is wrong, or too few cases of a kind.
    """
    settings = Settings.from_args(args)
    cases = [load(path) for path in find_cases(args.paths)]
    meaning = waited_for(settings.semantic_model, settings.semantic_confirm_model)
    if meaning is None:
        raise ConfigError(
            "there is no model of texts: pip install 'loopwarden[embeddings]', and name one with --semantic-model"
        )
    recordings = read_recordings(args.traces)
    console = new_console(stderr=True, is_live=args.progress)
    columns = (TextColumn("trying thresholds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("calibrate", total=None)
        found = calibrate(
            cases, meaning, lambda done, total: progress.update(task, completed=done, total=total), recordings
        )
    if args.picture:
        _draw(Path(args.picture), cases, found, meaning)
    told = msgspec.json.encode(_as_data(found, meaning)).decode() + "\n" if args.json else _as_policy(found, meaning)
    sys.stdout.write(told)
    return 0


def _draw(path: Path, cases: Sequence[Case], found: Calibration, meaning: Meaning) -> None:
    try:
        path.write_text(picture([*likenesses(cases, meaning)], found.thresholds, meaning.name), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--picture {path}: {error.strerror}") from error


def _as_policy(found: Calibration, meaning: Meaning) -> str:
    told = (
        f"{found.found.loops} of {found.loops} loops and {found.found.healthy} of {found.healthy} healthy cases are "
        f"nudged; by the first model alone {found.alone.loops} and {found.alone.healthy}."
    )
    recorded = f"of {found.recorded_healthy:,} recorded healthy runs {found.recorded.healthy:,} are nudged"
    lines = [
        f"# {meaning.name}",
        f"# {told}",
        *([f"# {recorded}, and {found.recorded.loops:,} loops"] if found.recorded_healthy else []),
        f"{NAME}:",
        *(f"  {name}: {value}" for name, value in found.thresholds.items()),
    ]
    return "\n".join(lines) + "\n"


def _as_data(found: Calibration, meaning: Meaning) -> dict[str, Any]:
    return {
        "model": meaning.name,
        "thresholds": found.thresholds,
        "cases": {"loops": found.loops, "healthy": found.healthy},
        "nudged": found.found._asdict(),
        "nudged_by_first_model_alone": found.alone._asdict(),
        "recorded": {"healthy": found.recorded_healthy, "nudged": found.recorded._asdict()},
    }
