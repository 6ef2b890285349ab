"""Agents that write to each other, round and round."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, order_of, orders, tree_of, verdicts

from loopwarden_detectors.ping_pong import MAX_SPEAKERS, MAX_TALKS, Said
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

POLICY = only("ping_pong")
SAME = "Please look at the list once more and tell me what is still open, then send it back to me."
# What four people say about a harbour when they have something to say.
NEW = (
    "The northern quay closes for dredging in March, so the two ferries have to moor at the fish market.",
    "Who pays the pilots then? Their contract names the old berth and has a clause on detours of over a mile.",
    "I read it: detours are shared half and half up to nine thousand, afterwards we pay everything ourselves.",
    "Nine thousand will last eleven days at two arrivals each. Could we book evening tides instead of noon?",
    "Evening tides need lamps on the breakwater; the electrician quoted four weeks and a generator on loan.",
    "A generator we own already, in shed six. That leaves cables, which the yard would lend us until Easter.",
    "Then only insurance remains: the broker wants photographs of every fender before he signs the cover note.",
    "Fenders were replaced last autumn, invoices and pictures lie with accounting under storm repairs.",
    "Good. Draft letter to the ferry line: new mooring, tide table, phone of the duty pilot, start on the third.",
    "Letter is drafted. One doubt: their bow ramp is wider than the slip at the market by forty centimetres.",
    "Measured again at low water today, it fits with planks at both sides; carpenter needs one morning.",
    "Carpenter agreed for Tuesday. I think we have everything, and the letter can go out this afternoon.",
)


def agents(*names: str) -> list[Run]:
    """Return one run for each agent of a tree, the first is its root."""
    return [Run(name, root=names[0]) for name in names]


def message(sender: Run, receiver: Run, text: str | None = SAME, **fields: Any) -> AnyStep:
    """Return a message from one run to another."""
    return sender.step("message", to_run_id=receiver.run_id, text=text, agent=sender.run_id, **fields)


def circle(runs: list[Run], n: int, text: str | None = SAME) -> list[AnyStep]:
    """Return `n` messages, each run to the next one."""
    return [message(runs[k % len(runs)], runs[(k + 1) % len(runs)], text) for k in range(n)]


def starts(runs: list[Run]) -> list[AnyStep]:
    """Return the first events of the runs."""
    return [run.start(agent=run.run_id) for run in runs]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_messages_in_a_circle_climb(size: int) -> None:
    """Four are normal, six are a matter for advice, ten without a tool call end the tree."""
    #  message   1 2 3  4        5  6      7 … 9  10
    #                   observe     nudge         kill      a circle of four is known at its fifth
    for n, expected in {3: 0, 5: 1, 6: 2, 9: 2, 10: 3}.items():
        runs = agents(*"abcd"[:size])

        assert levels(decide([*starts(runs), *circle(runs, n)], POLICY)) == ["observe", "nudge", "kill"][:expected]


def test_the_verdict_is_about_the_tree() -> None:
    """Neither run repeats anything by itself; who has to be told is the root."""
    runs = agents("boss", "b", "c")
    decisions = decide([*starts(runs), *circle(runs[1:], 10)], POLICY)
    kill = order_of(decisions, "kill_run")

    assert (kill.run_id, kill.scope, kill.reason.pattern) == ("boss", "tree", "agent_ping_pong")
    assert orders(decisions) == ["nudge", "kill_run"]
    verdict = verdicts(decisions)[0]
    assert verdict.evidence.note == "4 messages in a circle of 2 agents, and no tool call in between"
    assert (verdict.evidence.first_seq, verdict.evidence.window_ms) == (1, 2_000)


@pytest.mark.parametrize("who", [0, 1])
def test_work_ends_a_talk(who: int) -> None:
    """A draft goes back and forth and is better each time: by either of the two."""
    runs = agents("a", "b")
    steps = starts(runs)
    for lap in range(9):
        steps += [*circle(runs, 2), runs[who].call("save", lap, "saved", effect="write")]

    assert levels(decide(steps, POLICY)) == []


def test_a_call_in_flight_is_work() -> None:
    """While the test suite runs, they chat about it."""
    runs = agents("a", "b")
    steps = [*starts(runs), runs[0].step("tool_start", tool="tests", call_id="t")]

    assert levels(decide([*steps, *circle(runs, 12)], POLICY)) == []


def test_waiting_for_the_answer_is_no_work() -> None:
    """The mailbox is polled between the messages."""
    runs = agents("a", "b")
    steps = starts(runs)
    for said in circle(runs, 10):
        steps += [said, runs[0].call("sleep", 5, ""), runs[1].call("inbox", {}, "empty", effect="poll")]
    again = agents("a", "b")
    steps = starts(again)
    for k in range(10):
        steps.append(message(again[k % 2], again[1 - k % 2]))
        steps.append(again[1 - k % 2].call("inbox", k, "empty", effect="poll"))

    assert levels(decide(steps, POLICY)) == ["observe", "nudge", "kill"]


def test_what_is_new_each_time_is_talked_about() -> None:
    """People who settle ten questions in twelve letters are no loop: nobody is advised before ten, and nobody ended."""
    runs = agents("a", "b")
    steps = [*starts(runs), *[message(runs[k % 2], runs[1 - k % 2], text) for k, text in enumerate(NEW)]]

    assert levels(decide(steps, POLICY)) == ["observe", "nudge"]
    assert orders(decide(steps, POLICY)) == ["nudge"]


@pytest.mark.parametrize("text", ["Thanks!", None, "Could you check point {} of the list again, and send it back?"])
def test_what_says_nothing_new_does_not_protect(text: str | None) -> None:
    """Thanks for thanks; texts that nobody reports; a number that moves."""
    runs = agents("a", "b")
    steps = [*starts(runs), *[message(runs[k % 2], runs[1 - k % 2], text and text.format(k)) for k in range(10)]]

    assert levels(decide(steps, POLICY)) == ["observe", "nudge", "kill"]


def test_five_workers_of_one_name_are_five() -> None:
    """A lead asks each of them the same once and gets the same answer: a round, and no circle."""
    lead, *workers = agents("lead", *"12345")
    steps = [run.start(agent="lead" if run is lead else "worker") for run in (lead, *workers)]
    for worker in workers:
        steps += [lead.step("message", to_run_id=worker.run_id, text=SAME)]
        steps += [worker.step("message", to_run_id="lead", text="Nothing is open here, all of it is done.")]

    assert levels(decide(steps, POLICY)) == []


def test_a_round_of_many_at_once_is_no_circle() -> None:
    """Five are asked, five answer, three times over: each talk has six messages, and only two of each round."""
    lead, *workers = agents("lead", *"12345")
    steps = starts([lead, *workers])
    for _ in range(2):
        steps += [message(lead, worker) for worker in workers]
        steps += [message(worker, lead) for worker in workers]

    assert "nudge" not in levels(decide(steps, POLICY))


def test_each_message_may_start_a_new_run() -> None:
    """No run speaks twice, so agents are known by their names; and by a chain of 25 if they are not."""
    boss = Run("boss")
    steps: list[AnyStep] = [boss.start(agent="boss")]
    for n in range(10):
        run = Run(f"r{n}", root="boss")
        steps.append(
            run.step("message", agent="ab"[n % 2], to_run_id=f"r{n + 1}", to_agent="ab"[(n + 1) % 2], text=SAME)
        )

    assert levels(decide(steps, POLICY)) == ["observe", "nudge", "kill"]


def test_a_chain_of_25_ends_whatever_its_shape() -> None:
    """Seven agents in a circle, which is no small one."""
    runs = agents(*"abcdefg")
    decisions = decide([*starts(runs), *circle(runs, 24)], POLICY)
    assert levels(decisions) == []

    runs = agents(*"abcdefg")
    decisions = decide([*starts(runs), *circle(runs, 27)], POLICY)
    assert levels(decisions) == ["kill"]
    assert orders(decisions) == ["nudge", "kill_run"]


def test_two_talks_do_not_disturb_each_other() -> None:
    """Two pairs at the same time are two talks; each has ten messages before it is ended."""
    runs = agents(*"abcd")
    pairs = (runs[:2], runs[2:])
    steps = [*starts(runs), *[message(pair[k % 2], pair[1 - k % 2]) for k in range(6) for pair in pairs]]

    assert levels(decide(steps, POLICY)) == ["observe", "observe", "nudge", "nudge"]


@pytest.mark.parametrize("kind", ["user_input", "progress"])
def test_a_person_or_progress_ends_a_talk(kind: str) -> None:
    """Somebody looked, or the task moved on."""
    runs = agents("a", "b")
    steps = [*starts(runs), *circle(runs, 5), runs[1].step(kind), *circle(runs, 5), runs[0].step(kind)]

    assert set(levels(decide([*steps, *circle(runs, 3)], POLICY))) == {"observe"}


def test_missing_ends_prove_nothing() -> None:
    """To nobody in particular, and to oneself."""
    runs = agents("a", "b")
    steps = starts(runs)
    for k in range(12):
        steps += [runs[k % 2].step("message", text=SAME), message(runs[0], runs[0])]

    assert levels(decide(steps, POLICY)) == []


def test_an_agent_is_found_by_its_name() -> None:
    """Where the run is not known, the one run of that name is meant."""
    runs = agents("a", "b")
    steps = [*starts(runs), *[runs[k % 2].step("message", to_agent="ba"[k % 2], text=SAME) for k in range(10)]]

    assert levels(decide(steps, POLICY)) == ["observe", "nudge", "kill"]


def test_days_between_messages_do_not_count() -> None:
    """Seven hours a turn."""
    runs = agents("a", "b")
    for run in runs:
        run.gap_ms = 50_000_000

    assert levels(decide([*starts(runs), *circle(runs, 10)], POLICY)) == ["observe", "nudge", "kill"]


def test_memory_is_bounded_and_survives() -> None:
    """Any number of talks and speakers; and a restart in the middle of one changes nothing."""
    runs = agents(*[f"r{n}" for n in range(30)])
    steps = [*starts(runs), *circle(runs, 40), *[message(runs[0], run) for run in runs[1:]]]
    tree = tree_of(steps[0])
    decide(steps, POLICY, tree=tree)
    assert tree.talks is not None
    assert len(tree.talks) == MAX_TALKS
    assert max(len(talk.speakers) for talk in tree.talks) <= MAX_SPEAKERS
    assert len(tree.to_bytes()) < 12_000

    pair = agents("a", "b")
    steps = [*starts(pair), *circle(pair, 10)]
    for cut in range(1, len(steps)):
        tree = tree_of(steps[0])
        said = levels(decide(steps[:cut], POLICY, tree=tree))
        tree = TreeState.from_bytes(tree.to_bytes())
        assert said + levels(decide(steps[cut:], POLICY, tree=tree)) == ["observe", "nudge", "kill"]


def test_a_healthy_tree_without_messages_holds_nothing() -> None:
    """Most trees never write a message."""
    run = Run()
    tree = tree_of(start := run.start())
    decide([start, *run.calls(3), run.user()], POLICY, tree=tree)

    assert tree.talks is None
    assert Said(1, 2, 3, 4).sketch == b""
