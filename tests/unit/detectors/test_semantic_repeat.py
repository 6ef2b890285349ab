"""The same in other words. To the model of these tests a text means its words; real ones: tests/embeddings."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.meanings import WordMeaning
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors import semantic_repeat
from loopwarden_detectors.exchanges import MIN_CHARS
from loopwarden_detectors.meaning import DIMENSIONS
from loopwarden_detectors.new_numbers import renumber
from loopwarden_detectors.semantic_repeat import MAX_CHANNELS
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

NAME = "semantic_repeat"
POLICY = only(NAME)
QUESTIONS = (
    "please scroll the list of bridges to its end",
    "please scroll on in the list of bridges",
    "please scroll the list of bridges again",
    "please go on to scroll the list of bridges",
    "please scroll further down the list of bridges",
    "now please scroll the whole list of bridges",
    "please do scroll the list of bridges down",
    "please scroll the long list of bridges down",
    "please just scroll the list of bridges once more",
    "would you please scroll the list of bridges",
)
ANSWERS = (
    "the list ends here and only the footer of the page can be seen",
    "here the list ends and the footer of the page can be seen",
    "only the footer of the page can be seen and the list ends here",
    "the list ends here and nothing but the footer of the page can be seen",
    "the footer of the page can be seen here and the list ends",
    "here the list of the page ends and only the footer can be seen",
    "the list ends and only the footer of the page can be seen here",
    "at the footer of the page the list ends here as can be seen",
    "of the page only the footer can be seen here and the list ends",
    "the list ends here and of the page the footer can be seen",
)


def asked(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return `n` exchanges, each reworded, that bring nothing new."""
    return [run.call("ask", {"task": QUESTIONS[k % 10]}, ANSWERS[k % 10], **fields) for k in range(n)]


def said(
    steps: list[AnyStep], policy: Policy = POLICY, meaning: WordMeaning | None = None, **options: Any
) -> list[str]:
    """Return the levels of the rule."""
    return levels(decide(steps, policy, meaning=meaning or WordMeaning(), **options), NAME)


def test_four_rewordings_are_nudged_and_eight_confirmed_ones_end_the_run() -> None:
    """The whole ladder, with what people read about it."""
    decisions = decide(asked(Run(), 10), POLICY, meaning=WordMeaning())
    found = verdicts(decisions, NAME)

    assert [verdict.level for verdict in found if verdict.episode][:2] == ["observe", "nudge"]
    assert found[-1].level == "kill"
    assert orders(decisions)[0] == "nudge"
    nudge = next(verdict for verdict in found if verdict.level == "nudge")
    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.threshold) == ("text_loop", 4, 4)
    assert nudge.evidence.tools == ["ask"]
    assert nudge.evidence.note == "ask was asked and answered the same in other words, 4 of the last 4 times"
    assert nudge.model == "words@1+words@2"


def test_without_a_model_the_rule_is_off() -> None:
    """Everything else works; nothing is kept."""
    [*steps] = asked(Run(), 10)

    assert levels(decide(steps, POLICY), NAME) == []


def test_what_the_second_model_has_not_confirmed_ends_no_run() -> None:
    """Late and missing are no."""
    assert "kill" not in said(asked(Run(), 10), meaning=WordMeaning(answers=False))
    assert "kill" not in said(asked(Run(), 10), meaning=WordMeaning(confirms=False))
    assert "kill" in said(asked(Run(), 10))


def test_what_the_first_model_is_not_sure_of_waits_for_the_second() -> None:
    """Between the two thresholds an exchange counts when it is confirmed, and not before."""
    unsure = only(NAME, same_percent=100, maybe_percent=40)
    strict = only(NAME, same_percent=100, maybe_percent=40, confirmed_percent=100)
    run = Run()
    words = (["well", "so", "as", "far", "as", "seen"][:k] for k in range(6))
    steps = [run.call("ask", {"task": QUESTIONS[k]}, " ".join([ANSWERS[0], *more])) for k, more in enumerate(words)]

    assert "nudge" in said(steps, unsure)
    assert said(steps, unsure, WordMeaning(answers=False)) == []
    assert said(steps, unsure, WordMeaning(confirms=False)) == []
    assert said(steps, strict) == []


@pytest.mark.parametrize("new", ["{} of 9", "src/a_{}.py", "camelCase{}", "a@{}.example", "the Olaf{} bridge"])
def test_an_answer_with_a_fact_that_was_not_told_is_news(new: str) -> None:
    """Templates: number, path, identifier, address, name."""
    run = Run()
    steps = [
        run.call("ask", {"task": QUESTIONS[k]}, f"{ANSWERS[k]} beside {new.format('abcdefgh'[k] + str(k))}")
        for k in range(8)
    ]

    assert said(steps) == []


