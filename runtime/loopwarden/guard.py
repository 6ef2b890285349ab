"""The guard of a process: connects once, and makes the guards of its runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Literal, Self

from loopwarden import __version__
from loopwarden.acknowledger import Acknowledger, encode_ack
from loopwarden.approvals import DEFAULTS, Approvals
from loopwarden.breakers import Breakers
from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import SYSTEM_CLOCK, Clock
from loopwarden.control import ControlPlane
from loopwarden.control_reader import ControlReader
from loopwarden.decisions import RunKey, SpawnRefusedError, fit
from loopwarden.faults import Counters
from loopwarden.gate import Gate
from loopwarden.limits import Budget, has_limits
from loopwarden.outbox import Outbox
from loopwarden.publisher import Lane
from loopwarden.reporter import Reporter
from loopwarden.run_context import RunContext
from loopwarden.run_guard import RunGuard
from loopwarden.safety_net import ProcessNet, SafetyNet
from loopwarden.signatures import configured
from loopwarden.spawning import Spawns
from loopwarden.step_encoder import PendingStep, StepEncoder
from loopwarden.stopped_runs import StoppedRuns
from loopwarden.transport import Transport
from loopwarden_models.acks import Ack
from loopwarden_models.codec import TENANT_PATTERN
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import Limits
from loopwarden_models.key_ring import KeyRing

RUNTIME_NAME = f"loopwarden-python/{__version__}"

_MAX_ACKS = 10_000
_RUN_ID_CHARS = 128
_AGENT_CHARS = 128
_RUNTIME_ID_CHARS = 256

# Steps are gathered this long: the detector is no slower for it, and a step costs a tenth of a request.
_STEP_LINGER_S = 0.01


class Guard:
    """One per process: reads the control topics, publishes steps and acknowledgements, and gates the runs it made.

    Fails open: without Kafka, without a detector, or with a fault of ours, agents go on and `stats()` says so.

    Thread safety: safe. Threads: three of ours (`loopwarden-control`, `loopwarden-steps`, `loopwarden-acks`), all
    daemons, from `start` on; none before. Not for use after `os.fork` in the child: make a new one there.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        tenant: str,
        runtime_id: str | None = None,
        fidelity: Literal["full", "hash"] = "full",
        result_chars: int = 2_000,
        allow_free_text: bool = False,
        key_ring: KeyRing | str | PathLike[str] | None = None,
        require_signature: bool | None = None,
        max_queue_events: int = 10_000,
        max_queue_bytes: int = 16 * 1024 * 1024,
        max_pause_s: float = 3_600.0,
        max_depth: int | None = None,
        max_children: int | None = None,
        safety_net: SafetyNet | None = None,
        approvals: Approvals = DEFAULTS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Set up; connects to nothing and starts no thread.

        Args:
            transport: `KafkaTransport`, or `loopwarden.testing.MemoryTransport`.
            tenant: Whose runs these are: 1 to 64 characters of `A-Za-z0-9._-`.
            runtime_id: Name of this process in acknowledgements; host and process id by default.
            fidelity: `full` sends arguments, texts and cut results. `hash` sends hashes, sizes, names and numbers
                only: no content leaves the process, and loops that hide behind changing ids are not seen.
            result_chars: Characters of a result, or of an error's message, that are sent. Hash and size are always of
                the whole.
            allow_free_text: Take a nudge's own text instead of a template. Whoever may write commands can then write
                into prompts; with a key ring, only who holds a key.
            key_ring: The public keys that commands and states are checked with: a directory of `*.pub` files or one
                file, read again within five seconds of a change. `LOOPWARDEN_KEY_RING` by default; without either
                nothing is checked. Needs `loopwarden[signing]`.
            require_signature: Refuse what is not signed, too. `LOOPWARDEN_REQUIRE_SIGNATURE` by default, else False:
                a signature that is there must be right, and one need not be there.
            max_queue_events: Events that wait for Kafka; beyond it the oldest are dropped and counted.
            max_queue_bytes: Their size, likewise.
            max_pause_s: Longest `wait_if_paused`, in seconds.
            max_depth: Levels of a tree of runs, the root's included; a run beyond it is refused before it exists. By
                default only the detector's limits hold, and they end the tree (6 levels, 50 children).
            max_children: Children that one run may start in this process since a person spoke to it, likewise.
            safety_net: Refuse tools that keep failing in this process, also without Kafka; see `SafetyNet`. Off by
                default: what a process sees of a tool is little, and the detector sees the fleet.
            approvals: Which calls a person has to approve, and how long a question waits; none by default, but those
                for which the agent's code says `ask` to `before_tool`.
            clock: For tests.

        Raises:
            ConfigError: `tenant`, `fidelity` or a bound is not possible; signatures are to be checked, and the keys or
                the package for it are missing. Raised here, when the program starts, and nowhere later.
        """
        if TENANT_PATTERN.fullmatch(tenant) is None:
            raise ConfigError(f"tenant {tenant!r} does not match [A-Za-z0-9._-]{{1,64}}: choose another name")
        if fidelity not in {"full", "hash"}:
            raise ConfigError(f"fidelity {fidelity!r} is neither 'full' nor 'hash'")
        if min(result_chars, max_queue_events, max_queue_bytes, max_pause_s) <= 0:
            raise ConfigError("result_chars, max_queue_events, max_queue_bytes and max_pause_s must be above zero")
        if (max_depth is not None and max_depth < 1) or (max_children is not None and max_children < 0):
            raise ConfigError("max_depth must be at least 1, and max_children at least 0")
        self._tenant = tenant
        self._transport = transport
        self._clock = clock
        self._fidelity = None if fidelity == "full" else fidelity
        self._counters = Counters()
        self._steps: Outbox[PendingStep] = Outbox(max_items=max_queue_events, max_bytes=max_queue_bytes)
        self._acks: Outbox[Ack] = Outbox(max_items=_MAX_ACKS, max_bytes=max_queue_bytes)
        self._broker = BrokerClock()
        runtime_id = fit(runtime_id or f"{socket.gethostname()}:{os.getpid()}", _RUNTIME_ID_CHARS)
        acknowledger = Acknowledger(
            self._acks,
            runtime_id=runtime_id,
            clock=clock,
            broker=self._broker,
            counters=self._counters,
        )
        breakers = Breakers(self._counters)
        self._plane = ControlPlane(
            tenant=tenant,
            acks=acknowledger,
            broker=self._broker,
            breakers=breakers,
            clock=clock,
            counters=self._counters,
            signatures=configured(key_ring, require_signature, clock=clock, counters=self._counters),
            allow_free_text=allow_free_text,
        )
        self._spawns = Spawns(max_depth=max_depth, max_children=max_children)
        self._stopped = StoppedRuns(acks=acknowledger, clock=clock, counters=self._counters)
        self._reader = ControlReader(transport, self._plane, self._stopped, tenant=tenant, counters=self._counters)
        self._step_lane: Lane[PendingStep] = Lane(
            "steps",
            self._steps,
            StepEncoder(fidelity=fidelity, result_chars=result_chars, counters=self._counters),
            transport,
            counters=self._counters,
            linger_s=_STEP_LINGER_S,
            on_connect=self._close_at_exit,
        )
        # A lane of its own: an acknowledgement does not queue behind steps.
        self._ack_lane: Lane[Ack] = Lane(
            "acks",
            self._acks,
            encode_ack,
            transport,
            counters=self._counters,
            linger_s=0.0,
            on_connect=self._close_at_exit,
        )
        self._context = RunContext(
            plane=self._plane,
            acks=acknowledger,
            stopped=self._stopped,
            spawns=self._spawns,
            broker=self._broker,
            breakers=breakers,
            clock=clock,
            counters=self._counters,
            max_pause_s=max_pause_s,
            approvals=approvals,
            net=None
            if safety_net is None
            else ProcessNet(safety_net, salt=runtime_id, breakers=breakers, counters=self._counters),
            start_child=self.run,
            on_enter=self._entered,
            on_exit=self._left,
        )
        self._live: dict[tuple[str, str], RunGuard] = {}
        self._is_started = False
        self._is_closed = False

    def start(self, *, barrier_s: float = 5.0) -> bool:
        """Connect, and wait until everything that was ordered before is known. Call it before the first run.

        Args:
            barrier_s: Longest wait in seconds.

        Returns:
            True if caught up. False if not yet: agents may go on, orders are obeyed as soon as they are read, and
            `stats()["control_ready"]` is 0 until then.
        """
        if not self._is_started and not self._is_closed:
            self._is_started = True
            self._close_at_exit()
            self._step_lane.start()
            self._ack_lane.start()
            self._reader.start()
        is_ready = self._reader.ready.wait(max(0.0, barrier_s))
        if not is_ready:
            self._counters.add("started_open")
            self._counters.warn("barrier", "the control topics were not read within %s s; agents go on", barrier_s)
        return is_ready

    def run(
        self,
        run_id: str,
        *,
        agent: str | None = None,
        goal: str | None = None,
        attended: bool = False,
        limits: Limits | None = None,
        parent: RunKey | None = None,
        call_id: str | None = None,
        cancel: Callable[[str], object] | None = None,
    ) -> RunGuard:
        """Return the guard of a new incarnation of a run: a context manager, see `RunGuard`.

        Args:
            run_id: The run's id, the same when it is resumed. Longer than 128 characters: a part and a hash of it.
            agent: Which agent, a name of low cardinality.
            goal: What the run is to achieve.
            attended: Is a person watching, who could answer a question?
            limits: Obeyed in this process without Kafka, and told to the detector. They count for this run and all
                below it.
            parent: Key of the run that starts this one; it may live in another process.
            call_id: The tool call in which the parent starts it and waits for it; by default the only call that is out.
                If the run is stopped, that call is reported as ended by it, within the grace. For parents in this
                process.
            cancel: The framework's own way to end the run at once. Called at most once, from the control thread, with
                the reason, after the gate is shut; it must be thread-safe and return at once.

        Entering the context raises `LoopwardenStopped` if the run is not to start.

        Raises:
            SpawnRefusedError: The tree would pass `max_depth` or `max_children`. Never without these.
        """
        run_id = fit(str(run_id) or "unnamed", _RUN_ID_CHARS)
        key = RunKey(
            tenant=self._tenant,
            run_id=run_id,
            root_run_id=run_id if parent is None else parent.root_run_id,
            incarnation=os.urandom(8).hex(),
            parent_run_id=None if parent is None else parent.run_id,
            ancestors=() if parent is None else (*parent.ancestors, (parent.run_id, parent.incarnation)),
        )
        above = None if parent is None else self._live.get((parent.run_id, parent.incarnation))
        if parent is not None and (reason := self._spawns.claim(parent, run_id)) is not None:
            if above is not None:
                above.refuse_child(call_id, reason)
            raise SpawnRefusedError(reason)
        agent = None if not agent else fit(agent, _AGENT_CHARS)
        now_ms = self._clock.monotonic_ms()
        reporter = Reporter(
            key,
            agent=agent,
            fidelity=self._fidelity,
            outbox=self._steps,
            clock=self._clock,
            counters=self._counters,
        )
        return RunGuard(
            key,
            self._context,
            reporter,
            Gate(key, started_ms=now_ms, cancel=cancel),
            budget=_budget(limits, above, now_ms),
            start_fields={"goal": goal, "attended": attended, "runtime": RUNTIME_NAME, "limits": limits},
            awaited_by=None if above is None else above.waits_in(call_id),
        )

    def close(self, *, flush_s: float = 2.0) -> None:
        """Send what is queued, for at most `flush_s` seconds, and end all threads. Never raises; may be called twice.

        Runs that are still open keep their gates as they are and report into the void. Processes that stopped runs have
        adopted are ended now, as far as they may be. Called at exit by itself.
        """
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._close)
        deadline_s = time.monotonic() + max(0.0, flush_s)
        try:
            # Before the lanes: what is confirmed by it is still sent.
            self._stopped.close(time.monotonic() + max(0.0, flush_s) / 2)
            if self._is_started:
                for lane in (self._step_lane, self._ack_lane):
                    lane.close(deadline_s)
                for lane in (self._step_lane, self._ack_lane):
                    lane.join()
                # The reader goes last: what is flushed may still be answered to, and it needs no more than a poll.
                self._reader.close(max(deadline_s, time.monotonic() + 0.5))
            self._counters.add("events_unsent", self._step_lane.unsent)
            self._transport.close(max(0.1, deadline_s - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - the program ends; it must not end with our traceback
            self._counters.fault("close", error)

    def pump(self) -> None:
        """Do one round of the threads' work in this thread: for tests, instead of `start`. Raises nothing.

        Reads the orders that are there, lets expire what is due, and publishes everything that waits. What fails, such
        as a connection that is down, is left for the next round.
        """
        if self._is_started:
            return
        with contextlib.suppress(Exception):
            self._reader.step(0.0)
        self._plane.tick()
        self._stopped.tick()
        for lane in (self._step_lane, self._ack_lane):
            with contextlib.suppress(Exception):
                while not lane.is_idle and lane.step():
                    pass

    def stats(self) -> dict[str, int | float]:
        """Return plain numbers for metrics and health checks: counts since the start, and gauges of now.

        `events_accepted`, `events_sent`, `events_dropped` (queue full), `events_queued`, `queue_bytes`, `acks_sent`,
        `acks_queued`, `publisher_connected`, `control_connected`, `control_ready` (0 or 1), `runs_live`, `run_records`,
        `breakers_open` (tools), `enforcing`, `processes_watched` (adopted), `clock_skew_ms` (host minus broker, once
        known), and every count that is not zero: `faults`, `started_open`, `starts_refused`, `events_cut`,
        `events_invalid`, `commands_read`, `acks_<status>`, `breaker_refusals`, `breaker_probes`, `breaker_advice`
        (would have been refused), `breaker_leases_expired`, `breaker_unknown_states`, `local_openings`,
        `local_refusals` (the safety net), `processes_ended` (SIGTERM after a stop), `processes_unseen`,
        `publish_errors`, `control_errors`, `control_invalid`, `questions_asked`, `questions_approved`,
        `questions_rejected`, `questions_expired`, `answers_unknown` (of a later version), …

        Where there is a key ring: `signatures_refused`, by reason as `signature_<reason>` (`missing`, `unknown_key`,
        `withdrawn`, `out_of_time`, `wrong_role`, `wrong_key`, `wrong`), `signatures_absent` (not signed, and accepted
        because a signature is not required), `tombstones_refused`, `key_ring_reloads`, `key_ring_errors`.
        """
        numbers: dict[str, int | float] = {
            "events_accepted": self._steps.accepted,
            "events_sent": self._step_lane.sent,
            "events_dropped": self._steps.dropped,
            "events_queued": self._step_lane.unsent,
            "queue_bytes": self._steps.size_bytes,
            "acks_sent": self._ack_lane.sent,
            "acks_queued": self._ack_lane.unsent,
            "publisher_connected": int(self._step_lane.is_connected or self._ack_lane.is_connected),
            "control_connected": int(self._reader.is_connected),
            "control_ready": int(self._reader.ready.is_set()),
            "processes_watched": len(self._stopped),
            **self._plane.numbers(),
            **self._counters.snapshot(),
        }
        broker_ms = self._broker.at(self._clock.monotonic_ms())
        if broker_ms is not None:
            numbers["clock_skew_ms"] = round(self._clock.unix_ms() - broker_ms, 1)
        return numbers

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _entered(self, run: RunGuard) -> None:
        self._live[run.key.run_id, run.key.incarnation] = run

    def _left(self, run: RunGuard) -> None:
        self._live.pop((run.key.run_id, run.key.incarnation), None)
        self._spawns.forget(run.key)

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _close_at_exit(self) -> None:
        # Exit handlers run last in, first out, and Kafka's producer registers one of its own when it connects: ours
        # has to come before it, or what we still hold is sent to a closed producer.
        if not self._is_closed:
            atexit.unregister(self._close)
            atexit.register(self._close)


def _budget(limits: Limits | None, above: RunGuard | None, now_ms: float) -> Budget | None:
    budget = None if above is None else above.budget
    if limits is None or not has_limits(limits):
        return budget
    return Budget(limits, now_ms=now_ms, parent=budget)
