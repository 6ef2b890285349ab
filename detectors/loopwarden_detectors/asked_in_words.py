"""Is a tool asked in words? An instruction to another agent, a query, a status: a sentence, and not a path or a key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

if TYPE_CHECKING:
    from loopwarden_models.events import ToolEnd

_MAX_ARGS_BYTES: Final = 2_048
# A sentence, and what of it must be words. judgement: fewer are names, and a command is full of other things.
_WORDS: Final = 4
_SHARE: Final = 0.7
# Scripts without spaces between words begin here: a character of them counts as half a word.
_FIRST_IDEOGRAPH: Final = "\u2e80"
_IDEOGRAPHS: Final = 2 * _WORDS
# A word with its punctuation; what has a slash, a dash before it, a sign of a shell or a digit is something else.
_WORD = re.compile(r"[^\w\s/\\$|<>&=~*-]*[^\W\d_]+(?:[^\w\s/\\$|<>&=~*][^\W\d_]+)?[^\w\s/\\$|<>&=~*]*")


def is_asked_in_words(step: ToolEnd) -> bool:
    """Return whether a call has one argument that is a text, and that text is a sentence in some language.

    Cost: 2 µs.
    """
    args = step.args
    if args is UNSET or len(args) > _MAX_ARGS_BYTES:
        return False
    try:
        given = _decode(bytes(args))
    except (msgspec.DecodeError, ValueError):
        return False
    if type(given) is dict:
        texts = [value for value in given.values() if type(value) is str]
        return (
            len(texts) == 1
            and not any(type(value) in (dict, list) for value in given.values())
            and _is_sentence(*texts)
        )
    return type(given) is str and _is_sentence(given)


_decode = msgspec.json.Decoder().decode


def _is_sentence(text: str) -> bool:
    parts = text.split()
    words = sum(_WORD.fullmatch(part) is not None for part in parts)
    if words >= _WORDS and words >= _SHARE * len(parts):
        return True
    return sum(letter >= _FIRST_IDEOGRAPH and letter.isalpha() for letter in text) >= _IDEOGRAPHS
