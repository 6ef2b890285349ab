"""How alike are two texts? Sketches of their 3-grams."""

from __future__ import annotations

from collections import Counter

import pytest

from loopwarden_detectors.sketch import MIN_CHARS, SKETCH_BYTES, dice, dice_to_each, sketch, sketches

NEAR = 0.85

ENGLISH = (
    "I have looked at the pager and it divides the total by the size, so the last page is lost whenever the total is "
    "no multiple of 25. Next I will change the division and run the tests of the export again."
)
GERMAN = (
    "Die Größe der Seite stammt aus den Einstellungen und nicht vom Aufrufer; deshalb fehlt die letzte Seite immer "
    "dann, wenn die Summe sich nicht durch 25 teilen lässt. Danach ändere ich die Division."
)
ITALIAN = (
    "La dimensione della pagina viene dalle impostazioni e non dal chiamante, perciò l'ultima pagina manca ogni volta "
    "che il totale non è un multiplo di 25. Adesso cambio la divisione e rilancio le prove."
)
CHINESE = (
    "分页器用总数除以每页大小、所以当总数不是25的倍数时、最后一页就会丢失。接下来我会修改除法、然后重新运行导出的测试、"
    "确认所有页面都在。如果测试失败、我会检查设置里的大小是否被覆盖、并把结果写进报告、交给负责导出的同事。"
)
JAPANESE = (
    "ページャーは合計をサイズで割るため、合計が25の倍数でないと最後のページが失われます。次に割り算を直して、エクスポートの"
    "テストをもう一度実行し、すべてのページが揃っていることを確認してから、結果を報告書にまとめます。"
)
TEXTS = [ENGLISH, GERMAN, ITALIAN, CHINESE, JAPANESE]
IDS = ["english", "german", "italian", "chinese", "japanese"]


def exact(one: str, other: str) -> float:
    """Return the multiset Dice coefficient itself."""
    a, b = (Counter(text[at : at + 3] for at in range(len(text) - 2)) for text in (one.lower(), other.lower()))
    return 2 * (a & b).total() / (a.total() + b.total())


@pytest.mark.parametrize("text", TEXTS, ids=IDS)
def test_a_small_change_leaves_a_near_duplicate(text: str) -> None:
    """One number, a few characters at the end, case and white space: a person would say "the same message"."""
    variants = [text.replace("25", "31"), text + " (2)", text.upper().lower(), text.replace(" ", " \n "), f"\n{text}\n"]

    assert all(len(text) >= MIN_CHARS for text in variants)
    assert min(dice(sketch(text), other) for other in sketches(variants)) >= NEAR


def test_different_texts_of_one_language_are_far_apart() -> None:
    """256 hashed counts call unrelated long texts 0.6 to 0.8 alike; this must not."""
    words = ["alpha", "harbour", "invoice", "quartz", "meadow", "syntax", "velvet", "copper", "lantern", "orbit"]
    one = " ".join(words[n * 7 % 10] + str(n * 31 % 97) for n in range(400))
    other = " ".join(f"{n * 17 % 89} {'the cat sat on a mat'[n % 11 :]}" for n in range(400))

    assert dice(sketch(one), sketch(other)) < 0.25
    assert max(dice_to_each(sketch(ENGLISH), b"".join(sketches(TEXTS[1:])))) < 0.3


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.9])
def test_the_estimate_is_close_to_the_coefficient(share: float) -> None:
    """Three standard deviations of 256 bins are below 0.1."""
    cut = int(len(ENGLISH) * share)
    mixed = ENGLISH[:cut] + GERMAN[: len(ENGLISH) - cut]

    assert dice(sketch(ENGLISH), sketch(mixed)) == pytest.approx(exact(ENGLISH, mixed), abs=0.1)


def test_how_often_a_gram_occurs_counts() -> None:
    """A sentence said once and a page of that sentence have the same set of grams, and are not the same text."""
    assert dice(sketch(ENGLISH), sketch(f"{ENGLISH} " * 8)) < 0.4


def test_head_and_tail_of_a_long_text_count() -> None:
    """A bound on the work: what stands in the middle of a very long text does not change its sketch."""
    head, tail = ENGLISH * 20, GERMAN * 20

    assert sketch(head + "x" * 500 + tail) == sketch(head + "y" * 9_000 + tail)
    assert sketch(head + tail) != sketch(head + tail[:-500] + "z" * 500)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_a_batch_gives_what_each_text_gives_alone(count: int) -> None:
    """How the events of a batch happened to meet must not change a verdict."""
    texts = [(TEXTS[n % 5] * (n % 9))[n % 50 :] for n in range(count)]

    assert sketches(texts) == [sketch(text) for text in texts]


def test_no_text_is_no_sketch() -> None:
    """An empty batch is not an error."""
    assert sketches([]) == []
    assert dice_to_each(sketch(ENGLISH), b"") == []


@pytest.mark.parametrize("text", ["", " ", "ok", " \n\t a"])
def test_a_text_without_a_gram_is_like_nothing(text: str) -> None:
    """Nothing that is missing ever equals anything."""
    nothing = sketch(text)

    assert nothing == bytes(SKETCH_BYTES)
    assert dice_to_each(nothing, nothing + sketch(ENGLISH)) == [0.0, 0.0]
    assert sketches([text, text]) == [nothing, nothing]


def test_a_sketch_is_the_same_on_every_machine() -> None:
    """A snapshot may be read by another process: `hash()` would differ."""
    assert sketch("The quick brown fox" * 6)[:16].hex() == "000000f8004f0000f00000000000c100"


@pytest.mark.parametrize(("current", "window"), [(b"", b""), (bytes(255), bytes(256)), (bytes(256), bytes(300))])
def test_what_is_no_sketch_is_refused(current: bytes, window: bytes) -> None:
    """A snapshot of another format must not be compared as if it were one."""
    with pytest.raises(ValueError, match="256 bytes"):
        dice_to_each(current, window)


@pytest.mark.parametrize("size", [0, 255, 512])
def test_a_pair_is_two_sketches(size: int) -> None:
    """A window is not one text."""
    with pytest.raises(ValueError, match="256 bytes"):
        dice(sketch(ENGLISH), bytes(size))
