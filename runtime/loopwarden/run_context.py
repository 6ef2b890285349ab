"""What the guard of a process gives to the guard of each of its runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from loopwarden.acknowledger import Acknowledger
from loopwarden.approvals import Approvals
from loopwarden.breakers import Breakers
from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import Clock
from loopwarden.control import ControlPlane
from loopwarden.faults import Counters
from loopwarden.safety_net import ProcessNet
from loopwarden.spawning import Spawns
from loopwarden.stopped_runs import StoppedRuns

if TYPE_CHECKING:
    from loopwarden.run_guard import RunGuard


class RunContext(Struct):
    """What the guard of a process gives to the guard of a run."""

    plane: ControlPlane
    acks: Acknowledger
    stopped: StoppedRuns
    spawns: Spawns
    broker: BrokerClock
    breakers: Breakers
    clock: Clock
    counters: Counters
    max_pause_s: float
    approvals: Approvals
    net: ProcessNet | None
    start_child: Callable[..., RunGuard]
    on_enter: Callable[[RunGuard], None]
    on_exit: Callable[[RunGuard], None]
