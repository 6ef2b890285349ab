"""Answers that say nearly the same again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.sketch import sketch
from loopwarden_models.events import AnyStep

NEAR = only("near_text")
# One sentence, another adverb and another number each time, at its beginning and in the middle.
WORDS = ("Still", "Again", "Now", "Once more", "Sadly", "Now", "Again", "Oddly", "Still", "Clearly", "Again", "Well")
AGAIN = tuple(
    f"{word} the upload was refused, so I will renew the token (attempt {n}) and start the upload of the files again."
    for n, word in enumerate(WORDS)
)
OTHERS = (
    "The bucket belongs to another account, which explains why the renewed token was of no use whatsoever to anybody.",
    "Before going on I want to see which of the files arrived yesterday, and whether their checksums are the same now.",
    "According to the log a proxy answers for the bucket; its certificate has been changed by somebody three days ago.",
    "I have asked for the new certificate. Meanwhile the smaller files could be packed into one archive, to save time.",
    "The archive is ready: 48 files in 12 megabytes. Its name says from which night it comes, and who made it by hand.",
    "There is a second bucket in the same region which takes uploads without a token at all. It was made for archives.",
)


def answers(run: Run, texts: Sequence[str], **fields: Any) -> list[AnyStep]:
    """Return answers of the model with these texts."""
    return [run.model(text=text, **fields) for text in texts]


def with_calls(run: Run, texts: Sequence[str], calls: Sequence[Mapping[str, Any]]) -> list[AnyStep]:
    """Return answers with these texts, and after each a call; the calls are taken in turn."""
    steps = []
    for n, text in enumerate(texts):
        steps += [run.model(text=text, tool_calls=1), run.call(**calls[n % len(calls)])]
    return steps


def said(texts: Sequence[str], **fields: Any) -> list[str]:
    """Return the levels that answers with these texts bring, in a run that does nothing else."""
    return levels(decide(answers(Run(), texts, **fields), NEAR))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, []),
        (4, ["observe"]),
        (5, ["observe", "nudge"]),
        (7, ["observe", "nudge"]),
        (8, ["observe", "nudge", "kill"]),
    ],
)
def test_nearly_the_same_is_counted(count: int, expected: list[str]) -> None:
    """A changed word and a changed number are no news."""
    assert said(AGAIN[:count]) == expected


def test_the_evidence_begins_with_the_first_message() -> None:
    """Also with those that were not looked into."""
    run = Run()
    steps = [*answers(run, OTHERS[:3]), *answers(run, AGAIN[:5])]
    nudge = verdicts(decide(steps, NEAR))[-1]

    assert (nudge.level, nudge.pattern) == ("nudge", "text_loop")
    assert (nudge.evidence.count, nudge.evidence.threshold) == (5, 5)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq) == (3, 7)
    assert nudge.evidence.note == "5 answers say nearly the same, 5 of the last 6"
    assert "upload" not in str(nudge)


def test_five_of_the_last_six_are_enough_but_three_of_six_are_not() -> None:
    """A message in between does not hide the loop; by turns it is another thing."""
    assert said([*AGAIN[:3], OTHERS[0], *AGAIN[3:5]]) == ["observe", "nudge"]
    assert said([text for pair in zip(AGAIN[:6], OTHERS, strict=True) for text in pair]) == []


def test_other_messages_end_the_cluster() -> None:
    """What comes back later counts anew, and is the same loop."""
    run = Run()
    found = verdicts(decide(answers(run, [*AGAIN[:5], *OTHERS, *AGAIN[5:9]]), NEAR))

    assert [(one.level, one.evidence.count) for one in found if one.episode] == [("observe", 4), ("nudge", 5)]
    tree = tree_of(run.start())
    decide(answers(run, [*AGAIN[:5], *OTHERS[:5]]), NEAR, tree=tree)
    assert tree.runs["r1"].near_text is not None
    decide(answers(run, OTHERS[5:]), NEAR, tree=tree)
    assert tree.runs["r1"].near_text is None


def test_short_texts_are_no_messages() -> None:
    """Whoever says "Done." says it often; and what stands between long ones does not count against them."""
    assert said(["Done, on to the next one."] * 20) == []
    assert said([part for text in AGAIN[:5] for part in (text, "All right.")]) == ["observe", "nudge"]


def test_reasoning_stands_in_for_a_text_that_is_not_there() -> None:
    """Many answers that call a tool have no other words."""
    run = Run()
    steps = [run.model(reasoning=text, tool_calls=1) for text in AGAIN[:5]]

    assert levels(decide(steps, NEAR)) == ["observe", "nudge"]


def test_texts_that_begin_alike_and_go_on_differently_are_not_alike() -> None:
    """A habit of speech is no loop."""
    assert said([f"Let me think about this step by step. {text}" for text in OTHERS]) == []


def test_a_first_look_at_the_wrong_text_is_corrected() -> None:
    """What only began alike does not count, and does not hide what comes after it."""
    habit = [f"Sure, here we go. {text}" for text in OTHERS[:4]]
    again = [f"Sure, here we go. {text}" for text in AGAIN[:5]]

    assert said([*habit, *again[:3]]) == []
    assert said([*habit, *again]) == ["observe", "nudge"]


def test_a_cluster_that_is_known_is_not_given_up_for_a_look_alike() -> None:
    """What comes between its messages may begin alike as well."""
    habit = [f"Meanwhile something else came up. {text}" for text in OTHERS[:3]]
    texts = [*AGAIN[:4], *habit[:2], AGAIN[4], habit[2], *AGAIN[5:9]]

    assert said(texts) == ["observe", "kill"]


def test_two_messages_at_most_are_taken_for_granted() -> None:
    """However many begin or end as the one does that is looked into."""
    begin, end = "To make it short: ", " and that is all there is to say about it."
    texts = [begin + OTHERS[0], OTHERS[1] + end, begin + OTHERS[2], *[begin + OTHERS[3] + end] * 2]

    assert said(texts) == ["observe"]


def test_only_the_beginning_may_be_the_same_and_only_the_end() -> None:
    """Numbers and marks there make no difference."""
    text = "the upload was refused, so I will renew the token and start the upload of the files again"
    ends = ("as soon as I can", "right now", "before lunch", "with patience", "from scratch")

    assert said([f"Once more {text}, {end}." for end in ends]) == ["observe", "nudge"]
    assert said([f"Step {n * 1037}: {text} ({n * 1049}/9999)." for n in range(1, 6)]) == ["observe", "nudge"]


def test_what_is_the_same_at_both_ends_may_differ_in_the_middle() -> None:
    """A form that is filled in with other words each time; of 2,000 characters all count."""
    frame = "This is the nightly report on the uploads of all agents to the bucket."
    middles = [" ".join(OTHERS[n:] + OTHERS[:n])[90 * n : 90 * n + 420] for n in range(6)]

    assert said([f"{frame} {middle} {frame}" for middle in middles]) == []


def test_texts_without_spaces_and_in_other_scripts() -> None:
    """No language is assumed."""
    chinese = "上传再次被拒绝 所以我要更新令牌然后重新开始上传剩下的文件" * 3
    russian = "Загрузка снова отклонена, поэтому я обновлю токен и начну загрузку оставшихся файлов заново."
    assert said([f"{chinese}第{n}次" for n in range(5)]) == ["observe", "nudge"]
    assert said([f"{n}. {russian}" for n in range(5)]) == ["observe", "nudge"]


def test_a_person_begins_a_new_segment() -> None:
    """The same answer to each of five customers is service."""
    run = Run()
    steps = [step for text in AGAIN[:8] for step in (run.user(), run.model(text=text, tool_calls=0))]

    assert levels(decide(steps, NEAR)) == []


@pytest.mark.parametrize(
    ("call", "nudge"),
    [
        ({"args": "x", "result": "token refused", "effect": "read"}, 6),
        ({"args": "x", "result": "token refused", "effect": "unknown"}, 5),
        ({"args": "x", "fails": "token refused"}, 5),
        ({"args": "x", "result": "", "effect": "unknown"}, 5),
        ({"args": "x", "outcome": "denied"}, 5),
    ],
    ids=["read was new", "known answer", "error", "silence", "refused"],
)
def test_calls_that_bring_nothing_change_nothing(call: dict[str, Any], nudge: int) -> None:
    """The words are those of a loop, and so are the acts."""
    found = verdicts(decide(with_calls(Run(), AGAIN[:10], [call]), NEAR))
    assert [(one.level, one.evidence.count) for one in found if one.episode] == [
        ("observe", 4),
        ("nudge", nudge),
        ("kill", 8),
    ]


PAGES = [
    f"Reading page {n} of the report now. I will take the table of that page and go on to the page after it."
    for n in range(1, 31)
]


@pytest.mark.parametrize(
    ("effect", "expected"),
    [("read", {"observe"}), ("write", {"observe"}), ("poll", {"observe"}), ("unknown", {"observe", "nudge"})],
)
def test_a_template_is_not_ended_while_each_step_brings_something_new(effect: str, expected: set[str]) -> None:
    """Batch work reads alike. Where nobody declared the tool, it is asked once whether it is a loop, after eight."""
    run = Run()
    steps = []
    for n, text in enumerate(PAGES):
        steps += [run.model(text=text, tool_calls=1), run.call("page", n, f"table {n}", effect=effect)]
    decisions = decide(steps, NEAR)

    assert set(levels(decisions)) == expected
    assert [one.evidence.count for one in verdicts(decisions) if one.level == "nudge"][:1] in ([], [8])


def test_answers_that_are_not_reported_may_be_new() -> None:
    """Missing evidence is no evidence of a loop."""
    steps = with_calls(Run(), AGAIN, [{"args": "x", "result": None}])

    assert set(levels(decide(steps, NEAR))) == {"observe", "nudge"}


def test_waits_in_between_are_for_other_rules() -> None:
    """What is patient says for a long time that it is not ready yet."""
    calls: list[dict[str, Any]] = [
        {"tool": "sleep", "args": {"seconds": 30}, "result": ""},
        {"args": "x", "result": "not ready"},
    ]

    assert set(levels(decide(with_calls(Run(), AGAIN, calls), NEAR))) == {"observe"}


def test_a_sign_of_progress_demotes_the_kill() -> None:
    """The runtime's own word."""
    run = Run()
    steps = [*answers(run, AGAIN[:6]), run.step("progress"), *answers(run, AGAIN[6:])]

    assert "kill" not in levels(decide(steps, NEAR))


