"""Text that repeats itself back to back within one generation (docs/detectors.md, `text_chant`).

Prose only: code, tables and lists repeat by nature. A short block of words is looked for in the last 400 tokens, whole
sentences in the whole tail: "a paragraph for minutes" is longer than 16 tokens (report: opencode#12716).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby

from msgspec import Struct

from loopwarden_models.hashes import stable_key

# public: OpenRouter, a period of at most 16 tokens, 4 repeats or more, 12 tokens or more, in the last 400.
MAX_PERIOD = 16
MIN_REPEATS = 4
MIN_TOKENS = 12
LAST_TOKENS = 400
# Judgement: about 1,300 English words, four times a paragraph of 300. Bounds the work on a text of any length.
TAIL_CHARS = 8_000
_TOKENS_CHARS = 4_000  # judgement: holds 400 tokens in most languages
_MAX_SENTENCES = 32  # judgement, as a period of a chant
_LINE_HEAD = 40  # kept of a line that the cut divides: its beginning tells what kind it is

# Scripts without spaces between words, where a token is one character: Thai, Lao, Burmese, Khmer, kana, Han.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Vowel signs and points are no word characters to `re`: Hindi, Arabic and Hebrew words would fall to pieces.
_MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:[{_MARKS}]+[^\W{_UNSPACED}]*)*|[^\w\s]")
_SENTENCE_END = re.compile(r"[.!?\u2026\u061f]\s+|[\u3002\uff01\uff1f\u0964]")
_WORD = re.compile(r"\b[^\W\d_]")  # not the unit of "0.000s"

_FENCE = re.compile(r"[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(`{3,}|~{3,})(.*)")
_HEADING_OR_ITEM = re.compile(
    r"#{1,6}\s|(?:[-*+\u2013\u2014]|\(?[a-zA-Z][.)])\s|[\u2022\u25e6\u25aa\u2023\u00b7\u30fb\u2460-\u2473]"
    r"|[(\uff08]?\d{1,3}[.:)\uff09\u3001]|[\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341]+\u3001"
)
_GAP = re.compile(r"\S(?:\t| {2,})(?=\S)")
_MIN_ROWS = _MIN_CELLS = 3
# Stands for whatever is no prose. It equals nothing, itself included: nothing repeats across it.
_BREAK = ""


class Chant(Struct, frozen=True, gc=False):
    """A block that a text repeats back to back.

    Attributes:
        repeats: Whole occurrences of the block in a row.
        period_tokens: Length of the block in tokens; over `MAX_PERIOD` for a block of whole sentences only.
        block_key: 64-bit key of the block, whichever of its tokens or sentences the repetition began with.
    """

    repeats: int
    period_tokens: int
    block_key: int


def longest_chant(text: str, *, min_repeats: int = MIN_REPEATS) -> Chant | None:
    """Return the most often repeated chant in the tail of a text, or None.

    A block of at most 16 tokens counts if it stands `min_repeats` times in a row, together 12 tokens or more, within
    the last 400 tokens of prose; a longer one if it consists of whole sentences or lines, within the last 8,000
    characters. Equal means equal, case and numbers included. Marks that end a sentence do not matter
    there. Fenced code and what looks like code, tables and data rows, lists, headings, dividers and block quotes are
    no prose, nothing repeats across them, and a block without a word ("0, 0, 0") is data. No language is assumed.

    Args:
        text: Text or reasoning of one generation, whole.
        min_repeats: Fewest occurrences in a row, at least 2.

    Raises:
        ValueError: `min_repeats` is below 2.

    Cost: 0.2 µs under 12 characters; prose of 100, 1,000, 8,000 characters 23, 140, 410 µs; a chant of 8,000 characters
        600 µs; 2 to 4 ms at worst. Of more than 8,000 characters only fences are looked for: 1 ms for 100,000.
    """
    if min_repeats < 2:  # noqa: PLR2004
        raise ValueError(f"a chant has two repeats or more, not {min_repeats!r}")
    if len(text) < MIN_TOKENS:
        return None
    lines = _prose(text)
    tokens: list[str] = []
    for line in reversed(lines):
        tokens += reversed(_TOKEN.findall(line[-_TOKENS_CHARS:]) or (_BREAK,))
        if len(tokens) >= LAST_TOKENS:
            break
    found = [
        Chant(length // len(block), len(block), _key(block))
        for block, length in _repetitions(tokens[LAST_TOKENS - 1 :: -1], MAX_PERIOD, min_repeats)
        if length >= MIN_TOKENS
    ]
    if len(tokens) > min_repeats * MAX_PERIOD:
        sentences = [part for line in lines for part in _SENTENCE_END.split(line) if part or not line]
        for block, length in _repetitions(sentences, _MAX_SENTENCES, min_repeats):
            size = sum(len(_TOKEN.findall(sentence)) for sentence in block)
            if size > MAX_PERIOD:
                found.append(Chant(length // len(block), size, _key(block)))
    return max(found, key=lambda chant: chant.repeats, default=None)


def _repetitions(units: Sequence[str], max_period: int, min_repeats: int) -> Iterator[tuple[Sequence[str], int]]:
    """Yield each block with a word in it that is repeated back to back, and the length of the repetition in units.

    Units become 16-bit numbers, so that one exclusive or of long integers compares the text with itself, moved by a
    period: zeros in a row are a repetition. Cost: O(units) in compiled code per period, about 1 µs for 400.
    """
    if len(units) - len(set(units)) < min_repeats - 1:
        return
    numbers: dict[str, int] = {}
    codes = "".join([chr(numbers.setdefault(unit or f"\n{at}", len(numbers))) for at, unit in enumerate(units)])
    data = codes.encode("utf-16-le")
    for period in range(1, min(max_period, len(units) // min_repeats) + 1):
        moved = 2 * period
        differs = int.from_bytes(data[moved:], "little") ^ int.from_bytes(data[:-moved], "little")
        signs = differs.to_bytes(len(data) - moved, "little").decode("utf-16-le")
        least = period * (min_repeats - 1)
        if "\0" * least not in signs:
            continue
        for found in re.finditer(rf"\0{{{least},}}", signs):
            start, end = found.span()
            code, block = codes[start : start + period], units[start : start + period]
            # "a b a b" four times is "a b" eight times, and that was yielded.
            if (code + code).find(code, 1) == period and _WORD.search(" ".join(block)):
                yield block, end - start + period


def _key(block: Sequence[str]) -> int:
    # "a b a b" and "b a b a" are one chant: where the cut fell must not change its identity.
    turns = [[*block[at:], *block[:at]] for at in range(len(block))]
    return stable_key("\n".join(min(turns)))


def _prose(text: str) -> list[str]:
    """Return the lines of prose in the tail of the text, one break for all that lies between two of them."""
    cut = max(0, len(text) - TAIL_CHARS)
    start = text.rfind("\n", 0, cut) + 1
    tail = text[start : min(cut, start + _LINE_HEAD)] + text[cut:]
    lines = [line for line in tail.split("\n") if line and not line.isspace()]
    fence, rows, in_list = reduce(_fence_after, text[:start].split("\n"), ""), _data_rows(lines), False
    kept: list[str] = []
    for at, line in enumerate(lines):
        stripped, before = line.strip(), fence
        fence = _fence_after(fence, line)
        if not (before or fence or at in rows):
            in_list = _HEADING_OR_ITEM.match(stripped) is not None or (in_list and line[0].isspace())
            if not in_list and not _is_code_or_table(line, stripped):
                kept.append(stripped)
                continue
        if kept and kept[-1] != _BREAK:
            kept.append(_BREAK)
    return kept


def _fence_after(fence: str, line: str) -> str:
    """Return the fence that is open after a line, "" for none, by the rules of CommonMark."""
    found = _FENCE.match(line) if "```" in line or "~~~" in line else None
    if found is None:
        return fence
    mark, rest = found.groups()
    if fence:
        return "" if mark.startswith(fence) and not rest.strip() else fence
    return "" if "`" in rest else mark


def _is_code_or_table(line: str, stripped: str) -> bool:
    # Code that nobody fenced: public: gemini-cli PR5144, rows of closing tags and brackets.
    first, last = stripped[0], stripped[-1]
    return (
        line.startswith(("    ", "\t"))
        or first in "|>"
        or last in ";{}"
        or (first == "<" and last == ">")
        or (first in "[{\"'" and last in "],")
        or stripped.count("|") > 1
        or stripped.count("</") > 1
        or not any(map(str.isalnum, stripped))
    )


def _data_rows(lines: list[str]) -> set[int]:
    """Return the places of three or more lines in a row with as many cells each; equal lines would be a chant."""
    rows, at = set[int](), 0  # public: gemini-cli#7950, a quoted CSV table
    for shape, group in groupby(lines, _shape):
        members = list(group)
        if shape and len(members) >= _MIN_ROWS and 2 * len(set(members)) > len(members):
            rows.update(range(at, at + len(members)))
        at += len(members)
    return rows


def _shape(line: str) -> tuple[str, int] | None:
    cells = max((line.count(","), ","), (line.count(";"), ";"))
    if cells[0] >= _MIN_CELLS:
        return cells[1], cells[0]
    gaps = len(_GAP.findall(line)) if "  " in line or "\t" in line else 0
    return (" ", gaps) if gaps > 1 else None
