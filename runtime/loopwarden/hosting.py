"""Which runs this process hosts, and which it has hosted: only for those may it answer."""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from loopwarden.decisions import RunKey, StopCause
from loopwarden.gate import Gate
from loopwarden_models.commands import ANY_INCARNATION

# Ended runs that are still answered for: a command's life is minutes, and a process rarely ends this many in that time.
MAX_ENDED = 10_000


class EndedRun(Struct, frozen=True):
    """A run that was hosted here and is over."""

    key: RunKey
    status: str
    cause: StopCause | None


class Hosting:
    """Gates by run. For one thread at a time."""

    def __init__(self, *, max_ended: int = MAX_ENDED) -> None:
        self._max_ended = max_ended
        self._live: dict[str, list[Gate]] = {}
        self._ended: OrderedDict[str, EndedRun] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(gates) for gates in self._live.values())

    def add(self, gate: Gate) -> None:
        """Host a run from now on."""
        self._live.setdefault(gate.key.run_id, []).append(gate)

    def remove(self, gate: Gate, status: str) -> None:
        """Remember a run as ended."""
        run_id = gate.key.run_id
        left = [other for other in self._live.get(run_id, ()) if other is not gate]
        if left:
            self._live[run_id] = left
        else:
            self._live.pop(run_id, None)
        self._ended[run_id] = EndedRun(gate.key, status, gate.cause)
        self._ended.move_to_end(run_id)
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)

    def gates(self) -> list[Gate]:
        """Return the gates of all live runs."""
        return [gate for gates in self._live.values() for gate in gates]

    def live(self, run_id: str) -> list[Gate]:
        """Return the live incarnations of a run: one, unless a program runs it twice."""
        return list(self._live.get(run_id, ()))

    def ended(self, run_id: str) -> EndedRun | None:
        """Return the incarnation that ended last."""
        return self._ended.get(run_id)

    def descendants(self, run_id: str, incarnation: str) -> list[Gate]:
        """Return live runs below `run_id`, under that incarnation of it or under an unknown one.

        Cost: O(live runs); for commands to trees only.
        """
        return [
            gate
            for gate in self.gates()
            if any(ancestor == run_id and matches(incarnation, below) for ancestor, below in gate.key.ancestors)
        ]

    def stopped_ancestor(self, key: RunKey) -> tuple[str, StopCause] | None:
        """Return the nearest ancestor in this process that was stopped, if any."""
        for run_id, incarnation in reversed(key.ancestors):
            for gate in self._live.get(run_id, ()):
                if gate.cause is not None and incarnation == gate.key.incarnation:
                    return run_id, gate.cause
            ended = self._ended.get(run_id)
            if ended is not None and ended.cause is not None and ended.key.incarnation == incarnation:
                return run_id, ended.cause
        return None


def matches(named: str, incarnation: str) -> bool:
    """Return whether a command for the incarnation `named` is meant for `incarnation`; an unknown one is included."""
    return named in {ANY_INCARNATION, incarnation} or not incarnation