def test_a_second_run_start_begins_anew() -> None:
    """Also in a run that has made no call: each turn of a service may begin with one."""
    run = Run()
    steps = [step for text in AGAIN[:8] for step in (run.start(), run.model(text=text))]

    assert levels(decide(steps, NEAR)) == []


def test_agents_of_a_tree_have_windows_of_their_own() -> None:
    """Ten workers with one template each say it once."""
    runs = [Run(f"w{n}", root="boss") for n in range(10)]

    assert levels(decide([run.model(text=text) for run, text in zip(runs, AGAIN, strict=False)], NEAR)) == []


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_restart_changes_nothing(cut: int) -> None:
    """The window and the cluster are in the snapshot."""
    steps = [*answers(Run(), [*AGAIN[:3], OTHERS[0], *AGAIN[3:9]])]
    whole = verdicts(decide(steps, NEAR))

    tree = tree_of(steps[0])
    before = verdicts(decide(steps[:cut], NEAR, tree=tree))
    after = []
    for offset, step in enumerate(steps[cut:], start=cut):
        tree = TreeState.from_bytes(tree.to_bytes())
        after += verdicts(decide([step], NEAR, tree=tree, offset=offset))
    assert [(one.verdict_id, one.level, one.evidence.first_seq) for one in before + after] == [
        (one.verdict_id, one.level, one.evidence.first_seq) for one in whole
    ]


