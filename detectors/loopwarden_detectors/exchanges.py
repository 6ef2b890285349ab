"""What was asked in words, and what was answered: calls, messages to other agents, thoughts."""

from __future__ import annotations

from typing import Final, NamedTuple

from loopwarden_detectors.asked_in_words import is_sentence, question_of
from loopwarden_detectors.identity import tool_key
from loopwarden_detectors.meaning import MAX_CHARS, key_of
from loopwarden_detectors.said_in_words import text_of
from loopwarden_models.effects import FAILED
from loopwarden_models.events import AnyStep, Message, ModelEnd, ToolEnd
from loopwarden_models.hashes import stable_key

# Shorter thoughts and messages are no texts: "Done." is always like "Done.". judgement
MIN_CHARS: Final = 40
# Of an answer that can be compared in meaning, so much is words: the rest are figures, prices, marks. judgement
_WORDS_OF_ANSWER: Final = 0.4

THOUGHTS: Final = stable_key("semantic_repeat:thoughts")
NO_ROUND: Final = -2


class Exchange(NamedTuple):
    """What was asked, and what the answer was. A message or a thought is an answer to no question.

    `round` is that of the calls of one parallel batch, `NO_ROUND` for what is no call.
    """

    key: int
    question: str
    answer: str
    answer_key: int
    round: int


def exchange_of_call(step: ToolEnd, result_key: int, of_round: int) -> Exchange | None:
    """Return what a call asked in a sentence, and its answer; `None` if it asked in none, or was not carried out.

    Cost: 0.4 µs for a call that asks no sentence, 4 µs else.
    """
    asked = question_of(step)
    outcome = step.outcome or "ok"
    if asked is None or not result_key or (outcome != "ok" and outcome not in FAILED):
        return None
    question, rest = asked
    answer = text_of(step.result) or (step.error.message if step.error is not None else None) or ""
    return Exchange(tool_key(step.tool) ^ (stable_key(rest) if rest else 0), question, answer, result_key, of_round)


def exchange_of_text(step: AnyStep) -> Exchange | None:
    """Return a message, or a thought of the model, long enough to say something. Cost: 2 µs."""
    if type(step) is Message:
        text = step.text
        key = stable_key(f"to {step.to_run_id or step.to_agent or ''}")
    elif type(step) is ModelEnd:
        text = step.text or step.reasoning
        key = THOUGHTS
    else:
        return None
    if text is None or len(text) < MIN_CHARS:
        return None
    return Exchange(key, "", text, key_of(text), NO_ROUND)


def is_answer(text: str) -> bool:
    """Return whether an answer is words, so that its meaning can be compared. Cost: 20 µs at most."""
    return is_sentence(text[:MAX_CHARS], share=_WORDS_OF_ANSWER)