def test_a_fact_that_was_told_before_is_old() -> None:
    """In the answer, or in what was asked."""
    run = Run()
    steps = [
        run.call("ask", {"task": f"{QUESTIONS[k]} of Bergen{k}"}, f"{ANSWERS[k]} beside Oslo, as of Bergen{k}")
        for k in range(6)
    ]

    assert "nudge" in said(steps)


def test_a_long_page_may_differ_in_a_few_figures() -> None:
    """A counter of visitors, a word misread; a page with other figures is another page."""
    run = Run()
    figures = [f"Item{n}" for n in range(50)]
    pages = [" ".join([*figures[:25], f"Seen{k}"]) for k in range(6)]
    same = [
        run.call("ask", {"task": QUESTIONS[k]}, f"{ANSWERS[k]} and {ANSWERS[k]}: {page}")
        for k, page in enumerate(pages)
    ]
    run = Run()
    pages = [" ".join(f"Item{k}x{n}" for n in range(25)) for k in range(6)]
    other = [
        run.call("ask", {"task": QUESTIONS[k]}, f"{ANSWERS[k]} and {ANSWERS[k]}: {page}")
        for k, page in enumerate(pages)
    ]

    assert said(same, only(NAME, same_percent=60, maybe_percent=50)) != []
    assert said(other, only(NAME, same_percent=60, maybe_percent=50)) == []


def test_what_fills_the_gap_of_a_template_is_news() -> None:
    """No number, no name, and yet: the room is booked for another day."""
    days = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    run = Run()
    batch = [run.call("ask", {"task": f"book the room for {day} please"}, "it is booked as you wish") for day in days]
    run = Run()
    told = [run.call("ask", {"task": QUESTIONS[k]}, f"the room is now booked for {day}") for k, day in enumerate(days)]

    assert said(batch) == []
    assert said(told) == []


def test_a_time_a_duration_and_a_random_id_are_no_news() -> None:
    """Answers differ in them each time, whatever happens."""
    run = Run()
    steps = [
        run.call(
            "ask", {"task": QUESTIONS[k]}, f"{ANSWERS[k]} (10:4{k}:07, {k}.2 s, 7f3a9c1e-52b0-4c11-9d0e-2f6b8a1c4d7{k})"
        )
        for k in range(6)
    ]

    assert "nudge" in said(steps)


def test_the_same_word_for_word_is_left_to_the_rules_over_calls() -> None:
    """Two rules must not count one thing."""
    run = Run()

    assert said([run.call("ask", {"task": QUESTIONS[0]}, ANSWERS[0]) for _ in range(9)]) == []


def test_another_question_makes_an_equal_answer_another_one() -> None:
    """Whoever asks six things may hear the same of each."""
    other = ("where is the harbour", "who wrote this old letter", "why do cats purr", "when will the train leave")
    run = Run()

    assert said([run.call("ask", {"q": question}, ANSWERS[k]) for k, question in enumerate(other)]) == []


def test_other_arguments_are_part_of_what_is_asked() -> None:
    """The same question about six towns is six questions."""
    run = Run()

    assert said([run.call("ask", {"task": QUESTIONS[k], "town": k}, ANSWERS[k]) for k in range(6)]) == []


def test_an_answer_too_short_to_mean_anything_leaves_it_to_the_question() -> None:
    """Status after status is acknowledged with "ok"; one that tells of a file is a step."""
    run = Run()
    empty = [run.call("status", {"text": QUESTIONS[k]}, "ok") for k in range(6)]
    run = Run()
    files = [run.call("status", {"text": f"{QUESTIONS[k]} for module_{k}.py"}, "ok") for k in range(6)]

    assert "nudge" in said(empty)
    assert said(files) == []


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (("write_file", "a", "written", "write"), ["observe"]),
        (("read_file", "a", "new text", "read"), ["observe"]),
        (("job", "a", "running", "poll"), ["observe"]),
        (("other", "a", "news", "unknown"), ["observe"]),
        (("other", "same", "same", "unknown"), ["observe", "nudge"]),
    ],
)
def test_what_moves_beside_the_words_turns_a_nudge_into_an_observation(
    between: tuple[str, str, str, str], expected: list[str]
) -> None:
    """Meaning alone says little where the world changes."""
    tool, args, result, effect = between
    run = Run()
    steps: list[AnyStep] = []
    for k, exchange in enumerate(asked(run, 6)):
        run.seq += 1
        own = "" if args == "same" else str(k)
        steps += [exchange, run.call(tool, args + own, result + own, effect=effect)]
    for seq, step in enumerate(steps):
        step.seq = seq

    assert said(steps)[: len(expected)] == expected
    assert ("nudge" in said(steps)) == ("nudge" in expected)


