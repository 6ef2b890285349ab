"""The second model in a process of its own: nobody waits for it, and what it does not say in time it has not said."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from loopwarden_models.errors import ConfigError
from loopwarden_streams.confirming_model import MAX_BATCH, ConfirmingModel, percent
from loopwarden_streams.metric_meaning import Missed

log = logging.getLogger(__name__)

# Texts that the process has and has not answered. Together they fit into the buffer of a pipe, so that to hand one over
# never blocks: 32 of 1,000 characters are 32 KB, in scripts of three bytes 96 KB, and Linux keeps 200 KB of a socket.
MAX_WAITING: Final = 32
# An agent's step takes seconds: later the next one is there, and is judged without. judgement
DEADLINE_S: Final = 2.0
# A process that has not answered for so long hangs.
HANGS_S: Final = 30.0
# Vectors that are kept: of texts that the runs of a worker said lately. 1.5 KB each.
MEMO: Final = 4_096
# A process that ended is started again after this, then after twice as long, and so on.
FIRST_PAUSE_S: Final = 5.0
LAST_PAUSE_S: Final = 300.0
_END_S: Final = 2.0
# The lowest priority there is: what is judged goes before what is confirmed.
_NICENESS: Final = 19


class Confirmer:
    """Asks the second model, in another process. Not thread-safe.

    Attributes:
        name: Of the model, once it is loaded; before that its setting.
        is_up: The process has loaded its model and runs.
        waits_s: How long each text took that it answered in time, since somebody took them away.
        missed: Why texts were not: `late`, `full` (too many wait), `down` (it loads, or has ended); the same.
    """

    def __init__(self, model: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the process, which loads its model meanwhile."""
        self.name = model
        self.is_up = False
        self.waits_s: list[float] = []
        self.missed: Counter[Missed] = Counter()
        self._model = model
        self._clock = clock
        self._waiting: dict[int, float] = {}
        self._known: dict[int, Any] = {}
        self._pause_s = FIRST_PAUSE_S
        self._start_at = 0.0
        self._process: Any = None
        self._pipe: Connection | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """Process id of the second model, `None` if it is not running."""
        return None if self._process is None else self._process.pid

    def ask(self, key: int, text: str) -> None:
        """Hand over a text, unless it is known or too many wait. Never blocks. Cost: 15 µs."""
        self._hear()
        if key in self._known or key in self._waiting:
            return
        if self._pipe is None or not self.is_up:
            self.missed["down"] += 1
        elif len(self._waiting) >= MAX_WAITING:
            self.missed["full"] += 1
        else:
            try:
                self._pipe.send((key, text))
                self._waiting[key] = self._clock()
            except OSError:
                self._lost()

    def confirmed_percent(self, one: int, other: int) -> int | None:
        """See `Meaning`. Cost: 5 µs."""
        self._hear()
        mine, others = self._known.get(one), self._known.get(other)
        return None if mine is None or others is None else percent(mine, others)

    def look(self) -> None:
        """Hear what came, and start the process anew if it has ended or hangs. Call it once a second."""
        self._hear()
        now = self._clock()
        if self._waiting and min(self._waiting.values()) < now - HANGS_S:
            self._lost()
        if self._pipe is None and now >= self._start_at:
            self._start()

    def close(self) -> None:
        """End the process, and wait until it has ended. Cost: 2 s at most, milliseconds nearly always."""
        self._end()
        if self._process is not None:
            self._process.join(_END_S)

    def _end(self) -> None:
        """End the process, and wait for nothing: this may be in the middle of a batch. It holds nothing to be saved."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self.is_up = False
        if self._process is not None:
            self._process.kill()

    def _start(self) -> None:
        # Not forked: threads of the Kafka client may hold locks.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._model), daemon=True, name="confirmer")
        self._process.start()
        theirs.close()

    def _hear(self) -> None:
        pipe = self._pipe
        if pipe is None:
            return
        now = self._clock()
        try:
            while pipe.poll():
                key, said = pipe.recv()
                if key is None:
                    self._take_up(said)
                    continue
                waited_s = now - self._waiting.pop(key)
                if waited_s <= DEADLINE_S:
                    self.waits_s.append(waited_s)
                    if len(self._known) >= MEMO:
                        del self._known[next(iter(self._known))]
                    self._known[key] = np.frombuffer(said, dtype=np.float32)
                else:
                    self.missed["late"] += 1
        except (EOFError, OSError):
            self._lost()

    def _take_up(self, said: tuple[str, str]) -> None:
        name, problem = said
        if problem:
            log.warning("no second model, so nothing that rests on meaning goes beyond a nudge: %s", problem)
            self._start_at = float("inf")
            self._end()
            return
        self.name, self.is_up, self._pause_s = name, True, FIRST_PAUSE_S
        log.info("second model %s is loaded", name)

    def _lost(self) -> None:
        self.missed["down"] += len(self._waiting)
        self._waiting.clear()
        self._end()
        if self._start_at != float("inf"):
            self._start_at = self._clock() + self._pause_s
            log.warning("the process of the second model ended; it is started again in %.0f s", self._pause_s)
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)


def serve(pipe: Connection, model: str) -> None:
    """Be the process: say the model's name, or why there is none; then answer texts until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the worker ends this
    os.nice(_NICENESS)
    try:
        ready = ConfirmingModel(model)
    except ConfigError as error:
        pipe.send((None, ("", str(error))))
        return
    pipe.send((None, (ready.name, "")))
    try:
        while True:
            asked = [pipe.recv()]
            while len(asked) < MAX_BATCH and pipe.poll():
                asked.append(pipe.recv())
            for (key, _), vector in zip(asked, ready.vectors([text for _, text in asked]), strict=True):
                pipe.send((key, vector.tobytes()))
    except (EOFError, OSError):
        return
