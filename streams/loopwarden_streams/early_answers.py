"""Acknowledgements that are read before the step that they answer: after a crash, two topics are replayed at once.

An answer was written after its command, and the command after its step. But what a crash takes back of the steps is
read again beside the answers, in whatever order the fetches come. An answer that is read too early would find no
command that it could belong to, and the loop that was warned would count as never warned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loopwarden_detectors.answers import acknowledge
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import Ack


class Answer(NamedTuple):
    """An acknowledgement with the record's key and offset."""

    key: bytes
    ack: Ack
    offset: int


class EarlyAnswers:
    """Answers of one partition that were read while its steps are replayed. Bounded by what is replayed.

    They are kept until the replay is over, and no checkpoint covers them before.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._by_command: dict[str, list[Answer]] = {}
        self._first_offset = -1

    def __bool__(self) -> bool:
        return bool(self._by_command)

    def add(self, answer: Answer) -> None:
        """Keep an answer; offsets must rise."""
        if not self._by_command:
            self._first_offset = answer.offset
        self._by_command.setdefault(answer.ack.command_id, []).append(answer)

    def give(self, tree: TreeState, decisions: Sequence[Decision]) -> None:
        """Acknowledge, in the state of `tree`, the orders among `decisions` whose answers are here already."""
        for decision in decisions if self._by_command else ():
            if decision.order is not None:
                for answer in self.to(decision.order.command_id):
                    acknowledge(tree, answer.ack)

    def to(self, command_id: str) -> list[Answer]:
        """Return the answers to a command that is given again in the replay, in their order."""
        return self._by_command.get(command_id, [])

    def covered(self, offset: int) -> int:
        """Return how far a checkpoint may cover the acknowledgements of which `offset` was read last."""
        return self._first_offset - 1 if self._by_command else offset

    def release(self) -> list[Answer]:
        """Return all answers in their order, and keep none."""
        answers = sorted((each for own in self._by_command.values() for each in own), key=lambda each: each.offset)
        self._by_command.clear()
        return answers
