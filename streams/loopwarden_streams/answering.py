"""A person's answer to a question: audited, written, and waited for until the run has taken it up."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

import msgspec

from loopwarden_models.control_state import run_record_key
from loopwarden_models.errors import ConfigError
from loopwarden_models.operator_actions import OperatorAction
from loopwarden_models.questions import AnswerDecision, AnswerRecord, QuestionRecord, answer_key
from loopwarden_streams.operator_desk import STATE, OperatorDesk, desk
from loopwarden_streams.operator_orders import OrderType, Person, next_version, order_run
from loopwarden_streams.order_answers import Answers
from loopwarden_streams.question_book import Entry, QuestionBook
from loopwarden_streams.run_command import Told, teller, wait_for_answers
from loopwarden_streams.settings import Settings
from loopwarden_streams.topic_tail import Start, TopicTail, tail

EXIT_NOT_DONE: Final = 1
_DECISIONS: Final[dict[str, AnswerDecision]] = {
    "approve": "approved",
    "reject": "rejected",
    "instruct": "instructed",
}
_POLL_S: Final = 0.2


async def answer(
    settings: Settings,
    person: Person,
    tenant: str,
    question: str,
    word: str,
    *,
    instruction: str | None,
    wait_ms: int,
    as_json: bool,
) -> int:
    """Answer a question.

    Args:
        settings: How to reach the brokers, and the person's key.
        person: Who answers, and why.
        tenant: Who is asked.
        question: Its id, or the beginning of it.
        word: `approve`, `reject` or `instruct`.
        instruction: Words for the model.
        wait_ms: How long to wait until the run has taken it up.
        as_json: Print objects instead of lines.

    Returns:
        0 if it was taken up, or nothing was to be waited for; 1 if not, or it came too late.

    Raises:
        ConfigError: There is no such question, or more than one.
        TransportError: The brokers cannot be reached.
    """
    tell = teller(as_json=as_json)
    starts: dict[str, Start] = {settings.topic(STATE): "end", settings.topic("acks"): "end"}
    # First, so that nothing is missed between what the desk reads and what follows.
    async with tail(settings, starts) as reader, desk(settings, person) as own:
        entry = _one(own.questions, tenant, question)
        asked = entry.question
        status = entry.status(int(time.time() * 1000))
        if asked is None or status in {"approved", "rejected", "expired"}:
            tell("outcome", {"outcome": status, "question_id": entry.question_id}, _late(entry, status))
            return EXIT_NOT_DONE
        if asked.kind == "pause":
            return await _answer_pause(own, reader, entry, asked, word, instruction, wait_ms, tell)
        return await _answer_action(own, reader, entry, asked, word, instruction, wait_ms, tell)


def _one(book: QuestionBook, tenant: str, question: str) -> Entry:
    found = book.find(tenant, question)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} questions of {tenant} begin with {question!r}: write more of the id")
    raise ConfigError(f"no question of {tenant} begins with {question!r}: see `loopwarden approvals list`")


async def _answer_action(
    own: OperatorDesk,
    reader: TopicTail,
    entry: Entry,
    asked: QuestionRecord,
    word: str,
    instruction: str | None,
    wait_ms: int,
    tell: Told,
) -> int:
    decision, now_ms = _DECISIONS[word], int(time.time() * 1000)
    key = answer_key(entry.tenant, entry.question_id)
    before = entry.answer
    record = AnswerRecord(
        v=1,
        key=key,
        version=next_version(None if before is None else before.version, now_ms),
        decision=decision,
        at_ms=now_ms,
        expires_at_ms=asked.expires_at_ms,
        action_hash=asked.action_hash,
        instruction=instruction,
        reason=own.person.reason(asked.tool),
    )
    action = OperatorAction(
        v=1,
        type="operator_action",
        action_id=uuid.uuid4().hex,
        action="answer_question",
        at_ms=now_ms,
        who=own.person.who,
        why=own.person.why,
        key=key,
        state=decision,
        before=None if before is None else before.decision,
        version=record.version,
        tenant=entry.tenant,
        run_id=asked.run_id,
        root_run_id=asked.root_run_id,
        incarnation=asked.incarnation,
        tool=asked.tool,
        expires_at_ms=asked.expires_at_ms,
    )
    await own.set_state(action, record, key)
    name = f"{asked.tool} of {entry.tenant} {asked.run_id}"
    tell("answered", {"question_id": entry.question_id, "decision": decision}, f"{decision}: {name}")
    if not wait_ms:
        return 0
    outcome = await _taken_up(own, reader, entry, wait_ms)
    taken = {"approved": "approved", "rejected": "rejected", "instructed": "rejected"}[decision]
    lines = {
        "open": "not taken up in time: the answer stands until the question expires, for whoever takes the run up",
        "expired": "too late: the run has ended, or its time to wait was over; nothing was done",
        taken: f"confirmed: the run has taken it up, {name} was {'let through' if taken == 'approved' else 'refused'}",
    }
    line = lines.get(outcome, f"not done: another answer was taken up first, the call was {outcome}")
    tell("outcome", {"outcome": outcome, "question_id": entry.question_id}, line)
    return 0 if outcome == taken else EXIT_NOT_DONE


async def _taken_up(own: OperatorDesk, reader: TopicTail, entry: Entry, wait_ms: int) -> str:
    until = time.monotonic() + wait_ms / 1000
    while (now := time.monotonic()) < until:
        for record in await reader.next(min(_POLL_S, until - now)):
            own.questions.put(record.key, record.value, record.timestamp)
        if entry.question is not None and entry.question.state != "open":
            return entry.question.state
    return "open"


async def _answer_pause(
    own: OperatorDesk,
    reader: TopicTail,
    entry: Entry,
    asked: QuestionRecord,
    word: str,
    instruction: str | None,
    wait_ms: int,
    tell: Told,
) -> int:
    kind: OrderType = "kill_run" if word == "reject" else "resume_run"
    key = run_record_key(entry.tenant, asked.run_id)
    standing = own.standing.run(entry.tenant, asked.run_id)
    now_ms = int(time.time() * 1000)
    order = order_run(
        kind,
        entry.tenant,
        asked.run_id,
        own.person,
        version=own.version_for(key, now_ms, tenant=entry.tenant, run_id=asked.run_id),
        now_ms=now_ms,
        root_run_id=asked.root_run_id,
        before=None if standing is None else standing.record.state,
    )
    if instruction is not None:
        words = msgspec.structs.replace(order.command, type="nudge", command_id=uuid.uuid4().hex, message=instruction)
        # Before the run goes on, so that its next prompt has the words.
        await own.tell_model(words)
        tell("ordered", msgspec.to_builtins(words), f"words for {entry.tenant} {asked.run_id}: {words.command_id}")
    await own.give(order)
    fields: dict[str, Any] = {"question_id": entry.question_id, **msgspec.to_builtins(order.command)}
    tell("ordered", fields, f"{kind} of {entry.tenant} {asked.run_id}: command {order.command.command_id}")
    if not wait_ms:
        return 0
    answers = Answers(kind, expected={asked.run_id})
    return await wait_for_answers(own, reader, order, answers, wait_ms, tell)


def _late(entry: Entry, status: str) -> str:
    what = f"question {entry.question_id} of {entry.tenant}"
    if status == "expired":
        return f"too late: {what} has expired, or its run has ended; nothing was done"
    return f"too late: {what} was {status} before; nothing was done"
