"""The second model in its process: it answers, and nobody ever waits for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from tests._support.workers import wait_until

pytest.importorskip("numpy", reason="needs sentence-transformers and MiniLM: make test-embeddings")

from loopwarden_streams.confirmer import DEADLINE_S, FIRST_PAUSE_S, HANGS_S, MAX_WAITING, Confirmer

# Six seconds alone; on a machine with other work torch takes its time.
LOAD_S = 180.0
TEXTS = ("The list ends here.", "This is the end of the list.", "A cat sat on the mat.")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The confirmer's clock."""
    return Clock()


@pytest.fixture
def confirmer(transformer: str, clock: Clock) -> Iterator[Confirmer]:
    """One that is up."""
    started = Confirmer(transformer, clock=clock)
    wait_until(lambda: looked(started).is_up, "the model to be loaded", timeout_s=LOAD_S)
    yield started
    started.close()


def looked(confirmer: Confirmer) -> Confirmer:
    """Return the confirmer after it heard what came."""
    confirmer.look()
    return confirmer


def pid_of(confirmer: Confirmer) -> int:
    """Return the process id of the second model."""
    assert confirmer.pid is not None
    return confirmer.pid


def known(confirmer: Confirmer, one: int, other: int) -> Callable[[], bool]:
    """Return a question to wait for."""
    return lambda: confirmer.confirmed_percent(one, other) is not None


def test_it_answers_and_remembers(confirmer: Confirmer) -> None:
    """Equal texts are asked once."""
    for key, text in enumerate(TEXTS):
        confirmer.ask(key, text)
    wait_until(known(confirmer, 0, 2), "the answers")
    for key, text in enumerate(TEXTS):
        confirmer.ask(key, text)

    assert (confirmer.confirmed_percent(0, 1) or 0) > (confirmer.confirmed_percent(0, 2) or 0)
    assert confirmer.confirmed_percent(0, 0) == 100
    assert len(confirmer.waits_s) == len(TEXTS)
    assert confirmer.missed == {}
    assert confirmer.name.startswith("model")


def test_what_comes_late_was_not_said(confirmer: Confirmer, clock: Clock) -> None:
    """The step was judged long ago."""
    os.kill(pid_of(confirmer), signal.SIGSTOP)
    confirmer.ask(1, TEXTS[0])
    clock.now_s += DEADLINE_S + 0.1
    os.kill(pid_of(confirmer), signal.SIGCONT)
    wait_until(lambda: looked(confirmer).missed["late"], "the late answer")

    assert confirmer.confirmed_percent(1, 1) is None


def test_a_process_that_does_not_answer_is_never_waited_for(confirmer: Confirmer, clock: Clock) -> None:
    """What would not fit is not handed over; who hangs is ended and started anew."""
    first = pid_of(confirmer)
    os.kill(first, signal.SIGSTOP)
    for key in range(3 * MAX_WAITING):
        confirmer.ask(key, "語" * 1_000)  # would block for ever, were it to wait
    assert confirmer.missed["full"] == 2 * MAX_WAITING

    clock.now_s += HANGS_S + 1
    started = time.monotonic()
    confirmer.look()
    assert time.monotonic() - started < 1, "a stopped process does not hear that it is to end: nobody waits for it"
    assert not confirmer.is_up
    clock.now_s += FIRST_PAUSE_S
    wait_until(lambda: looked(confirmer).is_up, "the process to be started anew", timeout_s=LOAD_S)
    confirmer.ask(1, TEXTS[0])
    wait_until(known(confirmer, 1, 1), "an answer of the new process")

    assert pid_of(confirmer) != first


def test_a_process_that_is_killed_is_started_again_after_a_pause(confirmer: Confirmer, clock: Clock) -> None:
    """Meanwhile nothing is confirmed, and nothing raises."""
    os.kill(pid_of(confirmer), signal.SIGKILL)
    wait_until(lambda: not looked(confirmer).is_up, "the end to be noticed")
    confirmer.ask(1, TEXTS[0])
    assert confirmer.confirmed_percent(1, 1) is None
    assert confirmer.missed["down"] == 1
    clock.now_s += FIRST_PAUSE_S

    wait_until(lambda: looked(confirmer).is_up, "the process to be started anew", timeout_s=LOAD_S)


def test_a_model_that_is_not_there_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """And not tried again every five seconds, for ever."""
    clock = Clock()
    confirmer = Confirmer("/nowhere/at/all", clock=clock)
    wait_until(lambda: [looked(confirmer)] and caplog.records, "the log line", timeout_s=LOAD_S)
    clock.now_s += 10_000
    confirmer.look()
    confirmer.ask(1, TEXTS[0])
    confirmer.close()

    [said] = [record.message for record in caplog.records]
    assert "/nowhere/at/all" in said
    assert "goes beyond a nudge" in said
    assert not confirmer.is_up
