"""What a stopped run leaves behind: processes, which are waited for and ended, and a parent that waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from loopwarden.acknowledger import Acknowledger
from loopwarden.clock import Clock
from loopwarden.decisions import StopCause
from loopwarden.faults import Counters
from loopwarden.gate import Gate
from loopwarden.processes import ProcessesUnknownError, ProcessTree, Table, is_above, look_up, process_table
from loopwarden.spawning import WaitingCall

# How long running code may go on where the command does not say. As `ladder.kill_grace_ms` of policies.
GRACE_MS = 5_000

# From SIGTERM to SIGKILL. judgement: less than the ten seconds after which a kill counts as unconfirmed.
KILL_AFTER_MS = 2_000

# While the guard is closed, nobody else does it later.
_CLOSING_POLL_S = 0.05


class _Run:
    """A run with processes of its own."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.trees: list[ProcessTree] = []
        self.is_blind = False
        self.waiting: WaitingCall | None = None
        self.stopped_ms: float | None = None
        self.has_left = False
        # Its first process was adopted when its code had returned: its end was confirmed, or needs no confirming.
        self.is_late = gate.over
        self.ended = 0

    def grace_ms(self) -> float:
        """Return how long its processes may go on after the stop."""
        cause = self.gate.cause
        return GRACE_MS if cause is None or cause.grace_ms is None else cause.grace_ms


class StoppedRuns:
    """Waits for the processes of stopped runs, ends them after the grace, and confirms the deaths of such runs.

    Thread-safe. `adopt` and `leave` wait for no other thread's work; `tick` belongs to the control thread.
    """

    def __init__(self, *, acks: Acknowledger, clock: Clock, counters: Counters) -> None:
        self._acks = acks
        self._clock = clock
        self._counters = counters
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()
        self._one_look = threading.Lock()

    def __len__(self) -> int:
        return sum(len(run.trees) for run in list(self._runs.values()))

    def watch(self, gate: Gate, waiting: WaitingCall) -> None:
        """A run begins that a call of its parent waits for: the call outlives a stop by the grace at most."""
        with self._lock:
            self._runs.setdefault(id(gate), _Run(gate)).waiting = waiting

    def adopt(self, gate: Gate, pid: int | None, *, is_ended: bool) -> bool:
        """Watch a process and all that comes of it; returns False if it is gone already.

        Raises:
            ValueError: It has no id yet, or is this process, or one that this process came from.
        """
        if pid is None:
            raise ValueError("the process has not been started")
        try:
            root = look_up(pid)
            if root is not None and is_above(pid):
                raise ValueError(f"process {pid} is the one that hosts the run, or one above it")
        except ProcessesUnknownError as error:
            self._blind(gate, error)
            return False
        if root is None:
            return False
        tree = ProcessTree(root, is_ended=is_ended)
        with self._lock:
            self._runs.setdefault(id(gate), _Run(gate)).trees.append(tree)
        return True

    def leave(self, gate: Gate) -> bool:
        """The run's code has returned; returns whether its processes are waited for before its end is confirmed."""
        with self._lock:
            run = self._runs.get(id(gate))
            if run is None:
                return False
            cause = gate.cause
            # Of a run that ended by itself, what it left running is its own affair.
            is_awaited = cause is not None and (bool(run.trees) or run.is_blind)
            if is_awaited:
                run.has_left = True
            else:
                del self._runs[id(gate)]
        if cause is not None and run.waiting is not None:
            run.waiting.end(cause)
        return is_awaited

    def tick(self) -> None:
        """Do what is due. Never raises. Cost: 2 µs a process of a live run; a look at all processes if one stopped."""
        try:
            with self._one_look:
                self._tick(self._clock.monotonic_ms())
        except ProcessesUnknownError as error:
            self._counters.warn("processes", "cannot look at processes: %s", error)
        except Exception as error:  # noqa: BLE001 - the thread reads the orders of all runs
            self._counters.fault("processes", error)

    def close(self, deadline_s: float) -> None:
        """End what is left of stopped runs at once: this process goes, and nobody would do it later.

        Args:
            deadline_s: `time.monotonic()`; half of the time until then lies between SIGTERM and SIGKILL.
        """
        begun_s = time.monotonic()
        while any(run.gate.cause is not None and run.trees for run in list(self._runs.values())):
            now_s = time.monotonic()
            is_late = now_s - begun_s >= (deadline_s - begun_s) / 2
            with self._one_look:
                self._tick(self._clock.monotonic_ms(), hurry_ms=KILL_AFTER_MS if is_late else 0)
            if now_s >= deadline_s:
                return
            time.sleep(_CLOSING_POLL_S)

    def _tick(self, now_ms: float, *, hurry_ms: float | None = None) -> None:
        with self._lock:
            # Before the look at the table: who is adopted after it would seem to be gone.
            runs = [(run, list(run.trees)) for run in self._runs.values()]
        table: Table | None = None
        for run, trees in runs:
            if run.gate.cause is None:
                self._keep(run, [tree for tree in trees if tree.is_gone()])
                if run.gate.over:
                    self._forget(run)
                continue
            if run.stopped_ms is None:
                run.stopped_ms = now_ms
            since_ms = now_ms - run.stopped_ms - run.grace_ms() if hurry_ms is None else hurry_ms
            if since_ms >= 0 and run.waiting is not None:
                run.waiting.end(run.gate.cause)
            if trees:
                table = process_table() if table is None else table
                self._keep(run, [each for each in trees if not self._lives(run, each, table, since_ms)])
            if run.gate.over and not run.trees:
                self._settle(run, run.gate.cause)

    def _lives(self, run: _Run, tree: ProcessTree, table: Table, since_ms: float) -> bool:
        alive = tree.alive(table)
        if tree.is_ended and since_ms >= 0:
            is_last = since_ms >= KILL_AFTER_MS
            for pid in alive:
                if pid not in tree.told:
                    run.ended += 1
                    self._counters.add("processes_ended")
                if is_last or pid not in tree.told:
                    tree.told.add(pid)
                    # Gone meanwhile, or not ours to end: it is looked at again, and confirmed only when it is gone.
                    with contextlib.suppress(OSError):
                        os.kill(pid, _KILL if is_last else signal.SIGTERM)
        return bool(alive)

    def _keep(self, run: _Run, gone: list[ProcessTree]) -> None:
        if gone:
            with self._lock:
                run.trees = [tree for tree in run.trees if tree not in gone]

    def _forget(self, run: _Run) -> None:
        with self._lock:
            self._runs.pop(id(run.gate), None)

    def _settle(self, run: _Run, cause: StopCause) -> None:
        with self._lock:
            if run.trees:
                return  # adopted at this moment
            if not run.has_left and not run.is_late:
                return  # `leave` is about to be called
            self._runs.pop(id(run.gate), None)
        if not run.has_left or run.is_blind:
            return
        if cause.confirm and cause.command_id is not None:
            detail = f"{run.ended} of its processes had to be ended" if run.ended else ""
            self._acks.send(run.gate.key, cause.command_id, "confirmed_dead", append_ms=cause.append_ms, detail=detail)

    def _blind(self, gate: Gate, error: Exception) -> None:
        self._counters.add("processes_unseen")
        self._counters.warn("processes", "cannot watch a run's processes, its kill stays unconfirmed: %s", error)
        with self._lock:
            self._runs.setdefault(id(gate), _Run(gate)).is_blind = True


# Windows knows but one way to end a process.
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
