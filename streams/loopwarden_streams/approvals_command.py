"""`loopwarden approvals`: what people are asked, and their answers."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from loopwarden_models.errors import ConfigError
from loopwarden_models.questions import MAX_INSTRUCTION_CHARS
from loopwarden_streams.answering import EXIT_NOT_DONE, answer
from loopwarden_streams.durations import parse_ms, shown
from loopwarden_streams.kafka_client import record_at
from loopwarden_streams.metric_questions import QuestionStatus
from loopwarden_streams.operator_desk import CONNECTION, STATE, add_person_arguments, person_of
from loopwarden_streams.operator_orders import check_names
from loopwarden_streams.question_book import Entry, QuestionBook
from loopwarden_streams.question_rows import row_of
from loopwarden_streams.settings import Settings, add_settings_arguments
from loopwarden_streams.topic_tail import tail

_EVERY_S: Final = 2.0
_SHOWN_ID: Final = 10
_COLOURS: Final[dict[QuestionStatus, str]] = {
    "open": "yellow",
    "answered": "cyan",
    "approved": "green",
    "rejected": "red",
}
_LISTED: Final[dict[str, frozenset[str]]] = {
    "open": frozenset({"open", "answered"}),
    "closed": frozenset({"approved", "rejected", "expired"}),
    "all": frozenset({"open", "answered", "approved", "rejected", "expired"}),
}
_HELP: Final = {
    "approve": "let the call be made, or the paused run go on",
    "reject": "refuse the call, or end the paused run",
    "instruct": "refuse the call and tell the model what to do instead, or let the paused run go on with these words",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden approvals`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the questions that wait, or have ended")
    listing.add_argument("--tenant", default="", help="only those of this tenant")
    listing.add_argument(
        "--state", choices=tuple(_LISTED), default="open", help="only those that stand so (default: open)"
    )
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    listing.add_argument("--watch", action="store_true", help=f"go on: look every {_EVERY_S:g} s until interrupted")
    add_settings_arguments(listing, *CONNECTION)
    look = actions.add_parser("show", help="one question in full: the words, the arguments, the evidence")
    _add_names(look)
    look.add_argument("--json", action="store_true", help="one JSON object instead of a page")
    add_settings_arguments(look, *CONNECTION)
    for action, text in _HELP.items():
        one = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.")
        _add_names(one)
        if action == "instruct":
            one.add_argument("--say", required=True, metavar="TEXT", help="what the model reads, where that is allowed")
        one.add_argument(
            "--wait",
            type=parse_ms,
            default=parse_ms("30s"),
            metavar="SPAN",
            help="how long to wait until the run has taken it up; 0: not at all (default: 30s)",
        )
        one.add_argument("--json", action="store_true", help="one JSON object a line: the answer, and what came of it")
        add_person_arguments(one, needs_why=False)


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help="who is asked")
    parser.add_argument("question", metavar="QUESTION", help="its id, or so much of it that it is the only one")


def run(args: argparse.Namespace) -> int:
    """List, look or answer. Returns 0 if the answer was taken up, or --wait is 0; 1 if not, or nothing was found."""
    settings = Settings.from_args(args)
    if args.action == "list":
        return asyncio.run(_list(args, settings))
    if args.action == "show":
        return asyncio.run(_show(args, settings))
    person = person_of(args)
    check_names(args.tenant, who=person.who, why=person.why)
    instruction = getattr(args, "say", None)
    if instruction is not None and not 0 < len(instruction) <= MAX_INSTRUCTION_CHARS:
        raise ConfigError(f"--say has {len(instruction)} characters: 1 to {MAX_INSTRUCTION_CHARS} fit")
    return asyncio.run(
        answer(
            settings,
            person,
            args.tenant,
            args.question,
            args.action,
            instruction=instruction,
            wait_ms=args.wait,
            as_json=args.json,
        )
    )


async def _list(args: argparse.Namespace, settings: Settings) -> int:
    book = QuestionBook()
    async with tail(settings, {settings.topic(STATE): "beginning"}) as reader:
        for record in await reader.to_end():
            book.put(record.key, record.value, record.timestamp)
        if args.json:
            told: dict[str, dict[str, Any]] = {}
            while True:
                _print_news(book, args, told)
                if not args.watch:
                    return 0
                for record in await reader.next(_EVERY_S):
                    book.put(record.key, record.value, record.timestamp)
        if not args.watch:
            Console().print(_picture(book, args))
            return 0
        with Live(_picture(book, args), auto_refresh=False, screen=Console().is_terminal) as live:
            while True:
                for record in await reader.next(_EVERY_S):
                    book.put(record.key, record.value, record.timestamp)
                live.update(_picture(book, args), refresh=True)


def _print_news(book: QuestionBook, args: argparse.Namespace, told: dict[str, dict[str, Any]]) -> None:
    now_ms = int(time.time() * 1000)
    for entry in book.entries(args.tenant):
        row = row_of(entry, now_ms)
        name = f"{entry.tenant}|{entry.question_id}"
        # What was listed and stands otherwise now is said once more: whoever follows the lines has to know.
        if (row["status"] in _LISTED[args.state] or name in told) and told.get(name) != row:
            told[name] = row
            print(msgspec.json.encode(row).decode(), flush=args.watch)


def _picture(book: QuestionBook, args: argparse.Namespace) -> Table:
    now_ms = int(time.time() * 1000)
    table = Table(box=None, pad_edge=False)
    for column in ("tenant", "question", "state", "asked", "left", "run", "agent", "what"):
        table.add_column(column, no_wrap=column != "what")
    for entry in book.entries(args.tenant):
        status = entry.status(now_ms)
        question = entry.question
        if status not in _LISTED[args.state] or question is None:
            continue
        expires_ms = question.expires_at_ms
        table.add_row(
            escape(entry.tenant),
            entry.question_id[:_SHOWN_ID],
            f"[{_COLOURS.get(status, 'dim')}]{status}[/]",
            "" if question.opened_at_ms is None else shown(now_ms - question.opened_at_ms),
            "" if expires_ms is None else shown(max(0, expires_ms - now_ms)),
            escape(question.run_id),
            escape(question.agent or ""),
            escape(_what(entry)),
        )
    return table


def _what(entry: Entry) -> str:
    question = entry.question
    if question is None:
        return ""
    if question.kind != "pause":
        return f"may it call {question.tool}?"
    reason = question.reason
    why = "" if reason is None else f": {reason.pattern} x{reason.count}" + f" ({reason.tool})" * bool(reason.tool)
    return f"paused{why}; may it go on?"


async def _show(args: argparse.Namespace, settings: Settings) -> int:
    book = QuestionBook()
    async with tail(settings, {settings.topic(STATE): "beginning"}) as reader:
        for record in await reader.to_end():
            book.put(record.key, record.value, record.timestamp)
    found = book.find(args.tenant, args.question)
    if len(found) != 1:
        Console(stderr=True).print(_missing(args.tenant, args.question, len(found)))
        return EXIT_NOT_DONE
    (entry,) = found
    row = row_of(entry, int(time.time() * 1000))
    source = None if entry.question is None else entry.question.source
    if entry.question is not None and entry.question.kind == "action" and entry.question.state == "open" and source:
        value = await record_at(settings, source.topic, source.partition, source.offsets[0])
        step = {} if value is None else msgspec.json.decode(value)
        row |= {name: step[name] for name in ("question", "args") if name in step}
    if args.json:
        print(msgspec.json.encode(row).decode())
        return 0
    console = Console(highlight=False, soft_wrap=True)
    console.print(escape(_what(entry)))
    for name, value in row.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        console.print(f"  {name:<14} {escape(text)}")
    return 0


def _missing(tenant: str, question: str, n: int) -> str:
    if n:
        return f"{n} questions of {tenant} begin with {question!r}: write more of it"
    return f"no question of {tenant} begins with {question!r}: see `loopwarden approvals list --state all`"