def test_a_batch_counts_once() -> None:
    """Five parallel questions are one step of the agent."""
    run = Run()
    batch = run.batch(*(("ask", {"task": QUESTIONS[k]}, ANSWERS[k]) for k in range(6)))

    assert said(batch) == []


def test_a_person_who_speaks_begins_it_anew() -> None:
    """What was said before is another conversation."""
    run = Run()

    assert said([*asked(run, 3), run.user(), *asked(run, 2)]) == ["observe"]


def test_messages_are_nudged_and_never_end_a_run() -> None:
    """Who is written to cannot say otherwise."""
    run = Run(root="boss")
    steps = [run.step("message", to_run_id="r2", text=ANSWERS[k % 10]) for k in range(10)]
    decisions = decide(steps, POLICY, meaning=WordMeaning())

    assert levels(decisions, NAME)[:2] == ["observe", "nudge"]
    assert "kill" not in levels(decisions, NAME)
    assert verdicts(decisions, NAME)[0].evidence.note.startswith("messages say the same in other words")


def test_thoughts_count_where_nothing_new_came_between_them() -> None:
    """A plan told anew each time is a loop if nothing is done, and none if each time another step is tried."""
    run = Run()
    idle = [run.model(text=text, tool_calls=0) for text in ANSWERS]
    run = Run()
    busy = [step for k, text in enumerate(ANSWERS) for step in (run.model(text=text), run.call("sh", k, fails="no"))]
    run = Run()
    stuck = [step for text in ANSWERS for step in (run.model(text=text), run.call("sh", "x", "same"))]

    assert said(idle)[:2] == ["observe", "nudge"]
    assert said(busy) == []
    assert said(stuck)[:2] == ["observe", "nudge"]
    assert "kill" not in [*said(idle), *said(stuck)]


def test_short_thoughts_are_no_texts() -> None:
    """A word of assent is like every other one."""
    run = Run()

    assert said([run.model(text=f"ok {'so ' * k}", tool_calls=0) for k in range((MIN_CHARS - 3) // 3)]) == []


def test_errors_in_other_words_count_and_refusals_do_not() -> None:
    """An agent that cannot says so in many ways; what a guard refused was never asked."""
    run = Run()
    errors = [run.call("ask", {"task": QUESTIONS[k]}, fails=ANSWERS[k]) for k in range(6)]
    run = Run()
    refused = [run.call("ask", {"task": QUESTIONS[k]}, ANSWERS[k], outcome="denied") for k in range(6)]

    assert "nudge" in said(errors)
    assert said(refused) == []


def test_what_is_followed_at_a_time_is_bounded() -> None:
    """The longest unheard leaves."""
    run = Run()
    steps = [run.call(f"ask {n}", {"task": QUESTIONS[0]}, ANSWERS[0]) for n in range(MAX_CHANNELS + 3)]
    tree = tree_of(steps[0])
    decide(steps, POLICY, tree=tree, meaning=WordMeaning())
    [state] = [known.semantic for known in tree.runs.values()]

    assert state is not None
    assert len(state.channels) == MAX_CHANNELS


def test_steps_of_a_new_incarnation_come_after_what_was_said() -> None:
    """Its steps are numbered anew: what is kept is dated before the first of them."""
    steps = asked(Run(), 5)
    tree = tree_of(steps[0])
    decide(steps, POLICY, tree=tree, meaning=WordMeaning())
    [run] = tree.runs.values()
    renumber(run)

    assert run.semantic is not None
    [channel] = run.semantic.channels
    assert channel.first_seq == 0
    assert [row[3] for row in semantic_repeat.rows_of(channel)] == [0] * 5


def test_switched_off_it_asks_no_model() -> None:
    """A tenant that wants no model to read its texts says so in its policy."""

    class Deaf(WordMeaning):
        def vector(self, text: str) -> bytes:
            raise AssertionError(text)

    for off in ({"mode": "off"}, {"semantic_repeat": {"mode": "off"}}):
        assert said(asked(Run(), 6), Policy.from_builtins(off), Deaf()) == []


def test_a_text_that_means_nothing_to_the_model_is_like_no_other() -> None:
    """Zeros have no direction."""

    class Blank(WordMeaning):
        def vector(self, text: str) -> bytes:  # noqa: ARG002 - as `Meaning` has it
            return bytes(DIMENSIONS)

    assert said(asked(Run(), 6), meaning=Blank()) == []
