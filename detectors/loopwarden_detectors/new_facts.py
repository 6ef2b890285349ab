"""What a text says that can be new: numbers, names, paths, and what fills the gaps of a template.

Two reports made from one template are nearly one to any model of meaning ("FAIL 5", "FAIL 4" lie at 0.98), and the
number is all that matters. Two rewordings of one report hold the same facts, or none. No language is assumed, but that
names are written with a capital where there are capitals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

FACT_BYTES: Final = 4
# What a run remembers of the facts that it was told; the oldest leave.
MAX_FACTS_BYTES: Final = 256 * FACT_BYTES
# Facts of one text that are looked at: a page of figures is new after so many, or it is not.
MAX_FACTS: Final = 96
# Words of a text that are compared with those of the text before.
MAX_WORDS: Final = 24
# So many words, and no more than these others: the texts are made from one template. judgement
_MIN_TEMPLATE_WORDS: Final = 4
_MAX_GAPS: Final = 2

# What surrounds a word, and what joins the parts of one that is no plain word: a path, an address, an identifier.
_AROUND: Final = " \t.,:;!?…-–—()[]{}<>*#|=\"'“”„«»`‘’¿¡"  # noqa: RUF001 - the marks themselves
_INSIDE: Final = frozenset("0123456789_/\\@.")
# Two of these, and every noun has a capital: a capital is no sign of a name there.
_GERMAN: Final = frozenset(
    ("der", "die", "das", "und", "ist", "nicht", "ich", "ein", "eine", "den", "dem", "des", "mit", "für", "auf", "sich")
)
_MARK_DIGITS: Final = 2
_ENDS: Final = (".", "!", "?", "…", ".)", '."', "?)")


def facts_of(text: str) -> dict[int, str]:
    """Return the facts of a text by their 32-bit hashes, in order, at most `MAX_FACTS` and a line more.

    A fact is a path, an address, a name with a mark or a capital inside, whatever holds a digit, and a word with a
    capital that does not begin a line or a sentence, unless the text is German. Case and the marks around it do not
    count.

    Cost: about 20 ns a character of prose, 100 of a list of names.
    """
    found: dict[int, str] = {}
    are_capitals_names = len(_GERMAN.intersection(text.split())) <= 1
    for line in text.splitlines():
        words = line.split()
        for at, (word, plain) in enumerate(zip(words, line.lower().split(), strict=False)):
            if word == plain and (word.isalpha() or _INSIDE.isdisjoint(word)):
                continue
            begins = at == 0 or words[at - 1].endswith(_ENDS) or words[at - 1].strip("()").isdigit()
            bare = word.strip(_AROUND)
            is_name = are_capitals_names and not begins and bare[:1].isupper() and len(bare) > 1  # "I" is none
            if is_name or bare[1:] != bare[1:].lower() or not _INSIDE.isdisjoint(bare):
                if bare.isdigit() and len(bare) <= _MARK_DIGITS and (begins or word == f"({bare})") and word != bare:
                    continue  # the mark of a list: "2.", "(3)"
                said = bare.casefold()
                found[_hash(said)] = said
                if "/" in said:  # told again, a file is often called by its last part alone
                    last = said.rpartition("/")[2]
                    found[_hash(last)] = last
        if len(found) >= MAX_FACTS:
            break
    return found


def words_of(text: str) -> list[int]:
    """Return the 32-bit hashes of the first `MAX_WORDS` words, case and marks left out. Cost: 0.3 µs a word."""
    bare = [word.strip(_AROUND) for word in text.casefold().split(maxsplit=MAX_WORDS)[:MAX_WORDS]]
    return [_hash(word) for word in bare if word]


def gaps(words: list[int], before: list[int]) -> list[int]:
    """Return the words that differ where two texts have the same words but for one or two: they fill a template.

    Empty if the texts are equal, or differ in more, or in length: those are two wordings. Cost: 2 µs.
    """
    if len(words) != len(before) or len(words) < _MIN_TEMPLATE_WORDS:
        return []
    others = [word for word, other in zip(words, before, strict=True) if word != other]
    return others if len(others) <= _MAX_GAPS else []


def is_known(known: bytes, fact: int) -> bool:
    """Return whether a fact is among those remembered. Cost: 0.3 µs."""
    wanted = fact.to_bytes(FACT_BYTES, "big")
    at = known.find(wanted)
    while at >= 0:
        if at % FACT_BYTES == 0:
            return True
        at = known.find(wanted, at + 1)
    return False


def remember(known: bytes, facts: Iterable[int]) -> bytes:
    """Return what is remembered when these new facts come to it. Cost: 0.1 µs a fact."""
    return (known + b"".join([fact.to_bytes(FACT_BYTES, "big") for fact in facts]))[-MAX_FACTS_BYTES:]


def _hash(said: str) -> int:
    return crc32(said.encode("utf-8", "replace"))
