"""What the runtimes say to a person's order, and when it can be called done."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from loopwarden_models.acks import Ack
from loopwarden_streams.operator_orders import OrderType

Outcome = Literal["open", "confirmed", "nothing_to_do", "refused"]


class Answers:
    """Adds up the acknowledgements of one command. Not thread-safe.

    Attributes:
        acks: In the order in which they came.
    """

    def __init__(self, kind: OrderType, *, expected: Collection[str]) -> None:
        """Wait for the runs in `expected`, and for every other that answers."""
        self._final = "confirmed_dead" if kind == "kill_run" else "applied"
        self._expected = frozenset(expected)
        self._newest: dict[tuple[str, str], str] = {}
        self.acks: list[Ack] = []

    def put(self, ack: Ack) -> None:
        """Take an answer."""
        self.acks.append(ack)
        place = (ack.run_id, ack.runtime_id or "")
        # "applied before" comes when a record is read twice; it takes nothing back.
        if self._newest.get(place) not in {"applied", "confirmed_dead"} or ack.status == "confirmed_dead":
            self._newest[place] = ack.status

    @property
    def was_applied(self) -> bool:
        """Whether a gate is shut, held or opened because of it."""
        return any(ack.status in {"applied", "confirmed_dead"} for ack in self.acks)

    @property
    def outcome(self) -> Outcome:
        """How it stands now. `open` is also what nobody has answered, or not all that are expected."""
        newest = self._newest
        if not newest or not self._expected <= {run_id for run_id, _ in newest}:
            return "open"
        words = set(newest.values())
        if words & {"received", "applied"} - {self._final}:
            return "open"
        if self._final in words or "confirmed_dead" in words:
            return "confirmed"
        return "nothing_to_do" if words <= {"noop"} else "refused"
