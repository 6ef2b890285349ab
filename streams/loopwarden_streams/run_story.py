"""One run in full: how it stands, what binds it, what was said of it, and what was ordered and answered."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
from aiokafka import ConsumerRecord
from msgspec import Struct, field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message, decode_said
from loopwarden_models.commands import Command
from loopwarden_models.control_state import RunRecord
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.operator_actions import OperatorAction
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.durations import shown
from loopwarden_streams.operator_desk import COMMANDS, VERDICTS
from loopwarden_streams.run_rows import RunRow
from loopwarden_streams.runs_view import runs_view
from loopwarden_streams.settings import Settings
from loopwarden_streams.topic_tail import tail

EXIT_UNKNOWN = 1


class Story(Struct, kw_only=True):
    """What was found of one run; `run` is `None` if no worker knows it."""

    tenant: str
    run_id: str
    run: RunRow | None = None
    record: RunRecord | None = None
    enforcement: str = "enforce"
    verdicts: list[Verdict] = field(default_factory=list)
    actions: list[OperatorAction] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)

    @property
    def is_unknown(self) -> bool:
        """Whether nothing at all is known of it."""
        return not (self.run or self.record or self.verdicts or self.actions or self.commands or self.acks)


async def show(settings: Settings, tenant: str, run_id: str, *, since_ms: int, as_json: bool) -> int:
    """Print everything that is known of a run: state, record, verdicts, people's orders, commands and answers."""
    story = await read_story(settings, tenant, run_id, since_ms=since_ms)
    if as_json:
        print(msgspec.json.encode(story).decode())
    else:
        _print(story, Console(highlight=False))
    return EXIT_UNKNOWN if story.is_unknown else 0


async def read_story(settings: Settings, tenant: str, run_id: str, *, since_ms: int) -> Story:
    """Read the topics.

    Raises:
        ConfigError: A topic does not exist.
        TransportError: The brokers cannot be reached.
    """
    story = Story(tenant=tenant, run_id=run_id)
    async with runs_view(settings, verdicts_since_ms=since_ms) as view:
        story.run = next((row for row in view.rows(tenant) if row.run_id == run_id), None)
        said = view.standing.run(tenant, run_id)
        story.record = None if said is None else said.record
        story.enforcement = "enforce" if view.standing.is_enforcing else "observe_only"
    topics = {settings.topic(name): since_ms for name in (VERDICTS, COMMANDS, "acks")}
    async with tail(settings, topics) as reader:
        for record in await reader.to_end():
            try:
                _take(story, record, settings)
            except InvalidEvent:
                continue  # none of the contract: not of this run
    story.verdicts.sort(key=lambda verdict: verdict.at_ms)
    story.acks.sort(key=lambda ack: ack.at_ms)
    return story


def _take(story: Story, record: ConsumerRecord[bytes, bytes], settings: Settings) -> None:
    own = (story.tenant, story.run_id)
    if record.topic == settings.topic("acks"):
        ack = decode_message(record.value, Ack)
        if (ack.tenant, ack.run_id) == own:
            story.acks.append(ack)
    elif record.topic == settings.topic(COMMANDS):
        command = decode_message(record.value, Command)
        if (command.tenant, command.run_id) == own:
            story.commands.append(command)
    else:
        said = decode_said(record.value)
        if isinstance(said, Verdict) and (said.tenant, said.run_id) == own:
            story.verdicts.append(said)
        elif isinstance(said, OperatorAction) and (said.tenant, said.run_id) == own:
            story.actions.append(said)


def _print(story: Story, console: Console) -> None:
    if story.is_unknown:
        console.print(f"nothing is known of run {escape(story.run_id)} of {escape(story.tenant)}")
        return
    console.print(_head(story))
    if story.enforcement != "enforce":
        console.print("[red]enforcement is off[/]: nothing is stopped")
    lines: list[tuple[int, str, str]] = []
    policy: str | None = None
    for verdict in story.verdicts:
        if verdict.policy != policy:
            policy = verdict.policy
            lines.append((verdict.at_ms, "policy", escape(policy or "not named")))
        lines.append((verdict.at_ms, "said", _verdict(verdict)))
    lines += [(action.at_ms, "ordered", _action(action)) for action in story.actions]
    lines += [(one.issued_at_ms, "command", _command(one)) for one in story.commands]
    lines += [(ack.at_ms, "answered", _ack(ack)) for ack in story.acks]
    table = Table(box=None, show_header=False, pad_edge=False)
    for at_ms, what, text in sorted(lines, key=lambda line: line[0]):
        table.add_row(_time(at_ms), what, text)
    console.print(table)


def _head(story: Story) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("run", escape(f"{story.tenant} {story.run_id}"))
    row = story.run
    now_ms = time.time() * 1000
    if row is None:
        table.add_row("state", "no worker knows it: not begun, or over for long")
    else:
        table.add_row("state", f"{row.status}, incarnation {escape(row.incarnation or 'not named')}")
        table.add_row("agent", escape(row.agent or "not named") + (", attended" if row.attended else ""))
        if row.root_run_id != row.run_id:
            table.add_row("tree of", escape(row.root_run_id))
        spent = "" if row.tokens is None else f", {row.tokens:,} tokens, ${row.cost_usd or 0:.2f}"
        table.add_row("spent", f"{row.steps:,} steps{spent}")
        table.add_row(
            "time", f"began {shown(now_ms - row.started_ms)} ago, last step {shown(now_ms - row.last_step_ms)} ago"
        )
        table.add_row("bound by", escape("; ".join(row.bound_by)) or "nothing")
    if story.record is not None:
        table.add_row("record", escape(_record(story.record)))
    return table


def _record(record: RunRecord) -> str:
    until = "" if record.expires_at_ms is None else f" until {_time(record.expires_at_ms)}"
    why = "" if record.reason is None or not record.reason.note else f": {record.reason.note}"
    return f"{record.state} by {record.writer}, incarnation {record.incarnation}{until}{why}"


def _verdict(verdict: Verdict) -> str:
    tools = f" ({', '.join(verdict.evidence.tools)})" if verdict.evidence.tools else ""
    text = f"{verdict.pattern} x{verdict.evidence.count}{tools} by {verdict.detector}, mode {verdict.mode}"
    note = f": {verdict.evidence.note}" if verdict.evidence.note else ""
    return f"[bold]{verdict.level}[/] {escape(text + note)}"


def _action(action: OperatorAction) -> str:
    return escape(f"{action.action} by {action.who}: {action.why or 'no reason given'}")


def _command(command: Command) -> str:
    return escape(f"{command.type} by the {command.writer}, {command.scope}, id {command.command_id}")


def _ack(ack: Ack) -> str:
    took = "" if ack.latency_ms is None else f" after {shown(ack.latency_ms)}"
    detail = f": {ack.detail}" if ack.detail else ""
    return escape(f"{ack.status}{took} at {ack.runtime_id or 'an unnamed runtime'}{detail}")


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
