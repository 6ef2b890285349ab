"""The work of `loopwarden eval`, cut into parts of about equal size and spread over processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from msgspec import Struct

from loopwarden_models.policy import Policy
from loopwarden_streams.evaluate_cases import load
from loopwarden_streams.evaluate_judge import CaseResult, judge, result_of
from loopwarden_streams.evaluate_policy import enforced, without
from loopwarden_streams.evaluate_problems import BadFileError, Problem
from loopwarden_streams.evaluate_traces import (
    Label,
    Recorded,
    RunOutcome,
    cut,
    outcomes_of,
    read_labels,
    read_share,
    runs_of,
)
from loopwarden_streams.meaning import waited_for

_CASES_PER_PART: Final = 8
# Each share of a file unpacks all of it, so there are few; half a megabyte of gzip is a second of work.
_BYTES_PER_SHARE: Final = 524_288
_SHARES_PER_JOB: Final = 4


class CasePart(Struct, frozen=True):
    """Some case files."""

    files: list[Path]

    @property
    def weight(self) -> int:
        """Its share of the progress bar: about what as many bytes of recorded steps take."""
        return len(self.files) * 8_192


class TracePart(Struct, frozen=True):
    """A share of the runs of one file of steps."""

    path: Path
    share: int
    shares: int
    weight: int


Part = CasePart | TracePart


class Order(Struct, frozen=True):
    """What holds for all parts.

    Attributes:
        policy: With mode `enforce`.
        variants: Names of the detectors to switch off, one at a time, `ALL_ON` first.
        max_bytes: A longer line of recorded steps is broken.
        models: The static model of texts and the one that confirms, as in the settings; `("", "")` = none.
    """

    policy: Policy
    variants: list[str]
    max_bytes: int
    models: tuple[str, str] = ("", "")


class PartResult(Struct):
    """What came of a part. Of its two kinds of input one is there.

    Attributes:
        cases: By variant.
        path: File of the runs.
        runs: Their events.
        broken: Lines that are no step events.
        outcomes: By variant, of the runs with a verdict.
    """

    problems: list[Problem]
    cases: dict[str, list[CaseResult]] = {}
    path: Path | None = None
    runs: dict[str, int] = {}
    broken: int = 0
    outcomes: dict[str, list[RunOutcome]] = {}


def parts_of(cases: Sequence[Path], traces: Sequence[Path], jobs: int) -> list[Part]:
    """Return the parts, the largest first, so that no process is left with a large one at the end."""
    parts: list[Part] = [
        CasePart(list(cases[at : at + _CASES_PER_PART])) for at in range(0, len(cases), _CASES_PER_PART)
    ]
    for path in traces:
        size = path.stat().st_size
        wanted = -(-size // _BYTES_PER_SHARE)
        # One process would only unpack the file anew for each share.
        shares = max(1, min(wanted, jobs * _SHARES_PER_JOB)) if jobs > 1 else 1
        parts += [TracePart(path, share, shares, size // shares) for share in range(shares)]
    return sorted(parts, key=lambda part: part.weight, reverse=True)


def work(parts: Sequence[Part], order: Order, jobs: int, advance: Callable[[int], None]) -> Iterator[PartResult]:
    """Yield what came of each part, in the order in which they are done.

    Args:
        parts: As `parts_of` returns them.
        order: What holds for all.
        jobs: Processes; with 1 the work is done in this one.
        advance: Called with the weight of each part that is done.
    """
    if jobs == 1 or len(parts) == 1:
        for part in parts:
            yield do(part, order)
            advance(part.weight)
        return
    # Not forked: the thread that draws the progress bar may hold a lock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(parts)), mp_context=context, initializer=_leave_interrupts) as pool:
        futures = {pool.submit(do, part, order): part for part in parts}
        try:
            for future in as_completed(futures):
                yield future.result()
                advance(futures[future].weight)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def do(part: Part, order: Order) -> PartResult:
    """Do one part."""
    return _do_cases(part, order) if isinstance(part, CasePart) else _do_traces(part, order)


def _leave_interrupts() -> None:
    # Ctrl-C reaches every process of the terminal; the first one says what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _do_cases(part: CasePart, order: Order) -> PartResult:
    result = PartResult([], {variant: [] for variant in order.variants})
    for file in part.files:
        try:
            case = load(file)
            policy = enforced(case.policy(order.policy))
        except BadFileError as error:
            result.problems.append(error.problem)
            continue
        result.problems += case.problems
        for at, variant in enumerate(order.variants):
            failed: list[Problem] = []

            def note(number: int, error: Exception, file: Path = file, failed: list[Problem] = failed) -> None:
                failed.append(Problem(file=str(file), place=f"event {number}", text=_not_judged(error)))

            said = judge(case.steps, without(policy, variant), meaning=waited_for(*order.models), on_fault=note)
            result.cases[variant].append(result_of(case, said))
            if at == 0:
                result.problems += cut(failed)
    return result


def _do_traces(part: TracePart, order: Order) -> PartResult:
    result = PartResult([], path=part.path)
    labels, _ = read_labels(part.path.parent)  # what is wrong with them is told once, by who adds up
    try:
        recorded = read_share(part.path, part.share, part.shares, max_bytes=order.max_bytes)
    except BadFileError as error:
        result.problems.append(error.problem)
        return result
    result.runs = runs_of(recorded.steps, labels)
    for at, variant in enumerate(order.variants):
        result.outcomes[variant] = _outcomes(recorded, labels, part, order, variant, tell=at == 0)
    result.broken = recorded.broken
    result.problems += cut(recorded.problems)
    return result


def _outcomes(
    recorded: Recorded, labels: dict[str, Label], part: TracePart, order: Order, variant: str, *, tell: bool
) -> list[RunOutcome]:
    def note(number: int, error: Exception) -> None:
        if tell:
            place = f"line {recorded.lines[number - 1]}"
            recorded.broken += 1
            recorded.problems.append(Problem(file=str(part.path), place=place, text=_not_judged(error)))

    # Recorded at different times, and each process has a share of them: what their tools have in common means nothing.
    policy = without(order.policy, variant)
    said = judge(recorded.steps, policy, is_fleet=False, meaning=waited_for(*order.models), on_fault=note)
    return outcomes_of(recorded.steps, said, labels)


def _not_judged(error: Exception) -> str:
    return f"could not be judged and is passed over: {error!r}"[:500]
