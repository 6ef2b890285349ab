"""`loopwarden replay`: judge recorded steps offline, exactly as a worker would, and show every verdict."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loopwarden_detectors.ladder import Decision
from loopwarden_models.errors import ConfigError, LoopwardenError
from loopwarden_models.patterns import LEVEL_NAMES
from loopwarden_models.policy import Policy
from loopwarden_streams.meaning import chosen_models, waited_for
from loopwarden_streams.policy_file import load_policy
from loopwarden_streams.replay_core import Broken, Replay, Source, SourceRecord
from loopwarden_streams.replay_report import Earliest, Row, new_console, printable, show, summary_view, verdict_table
from loopwarden_streams.replay_sources import find_files, read_file, total_bytes
from loopwarden_streams.replay_summary import ordered_by
from loopwarden_streams.settings import Settings, add_settings_arguments

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141  # as a shell reports a command whose reader went away

_SETTINGS: Final = (
    "policy",
    "mode",
    "brokers",
    "max_runs",
    "max_step_bytes",
    "max_clock_ahead_ms",
    "security_protocol",
    "sasl_mechanism",
    "sasl_username",
    "ssl_cafile",
    "semantic_model",
    "semantic_confirm_model",
)
_TABLE_ROWS: Final = 100
_BROKEN_SHOWN: Final = 20

Advance = Callable[[int], None]
Blocks = Iterator[list[SourceRecord]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden replay`."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="JSON Lines of step events, plain or gzip; a folder of *.jsonl and *.jsonl.gz; - for standard input",
    )
    parser.add_argument("--topic", help="read this Kafka topic instead, to where it ends now; commits nothing")
    parser.add_argument(
        "--from", dest="from_ms", metavar="TIME", type=_time_ms, help="with --topic: records since TIME"
    )
    parser.add_argument(
        "--to", dest="to_ms", metavar="TIME", type=_time_ms, help="with --topic: ISO 8601 (UTC) or Unix milliseconds"
    )
    parser.add_argument("--tenant", help="judge the runs of this tenant alone")
    parser.add_argument("--run", dest="only_run", metavar="RUN", help="tell of this run, or of the tree with this root")
    parser.add_argument(
        "--level",
        choices=LEVEL_NAMES[1:],
        help="weakest level that is shown (default: nudge; with --json: observe). The summary counts all",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help=f"verdicts shown, 0 = all (default: {_TABLE_ROWS}; with --json: all)"
    )
    parser.add_argument("--json", action="store_true", help="one verdict a line, and last of all the summary")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a record is no step event")
    parser.add_argument(
        "--broken",
        type=int,
        default=_BROKEN_SHOWN,
        metavar="N",
        help="broken records named on standard error, 0 = all (default: %(default)s); all are counted",
    )
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")
    add_settings_arguments(parser, *_SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Replay, and return 0, or 1 with `--strict` and broken records, or 2 if the source could not be read.

    Raises:
        ConfigError: A flag, a setting, the policy or a path is wrong.
        TransportError: The brokers cannot be reached.
    """
    settings = Settings.from_args(args)
    policy = chosen_policy(settings)
    if bool(args.paths) == bool(args.topic):
        raise ConfigError("give files, a folder or - for standard input, or else --topic NAME")
    if not args.topic and (args.from_ms is not None or args.to_ms is not None):
        raise ConfigError("--from and --to select records of a topic: they need --topic")
    for name in ("limit", "broken"):
        if (getattr(args, name) or 0) < 0:
            raise ConfigError(f"--{name} = {getattr(args, name)} must not be negative")
    try:
        return _Session(args, settings, policy).run()
    except BrokenPipeError:
        # Nobody reads on. What is still in the buffer must not raise again when the interpreter flushes it.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED


def chosen_policy(settings: Settings) -> Policy:
    """Return the policy of the settings, with their mode in place of its own if they name one.

    Raises:
        ConfigError: As `load_policy`.
    """
    policy = load_policy(settings.policy or None)
    return policy if settings.mode == "policy" else replace(policy, mode=settings.mode)


