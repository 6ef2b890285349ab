"""Text that repeats itself back to back, and what only looks like it."""

from __future__ import annotations

import pytest

from loopwarden_detectors.chant import LAST_TOKENS, TAIL_CHARS, longest_chant

PARAGRAPH = (
    "Wait, maybe the size is taken from the settings and not from the caller. "
    "So I should check where the size comes from.\n"
    "But actually the pager divides total by size, so the size matters.\n"
)
FILLER = " ".join(f"w{n}" for n in range(2 * LAST_TOKENS))


@pytest.mark.parametrize(
    ("text", "repeats", "period"),
    [
        ("I will check the file. " * 5, 5, 6),
        ("Done.\n\n" * 7, 7, 2),
        ("ha " * 12, 12, 1),
        ("First I looked. " + "Then again, again, " * 4 + "and that was it.", 4, 5),
        ("Fammi controllare di nuovo il file. " * 6, 6, 7),
        ("Ich prüfe die Größe noch einmal. " * 4, 4, 7),
        ("让我再检查一下文件。" * 4, 4, 10),
        ("もう一度確認します。\n" * 5, 5, 10),
        ("मैं फ़ाइल देखता हूँ। " * 5, 5, 5),
        ("لنتحقق من الملف مرة أخرى. " * 4, 4, 6),
        ("다시 확인해 보겠습니다. " * 4, 4, 4),
    ],
    ids=["english", "lines", "word", "within", "italian", "german", "chinese", "japanese", "hindi", "arabic", "korean"],
)
def test_a_short_block_back_to_back_is_a_chant(text: str, repeats: int, period: int) -> None:
    """Nothing assumes English, and where no space divides words a token is one character."""
    chant = longest_chant(text)

    assert chant is not None
    assert (chant.repeats, chant.period_tokens) == (repeats, period)


@pytest.mark.parametrize("paragraph", [PARAGRAPH, PARAGRAPH.replace("\n", " "), PARAGRAPH + "\n"])
def test_a_paragraph_longer_than_a_block_is_a_chant(paragraph: str) -> None:
    """Report: opencode#12716, the same few sentences until the token limit, in lines or in one."""
    chant = longest_chant("The pager divides total by size. " + paragraph * 8)

    assert chant is not None
    assert chant.repeats in {7, 8}
    assert 35 <= chant.period_tokens <= 45


def test_a_chinese_paragraph_needs_no_space_after_its_full_stops() -> None:
    """Sentences are told apart by their marks alone there."""
    chant = longest_chant("也许页面大小来自设置而不是调用者、需要确认。但是分页器用总数除以大小、所以大小很重要。" * 6)

    assert chant is not None
    assert chant.repeats == 6
    assert chant.period_tokens > 16


ROWS = "store,h08,h09,h10,h11\n" + "".join(f"S{n:02},no,no,no,no,no,no,no,no\n" for n in range(40))
CARDS = "".join(f"<div><b>Plan {n}</b></div>\n" for n in range(9))
BULLETS = (
    "the field has no label",
    "the icon has no name",
    "errors are silent",
    "focus jumps",
    "the list is read twice",
)
REFRAIN = "So haul her up and hold the line, and heave her to the sky,\nSo haul her up, she'll sail before July.\n\n"
VERSES = (
    "The siren calls at half past six,",
    "My father riveted her keel,",
    "The welders write in blue,",
    "The bottle breaks,",
)
CHANT = "I will check the file. " * 6


