"""What a worker publishes of the breakers of its tools, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import pytest
from tests._support.tools import second, sums

from loopwarden_detectors.tool_fleet import KEPT_MS
from loopwarden_models.control_state import BreakerState
from loopwarden_models.ids import control_partition
from loopwarden_models.policy import Policy
from loopwarden_models.tool_health import PartialSum, SecondSum
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.breakers import SWEEP_EVERY_S, Breakers
from loopwarden_streams.manual_breakers import ManualBreakers, Order
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import TOOLS, Partition
from loopwarden_streams.settings import Settings

SETTINGS = Settings()
POLICY = Policy.from_builtins({"fleet_breaker": {"lease_ms": 30_000}})
ACME = control_partition("acme", SETTINGS.partitions)
SEARCH = ("acme", "search")


class Sent:
    """An outbox that keeps what it was given."""

    def __init__(self) -> None:
        self.records: list[BreakerState] = []
        self.verdicts: list[Verdict] = []
        self.deleted: list[str] = []

    async def set_breakers(self, _: Partition, records: Sequence[BreakerState]) -> None:
        """Keep the records."""
        self.records += records

    async def say(self, _: Partition, verdicts: Sequence[Verdict]) -> None:
        """Keep the verdicts."""
        self.verdicts += verdicts

    async def delete_records(self, _: Partition, keys: Sequence[str]) -> None:
        """Keep the keys."""
        self.deleted += keys


class Worker:
    """The breakers of one partition, on a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = time.time()
        monkeypatch.setattr("loopwarden_streams.breakers.time.time", lambda: self.now_s)
        monkeypatch.setattr("loopwarden_streams.breakers.time.monotonic", lambda: self.now_s)
        self.sent = Sent()
        self.manual = ManualBreakers(SETTINGS)
        self.manual.is_ready = True
        self.metrics = Metrics()
        self.breakers = Breakers(SETTINGS, cast("Outbox", self.sent), self.metrics, self.manual)
        self.partition = Partition(number=ACME, epoch=3, next_offset={}, policy=POLICY)
        self._offset = 0

    def now(self, **calls: Any) -> PartialSum:
        """Return a sum of calls of this second."""
        at_ms = int(self.now_s) * 1000
        one = second(0, **calls)
        own = SecondSum(at_ms=at_ms, calls=one.calls, failures=one.failures, failed_runs=one.failed_runs)
        self._offset += 100
        return sums(own, first=self._offset, last=self._offset + 99)

    def count(self, one: PartialSum, *, act_from_ms: int = 0) -> None:
        """Count a sum, and publish what comes of it."""
        said = self.breakers.count(self.partition, one, self._offset, act_from_ms)
        self.partition.next_offset[TOOLS] = self._offset + 1
        run(self.breakers.publish(self.partition, said))

    def tick(self, *, after_s: float = 0.0) -> None:
        """Let time pass, and tick."""
        self.now_s += after_s
        run(self.breakers.tick(self.partition))

    @property
    def told(self) -> list[tuple[str, int]]:
        """What the records say: state, and second part of the version."""
        return [(record.state, record.version[1]) for record in self.sent.records]


def run(work: Coroutine[Any, Any, None]) -> None:
    """Do one piece of work."""
    asyncio.run(work)


def test_an_open_breaker_is_renewed_every_third_of_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same version with a later end; a dead worker renews nothing, and the tool is free again."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    leases = [worker.sent.records[-1].lease_until_ms]
    for _ in range(2):
        worker.tick(after_s=9)
        assert len(worker.told) == len(leases)
        worker.tick(after_s=1.1)
        leases.append(worker.sent.records[-1].lease_until_ms)

    assert len(set(worker.told)) == 1
    assert [record.version[0] for record in worker.sent.records] == [3, 3, 3]
    ahead_ms = [round(lease - 1000 * worker.now_s) for lease in leases if lease is not None]
    assert ahead_ms == pytest.approx([30_000 - 20_200, 30_000 - 10_100, 30_000], abs=2)


def test_a_new_owner_says_at_once_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own epoch, before the lease of the former one ends."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    heir = Worker(monkeypatch)
    heir.partition = Partition(number=ACME, epoch=4, next_offset={}, policy=POLICY)
    heir.partition.tools.restore(worker.partition.tools.tools.values())
    heir.tick()

    assert heir.told == worker.told
    assert heir.sent.records[0].version[0] == 4