def test_a_run_that_comes_back_from_under_a_kill_goes_on_where_it_was() -> None:
    """The first message that continues the loop ends it again."""
    run = Run()
    tree = tree_of(run.start())
    decide(answers(run, AGAIN[:10]), NEAR, tree=tree)
    steps = [run.resume("b"), *answers(run, AGAIN[10:12])]
    found = verdicts(decide(steps, NEAR, tree=tree))

    assert [one.level for one in found][:1] == ["kill"]
    assert found[0].evidence.first_seq == 0


def test_a_wait_after_the_resume_counts_as_one_between_the_messages() -> None:
    """Those are dated before all steps of the new incarnation."""
    run = Run()
    tree = tree_of(run.start())
    decide(answers(run, AGAIN[:10]), NEAR, tree=tree)
    steps = [run.resume("b"), run.call("sleep", {"seconds": 30}, ""), *answers(run, AGAIN[10:12])]

    assert verdicts(decide(steps, NEAR, tree=tree)) == []


def test_healthy_texts_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sketch costs as much as fifty other rules: it is for messages that already look alike from outside."""
    looked: list[str] = []

    def counted(text: str, **sizes: int) -> bytes:
        looked.append(text)
        return sketch(text, **sizes)

    monkeypatch.setattr("loopwarden_detectors.near_text.sketch", counted)
    decide(answers(Run(), OTHERS * 4), NEAR)
    decide(answers(Run(), [AGAIN[0] + " And so on." * (40 * n) for n in range(6)]), NEAR)
    assert looked == []
    decide(answers(Run(), AGAIN[:6]), NEAR)
    assert len(looked) == 4