@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        ROWS.replace(",", ", "),
        ROWS.replace(",", "\t"),
        ROWS.replace(",", "   "),
        ROWS.replace(",", " | "),
        "0, " * 60,
        "0.000s    " * 60,
        "".join(f"| {n} | no | no | no | no | no | no |\n" for n in range(20)),
        CARDS + "</div></div></div></div></div></div>\n" * 3,
        "      </div>\n    </div>\n  </div>\n</div>\n" * 3,
        "}\n" * 30 + "]);\n" * 20,
        "reset(pin); " * 8 + "\n",
        '["no", "no", "no", "no", "no", "no", "no"],\n',
        "".join(f"- When a customer with a screen reader reaches the payment step, {end}.\n" for end in BULLETS * 3),
        "- [ ] check the file\n" * 9,
        "".join(f"{n}. check the file again\n" for n in range(12)),
        "1. look\n" + "   check the file again\n" * 9,
        "・ファイルを確認する\n" * 9,
        "1、检查文件的大小\n" * 9,
        "".join(f"{verse}\n\n{REFRAIN}" for verse in VERSES * 2),
        "> I will check the file.\n" * 9,
        "## Check the file now\n" * 9,
        ("-" * 40 + "\n") * 20 + "= " * 50,
        f"Look:\n```\n{CHANT}\n```\nDone.",
        f"Look:\n~~~text\n```\n{CHANT}\n~~~",
        f"````\n```\n```\n{CHANT}\n````",
        f"1. ```\n{CHANT}\n   ```",
        f"```python\n{CHANT}",
        f"```\n{FILLER * 3}\n{CHANT}",
        "I will check the file. I will check the file. I will check the file. I will read on.",
        "No. No. No. No. No.",
        "".join(f"I will check file {n}. " for n in range(20)),
        CHANT + FILLER,
        "",
        "ok",
    ],
)
def test_what_repeats_by_nature_is_no_chant(text: str) -> None:
    """Report: gemini-cli#7950, PR5144, PR18975, #18007: data, code, lists; and a refrain with verses in between."""
    assert longest_chant(text) is None


@pytest.mark.parametrize(
    "before", ["", "```\nx = 1\n```\n", "~~~\n```\n~~~\n", "```inline``` code\n", "- item\n\n", "| a | b |\n"]
)
@pytest.mark.parametrize("far", ["", f"{FILLER}\n" * 4])
def test_structure_that_has_ended_hides_nothing(before: str, far: str) -> None:
    """A closed fence before the chant, even one before the cut, is not an open one."""
    assert longest_chant(before + far + CHANT) is not None


def test_nothing_repeats_across_what_is_no_prose() -> None:
    """The same remark between four different snippets is a structure that a person wrote that way."""
    assert longest_chant("".join(f"And then run this one:\n```\nstep {n}\n```\n" for n in range(9))) is None


def test_where_a_repetition_began_does_not_change_its_identity() -> None:
    """Two generations of one chant must meet under one key, wherever the token limit fell."""
    begun = [
        longest_chant(text) for text in ("one two three " * 9, "two three " + "one two three " * 9, "one two four " * 9)
    ]
    keys = [chant.block_key for chant in begun if chant is not None]

    assert keys[0] == keys[1] != keys[2]


def test_the_key_is_the_same_on_every_machine() -> None:
    """A snapshot may be read by another process."""
    chant = longest_chant("one two three " * 9)

    assert chant is not None
    assert chant.block_key == 0xDA9B437381F940C9


def test_the_most_repeated_of_two_chants_is_reported() -> None:
    """Levels are set by repeats; the shorter chant must not hide the longer one."""
    chant = longest_chant("one two three four. " * 5 + "\n# Then\n\n" + "red green blue. " * 11)

    assert chant is not None
    assert (chant.repeats, chant.period_tokens) == (11, 4)


def test_only_the_tail_is_looked_at() -> None:
    """A bound on the work: a line that the cut divides keeps its kind, the repeats before the cut do not count."""
    far = longest_chant(PARAGRAPH * 500)

    assert far is not None
    assert far.repeats <= TAIL_CHARS // len(PARAGRAPH) + 1
    assert longest_chant("- " + "check the file " * 2_000) is None


@pytest.mark.parametrize(("min_repeats", "found"), [(2, True), (5, True), (6, False)])
def test_how_many_repeats_make_a_chant_is_the_callers_choice(min_repeats: int, found: bool) -> None:
    """The default is that of OpenRouter."""
    assert (longest_chant("I will check the file. " * 5, min_repeats=min_repeats) is not None) is found


def test_once_is_no_repetition() -> None:
    """Every text would be a chant."""
    with pytest.raises(ValueError, match="two repeats"):
        longest_chant("one two three " * 9, min_repeats=1)