def test_time_stands_still_while_old_sums_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may hold the probes that a former owner has counted."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    worker.partition.tools_until = worker.partition.next_offset[TOOLS] + 1
    worker.tick(after_s=40)
    assert [state for state, _ in worker.told] == ["open"]

    worker.partition.next_offset[TOOLS] += 1
    worker.tick()
    assert [state for state, _ in worker.told][1] == "half_open"


def test_what_was_open_is_deleted_a_day_after_it_was_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its record, or both would be kept for ever; what never opened has none."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    worker.count(sums(second(0, ok=1), first=1_000, last=1_000, tool="mail"))
    for _ in range(400):
        worker.tick(after_s=30)
        if worker.partition.tools.tools[SEARCH].state == "closed":
            break
    worker.tick(after_s=SWEEP_EVERY_S)
    assert worker.sent.deleted == []
    assert SEARCH in worker.partition.tools.tools
    worker.tick(after_s=KEPT_MS / 1000 + SWEEP_EVERY_S)

    assert worker.sent.deleted == ["acme|breaker|search"]
    assert worker.partition.tools.tools == {}
    assert worker.partition.dead_tools == {SEARCH, ("acme", "mail")}
    assert worker.told[-1][0] == "closed"


def test_orders_of_people_are_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before all of them were read, and only those of the own partition; no failure and no pause changes them."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    worker.manual.is_ready = False
    worker.manual.orders = {
        SEARCH: Order("disabled", [9, 0], 0, ACME),
        ("globex", "search"): Order("disabled", [9, 0], 0, ACME + 1),
    }
    worker.tick(after_s=40)
    assert [state for state, _ in worker.told] == ["open"]
    worker.manual.is_ready = True
    worker.tick()
    assert {known: tool.state for known, tool in worker.partition.tools.tools.items()} == {SEARCH: "disabled"}
    worker.count(worker.now(failed=12))
    worker.tick(after_s=100)
    assert worker.partition.tools.tools[SEARCH].state == "disabled"

    del worker.manual.orders[SEARCH]
    worker.tick()
    worker.count(worker.now(failed=12))
    assert [state for state, _ in worker.told] == ["open", "open"]
    assert worker.told[-1][1] > worker.told[0][1]
    assert SEARCH in worker.partition.dirty_tools


def test_a_person_closes_what_is_open_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is not renewed any more; what fails again later opens again, though the order still stands there."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    worker.manual.orders = {SEARCH: Order("closed", [9, 0], int(worker.now_s * 1000) + 1_000, ACME)}
    worker.tick(after_s=2)
    assert worker.partition.tools.tools[SEARCH].state == "closed"
    told = len(worker.told)
    worker.tick(after_s=20)
    assert len(worker.told) == told

    worker.count(worker.now(failed=12))
    worker.tick(after_s=1)
    assert worker.partition.tools.tools[SEARCH].state == "open"


def test_what_opens_in_the_second_of_an_order_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given back, it fails at once; its calls are dated to the second, which began before the order came."""
    worker = Worker(monkeypatch)
    worker.now_s = float(int(worker.now_s))
    worker.manual.orders = {SEARCH: Order("closed", [9, 0], int(worker.now_s * 1000) + 400, ACME)}
    worker.now_s += 0.8
    worker.count(worker.now(failed=12))
    worker.tick(after_s=0.1)

    assert worker.partition.tools.tools[SEARCH].state == "open"


def test_what_is_dropped_and_held_back_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out in silence."""
    worker = Worker(monkeypatch)
    worker.count(worker.now(failed=12))
    one = worker.now(failed=12)
    worker.count(one)
    worker._offset += 1
    worker.count(one)
    worker.count(sums(second(0, failed=12), first=1, last=12, tool="mail", partition=1))
    value = worker.metrics.registry.get_sample_value

    assert value("loopwarden_tool_sums_dropped_total", {"reason": "duplicate"}) == 1
    assert value("loopwarden_breakers_held_back_total", {"tenant": "acme"}) == 1
    assert [(one.level, one.mode) for one in worker.sent.verdicts] == [("break", "enforce"), ("break", "shadow")]
