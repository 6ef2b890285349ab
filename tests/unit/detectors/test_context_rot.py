"""Compactions that free nothing, or after which the work begins anew."""

from __future__ import annotations

from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

ROT = only("context_rot")


def compaction(run: Run, after: int = 95_000) -> AnyStep:
    """Return a compaction of 100,000 tokens."""
    return run.step("compaction", tokens_before=100_000, tokens_after=after)


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that these steps bring."""
    return levels(decide(steps, ROT))


def test_compactions_that_free_nothing_are_counted_in_a_row() -> None:
    """The first is noticed, the second told, the third ends the run."""
    run = Run()

    assert said([compaction(run) for _ in range(3)]) == ["observe", "nudge", "kill"]


def test_one_that_helps_ends_the_row() -> None:
    """What works now and then is no loop."""
    run = Run()
    steps = [compaction(run), compaction(run, 20_000), *[run.call("read", n, n, effect="read") for n in range(8)]]

    assert "nudge" not in said([*steps, compaction(run)])


def test_what_is_full_again_at_once_was_in_vain() -> None:
    """The tokens of the next answer tell."""
    run = Run()
    lap = [
        step
        for _ in range(3)
        for step in (
            compaction(run, 10_000),
            run.model(usage={"input_tokens": 90_000, "output_tokens": 9}, tool_calls=1),
        )
    ]

    assert said(lap)[:2] == ["observe", "nudge"]


def test_a_run_that_begins_with_its_last_call_again_has_forgotten_it() -> None:
    """The detector has not: the evidence lives outside of the context."""
    run = Run()
    steps = [run.call("read", "a", "A", effect="read")]
    for _ in range(3):
        steps += [compaction(run, 10_000), run.call("read", "a", "A", effect="read")]

    assert said(steps)[:2] == ["observe", "nudge"]


def test_reads_that_bring_only_what_was_known_are_lost_evidence() -> None:
    """Three of the first six after a compaction, and nothing new."""
    run = Run()
    pages = [run.call("read", page, f"page {page}", effect="read") for page in "abcdef"]
    for _ in range(3):
        pages += [
            compaction(run, 10_000),
            *[run.call("read", page, f"page {page}", effect="read") for page in "abcdef"],
        ]

    assert "nudge" in said(pages)


def test_a_run_that_reads_its_notes_and_works_on_is_healthy() -> None:
    """It looks the same for a step or two."""
    run = Run()
    steps = [run.call("read", "notes", "N", effect="read")]
    for n in range(5):
        steps += [
            compaction(run, 10_000),
            run.call("read", "notes", "N", effect="read"),
            *[run.call("read", f"{n} {k}", f"text {n} {k}", effect="read") for k in range(4)],
        ]

    assert "nudge" not in said(steps)


def test_evidence_and_state_survive_a_snapshot() -> None:
    """The third may be judged by another worker."""
    run = Run()
    tree = tree_of(first := compaction(run))
    decide([first, compaction(run)], ROT, tree=tree)
    again = TreeState.from_bytes(tree.to_bytes())
    (kill,) = [v for v in verdicts(decide([compaction(run)], ROT, tree=again)) if v.episode]

    assert (kill.level, kill.pattern, kill.evidence.first_seq) == ("kill", "context_rot", 0)
