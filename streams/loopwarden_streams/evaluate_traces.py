"""Recorded runs with labels: one folder per data set, `steps.jsonl.gz` and `labels.jsonl` in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal
from zlib import crc32

import msgspec
from msgspec import Struct

from loopwarden_models.codec import decode_step
from loopwarden_models.errors import ConfigError, InvalidEvent
from loopwarden_models.events import AnyStep, root_of
from loopwarden_models.patterns import LEVEL_NAMES, Level, LevelName
from loopwarden_streams.evaluate_judge import Decided, Said, decided_as, first_of
from loopwarden_streams.evaluate_problems import BadFileError, Problem
from loopwarden_streams.replay_sources import read_file

STEPS: Final = ("steps.jsonl.gz", "steps.jsonl")
LABELS: Final = "labels.jsonl"
_PROBLEMS_SHOWN: Final = 5  # of one file; a file of another format would name every line


class Label(Struct, frozen=True):
    """What is known of a run.

    Attributes:
        success: It reached its goal; none if nobody knows.
        label: What readers saw; none if nobody read it.
        onset_event_seq: `seq` of the event at which a reader says that it repeats itself.
    """

    run_id: str
    success: bool | None = None
    label: Literal["loop", "maybe", "no_loop"] | None = None
    onset_event_seq: int | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether a nudge would be a false alarm. A run that looped and got there was rightly nudged."""
        return self.label == "no_loop" or (self.success is True and self.label != "loop")

    @property
    def side(self) -> str:
        """As `CaseResult.side`."""
        return "loop" if self.label == "loop" else "healthy" if self.is_healthy else "other"


class RunOutcome(Struct, frozen=True, kw_only=True):
    """What was said of one recorded run.

    Attributes:
        max_level: The strongest level.
        first: The first verdict of `nudge` or above.
        kill_event: `seq` of the step that led to the first verdict of level `kill`.
    """

    run_id: str
    max_level: LevelName
    first: Decided | None
    kill_event: int | None


class Recorded(Struct):
    """The steps of a share of the runs of a file.

    Attributes:
        lines: Line numbers of `steps`, from 1.
        broken: Lines of this share that are no step events. `problems`: the first few of them.
    """

    steps: list[AnyStep]
    lines: list[int]
    broken: int
    problems: list[Problem]


class _Key(Struct):
    tenant: str
    run_id: str
    root_run_id: str | None = None


_decode_key = msgspec.json.Decoder(_Key).decode
_decode_label = msgspec.json.Decoder(Label).decode


