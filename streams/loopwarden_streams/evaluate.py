"""`loopwarden eval`: how good is a policy? Judges cases and labelled recorded runs, and counts what is right."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from loopwarden_detectors.tool_fleet import RULES
from loopwarden_models.errors import ConfigError
from loopwarden_streams.evaluate_cases import find_cases
from loopwarden_streams.evaluate_judge import CaseResult
from loopwarden_streams.evaluate_policy import ALL_ON, enforced
from loopwarden_streams.evaluate_problems import Problem
from loopwarden_streams.evaluate_report import evaluation_view
from loopwarden_streams.evaluate_score import (
    Evaluation,
    Folder,
    score_ablation,
    score_case,
    score_detectors,
    score_folder,
)
from loopwarden_streams.evaluate_traces import LABELS, find_folders, read_labels
from loopwarden_streams.evaluate_work import Order, parts_of, work
from loopwarden_streams.meaning import chosen_models
from loopwarden_streams.policy_file import load_policy
from loopwarden_streams.replay_report import new_console, printable, show
from loopwarden_streams.settings import Settings, add_settings_arguments

EXIT_WRONG: Final = 1
EXIT_UNREADABLE: Final = 2
EXIT_PIPE_CLOSED: Final = 141  # as a shell reports a command whose reader went away

_RUNS_NAMED: Final = 3
_NUMBER: Final = re.compile(r"([0-9]+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden eval`."""
    parser.add_argument(
        "--cases", action="append", default=[], metavar="DIR", help="folder of case files (*.yaml), or one such file"
    )
    parser.add_argument(
        "--traces",
        action="append",
        default=[],
        metavar="DIR",
        help="folder of data sets, each a folder with steps.jsonl.gz and labels.jsonl; or one data set",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object (docs/eval.md)")
    parser.add_argument("--ablate", action="store_true", help="judge again with one detector at a time switched off")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one for each CPU)"
    )
    parser.add_argument("--verbose", action="store_true", help="tell of right cases, and of every wrong run, too")
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 if a case is not as expected or a file is wrong"
    )
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")
    add_settings_arguments(parser, "policy", "max_step_bytes", "semantic_model", "semantic_confirm_model")


def run(args: argparse.Namespace) -> int:
    """Evaluate, and return 0, or 1 with `--strict` and something wrong, or 2 if a file of steps could not be read.

    Raises:
        ConfigError: A flag, a setting, the policy or a path is wrong.
    """
    settings = Settings.from_args(args)
    if not args.cases and not args.traces:
        raise ConfigError("give --cases DIR, --traces DIR or both")
    if args.jobs < 1:
        raise ConfigError(f"--jobs = {args.jobs} must be at least 1")
    policy = enforced(load_policy(settings.policy or None))
    variants = [ALL_ON, *RULES] if args.ablate else [ALL_ON]
    order = Order(policy, variants, settings.max_step_bytes, chosen_models(settings))
    cases, traces = find_cases(args.cases), find_folders(args.traces)
    errors = new_console(stderr=True, is_live=args.progress)
    started = time.perf_counter()
    with _progress(errors.is_terminal) as advance:
        evaluation = evaluate(cases, traces, order, jobs=args.jobs, advance=advance)
    for problem in evaluation.errors:
        errors.print(printable(str(problem)), soft_wrap=True)
    try:
        if args.json:
            sys.stdout.buffer.write(msgspec.json.encode(evaluation) + b"\n")
            sys.stdout.buffer.flush()
        else:
            seconds = time.perf_counter() - started
            show(new_console(), evaluation_view(evaluation, seconds=seconds, is_verbose=args.verbose))
    except BrokenPipeError:
        # Nobody reads on. What is still in the buffer must not raise again when the interpreter flushes it.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    if any(problem.is_unreadable for problem in evaluation.errors):
        return EXIT_UNREADABLE
    is_wrong = bool(evaluation.errors) or not all(case.ok for case in evaluation.cases)
    return EXIT_WRONG if args.strict and is_wrong else 0


def evaluate(
    cases: Sequence[Path],
    traces: Sequence[Path],
    order: Order,
    *,
    jobs: int = 1,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Judge case files and files of recorded steps, and return the figures: the same ones for every `jobs`.

    Args:
        cases: Case files.
        traces: Files of recorded steps, each with its labels beside it.
        order: Policy, and the detectors to switch off.
        jobs: Processes.
        advance: Called with how much is done and how much there is to do.

    Cost: about 20 µs for each event and variant.
    """
    problems: list[Problem] = []
    results: dict[str, list[CaseResult]] = {}
    folders: dict[Path, Folder] = {}
    for path in traces:
        labels, wrong = read_labels(path.parent)
        folders[path] = Folder(labels)
        problems += wrong
    parts = parts_of(cases, traces, jobs)
    total, done = sum(part.weight for part in parts), 0

    def move(weight: int) -> None:
        nonlocal done
        done += weight
        advance(done, total)

    advance(0, total)
    for result in work(parts, order, jobs, move):
        problems += result.problems
        for variant, told in result.cases.items():
            results.setdefault(variant, []).extend(told)
        if result.path is not None:
            folders[result.path].add(result.runs, result.broken, result.outcomes)
    unreadable = {problem.file for problem in problems if problem.is_unreadable}
    read = {path: folder for path, folder in folders.items() if str(path) not in unreadable}
    for path, folder in read.items():
        problems += _without_events(path, folder)
    for told in results.values():
        told.sort(key=lambda case: case.id)
    names = _names(list(read))
    return Evaluation(
        policy=order.policy.version,
        cases=[score_case(result) for result in results.get(ALL_ON, [])],
        traces={names[path]: score_folder(folder) for path, folder in read.items()},
        detectors=score_detectors(results.get(ALL_ON, []), read.values()),
        errors=_in_order(problems),
        ablation=score_ablation(results, list(read.values())) if len(order.variants) > 1 else UNSET,
    )


def _without_events(path: Path, folder: Folder) -> list[Problem]:
    absent = [run_id for run_id in folder.labels if run_id not in folder.runs]
    if not absent:
        return []
    named = ", ".join(absent[:_RUNS_NAMED])
    text = f"{len(absent):,} labelled runs have no events ({named}): they are not counted; is {path.name} complete?"
    return [Problem(file=str(path.parent / LABELS), place="", text=text)]


def _in_order(problems: list[Problem]) -> list[Problem]:
    # Which process is done first must not show; and of an unreadable file every share says the same.
    unique = {(problem.file, problem.place, problem.text): problem for problem in problems}
    return [unique[key] for key in sorted(unique, key=_natural)]


def _natural(key: tuple[str, ...]) -> list[tuple[str | int, ...]]:
    """Return a sort key by which line 2 comes before line 10."""
    return [tuple(int(part) if at % 2 else part for at, part in enumerate(_NUMBER.split(text))) for text in key]


def _names(paths: list[Path]) -> dict[Path, str]:
    """Return the folder's name for each file of steps, or its whole path where two have the same name."""
    short = [path.resolve().parent.name for path in paths]
    return {path: name if short.count(name) == 1 else str(path.parent) for path, name in zip(paths, short, strict=True)}


@contextlib.contextmanager
def _progress(is_shown: bool) -> Iterator[Callable[[int, int], None]]:
    if not is_shown:
        yield lambda _done, _total: None
        return
    columns = (TextColumn("judging"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = new_console(stderr=True, is_live=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("eval")
        yield lambda done, total: progress.update(task, completed=done, total=total)