class _Session:
    """One call of the command: the source, the judge, and what is shown."""

    def __init__(self, args: argparse.Namespace, settings: Settings, policy: Policy) -> None:
        self._args = args
        self._settings = settings
        self._policy = policy
        self._errors = new_console(stderr=True, is_live=args.progress)
        self._replay = Replay(
            policy,
            tenant=args.tenant,
            run=args.only_run,
            max_runs=settings.max_runs,
            max_bytes=settings.max_step_bytes,
            on_broken=self._name_broken,
            meaning=waited_for(*chosen_models(settings)),
        )
        level = args.level or ("observe" if args.json else "nudge")
        self._level = level
        self._shown_levels = frozenset(LEVEL_NAMES[LEVEL_NAMES.index(level) :])
        self._limit: int = args.limit if args.limit is not None else 0 if args.json else _TABLE_ROWS
        self._rows = Earliest(self._limit)
        self._written = 0
        self._broken = 0
        self._seconds = 0.0

    def run(self) -> int:
        failure: LoopwardenError | None = None
        interrupted = False
        with self._progress() as progress, self._source(progress) as blocks:
            started = time.perf_counter()
            try:
                self._judge(blocks)
            except KeyboardInterrupt:
                interrupted = True
            except LoopwardenError as error:
                failure = error
            self._seconds = time.perf_counter() - started
        self._conclude(interrupted=interrupted)
        if interrupted:
            return EXIT_INTERRUPTED
        if failure is not None:
            raise failure
        return EXIT_BROKEN if self._broken and self._args.strict else 0

    def _judge(self, blocks: Blocks) -> None:
        feed = self._replay.feed
        for block in blocks:
            for record in block:
                decisions = feed(record)
                if decisions:
                    for decision in decisions:
                        self._show(record.source, decision)
            if self._written:
                sys.stdout.buffer.flush()  # whoever reads a pipe that flows wants to see it now
        for source, decision in self._replay.finish():
            self._show(source, decision)

    def _show(self, source: Source, decision: Decision) -> None:
        verdict = decision.verdict
        if verdict is None or verdict.level not in self._shown_levels:
            return
        if self._args.json:
            if not self._limit or self._written < self._limit:
                self._written += 1
                _write_json(verdict)
            return
        order = ordered_by(decision)
        place = source.place(decision.first_offset)
        self._rows.add(Row(verdict, order, self._replay.agent_of(decision), place))

    def _name_broken(self, broken: Broken) -> None:
        self._broken += 1
        most = self._args.broken
        if most and self._broken > most:
            return
        error = broken.error
        field = f" {error.field}:" if error.field else ""
        self._errors.print(
            printable(f"{broken.source.place(broken.offset)}: {error.reason}:{field} {error.detail}"), soft_wrap=True
        )

    def _conclude(self, *, interrupted: bool) -> None:
        more = self._broken - self._args.broken
        if self._args.broken and more > 0:
            self._errors.print(f"{more:,} more broken records: --broken 0 names all", soft_wrap=True)
        summary = self._replay.summary()
        if summary.evicted_runs:
            self._errors.print(
                f"{summary.evicted_runs:,} runs were forgotten for want of room, and verdicts with them: "
                f"raise --max-runs, now {self._settings.max_runs:,}",
                soft_wrap=True,
            )
        if self._args.json:
            _write_json(
                {
                    "summary": {
                        **msgspec.to_builtins(summary),
                        "policy": self._policy.version,
                        "mode": self._policy.mode,
                        "interrupted": interrupted,
                        "seconds": round(self._seconds, 3),
                    }
                }
            )
            sys.stdout.buffer.flush()
            return
        console = new_console()
        plain = not console.encoding.lower().startswith("utf")
        show(
            console,
            verdict_table(self._rows.in_order(), hidden=self._rows.hidden, level=self._level),
            summary_view(summary, seconds=self._seconds, interrupted=interrupted, plain=plain),
        )

    @contextlib.contextmanager
    def _source(self, progress: Progress | None) -> Iterator[Blocks]:
        if self._args.topic:
            # aiokafka and Faust take half a second to import; files need neither.
            from loopwarden_streams.replay_topic import Span, TopicReader  # noqa: PLC0415

            span = Span(self._args.from_ms, self._args.to_ms)
            with TopicReader(self._settings, self._args.topic, span) as reader:
                reader.open()
                yield reader.blocks(_task(progress, reader.total))
        else:
            files = find_files(self._args.paths)
            advance = _task(progress, total_bytes(files))
            yield (
                block
                for file in files
                for block in read_file(file, max_bytes=self._settings.max_step_bytes, advance=advance)
            )

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Progress | None]:
        # Verdicts that scroll by on the same terminal would tear the bar apart.
        is_torn = self._args.json and sys.stdout.isatty() and not self._args.progress
        if is_torn or not self._errors.is_terminal:
            yield None
            return
        amount = MofNCompleteColumn() if self._args.topic else DownloadColumn()
        columns = (TextColumn("replaying"), BarColumn(), amount, TimeRemainingColumn())
        with Progress(*columns, console=self._errors, transient=True, redirect_stdout=False) as progress:
            yield progress


def _task(progress: Progress | None, total: int | None) -> Advance:
    if progress is None:
        return lambda _: None
    task = progress.add_task("replay", total=total)
    return lambda amount: progress.advance(task, amount)


def _write_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