def find_folders(paths: list[str]) -> list[Path]:
    """Return the files with steps that `paths` name: of each folder itself, or of each folder in it, by name.

    Raises:
        ConfigError: A path does not exist, or there is no such file.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise ConfigError(f"no such folder: {str(path)!r}")
        inside = [path, *sorted(each for each in path.iterdir() if each.is_dir())]
        files = [file for folder in inside if (file := _steps_in(folder)) is not None]
        if not files:
            raise ConfigError(f"no {STEPS[0]} in {str(path)!r} or in a folder in it: give the folder of the data sets")
        found += files
    return list(dict.fromkeys(found))


def _steps_in(folder: Path) -> Path | None:
    return next((folder / name for name in STEPS if (folder / name).is_file()), None)


def read_labels(folder: Path) -> tuple[dict[str, Label], list[Problem]]:
    """Return the labels of a data set by run, and what is wrong with their file. Lines that are wrong are left out.

    Cost: about 1 µs a run.
    """
    path = folder / LABELS
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        text = f"cannot be read ({error.strerror or error}): its runs count as unlabelled"
        return {}, [Problem(file=str(path), place="", text=text)]
    labels: dict[str, Label] = {}
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            label = _decode_label(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f'{error}; a line is {{"run_id": text, "label": loop, maybe, no_loop or null, "success": ...}}'
            problems.append(Problem(file=str(path), place=f"line {number}", text=text))
            continue
        if label.run_id in labels:
            text = f"run {label.run_id!r} is labelled twice: the first label counts, remove one"
            problems.append(Problem(file=str(path), place=f"line {number}", text=text))
        labels.setdefault(label.run_id, label)
    return labels, cut(problems)


def read_share(path: Path, share: int, shares: int, *, max_bytes: int) -> Recorded:
    """Return the steps of every run tree that belongs to a share, in the order of the file.

    Trees may be mixed in the file: which share a tree belongs to hangs on its name alone.

    Args:
        path: File of steps, plain or gzip.
        share: From 0.
        shares: Into how many the runs are divided.
        max_bytes: A longer line is broken.

    Raises:
        BadFileError: The file cannot be read, or its gzip data is damaged.

    Cost: unpacks the whole file and looks at the key of each line (about 2 µs each), decodes its share. Memory for the
    steps of the share, without what is not judged.
    """
    recorded = Recorded([], [], 0, [])
    for number, line in _lines(path, max_bytes):
        try:
            if shares > 1 and _share_of(line, shares) != share:
                continue
            step = decode_step(line, max_bytes=max_bytes)
        except InvalidEvent as error:
            recorded.broken += 1
            field = f"{error.field}: " if error.field else ""
            text = f"no step event: {error.reason}: {field}{error.detail}; the line is passed over"
            recorded.problems.append(Problem(file=str(path), place=f"line {number}", text=text))
            continue
        if step is not None:
            recorded.steps.append(step)
            recorded.lines.append(number)
    return recorded


def runs_of(steps: list[AnyStep], labels: Mapping[str, Label]) -> dict[str, int]:
    """Return the number of events by run. What a run does that has no label of its own counts for its root."""
    events: dict[str, int] = defaultdict(int)
    for step in steps:
        events[_subject(step.run_id, root_of(step), labels)] += 1
    return dict(events)


def outcomes_of(steps: list[AnyStep], said: list[Said], labels: Mapping[str, Label]) -> list[RunOutcome]:
    """Return what was said, run by run; runs of which nothing was said are left out."""
    by_run: dict[str, list[Said]] = defaultdict(list)
    for one in said:
        by_run[_subject(one.verdict.run_id, one.verdict.root_run_id, labels)].append(one)
    outcomes = []
    for run_id, of_run in by_run.items():
        first, kill = first_of(of_run, Level.NUDGE), first_of(of_run, Level.KILL)
        outcomes.append(
            RunOutcome(
                run_id=run_id,
                max_level=LEVEL_NAMES[max(one.level for one in of_run)],
                first=None if first is None else decided_as(first.verdict, _own_seq(steps, first, run_id)),
                kill_event=None if kill is None else _own_seq(steps, kill, run_id),
            )
        )
    return outcomes


def cut(problems: list[Problem]) -> list[Problem]:
    """Return the first few problems of one file, and in a last one how many more there are."""
    more = len(problems) - _PROBLEMS_SHOWN
    if more <= 0:
        return problems
    last = Problem(file=problems[0].file, place="", text=f"{more:,} more lines are wrong")
    return [*problems[:_PROBLEMS_SHOWN], last]


def _subject(run_id: str, root_run_id: str, labels: Mapping[str, Label]) -> str:
    return run_id if run_id in labels else root_run_id


def _own_seq(steps: list[AnyStep], one: Said, run_id: str) -> int:
    """Return the `seq` that the run had reached when something was said: the step may be a child's."""
    for at in range(one.at_event - 1, -1, -1):
        if steps[at].run_id == run_id:
            return steps[at].seq
    return one.verdict.evidence.last_seq


def _share_of(line: bytes, shares: int) -> int:
    try:
        key = _decode_key(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0  # broken: the first share tells of it
    return crc32(f"{key.tenant}|{key.root_run_id or key.run_id}".encode()) % shares


def _lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    try:
        for block in read_file(str(path), max_bytes=max_bytes, advance=lambda _: None):
            for record in block:
                yield record.offset + 1, record.value or b""
    except ConfigError as error:
        raise BadFileError(path, "", f"{error}; copy it anew", is_unreadable=True) from None
