"""The short version of `make chaos`: every fault once or twice, and no kill is wrong, lost or broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from benchmarks.chaos import run_chaos
from tests._support.kafka import ApacheKafka

pytestmark = pytest.mark.slow

SECONDS = 42.0


def test_no_kill_is_wrong_lost_or_broken_under_fire(
    own_apache_kafka: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    """Workers, agents and the broker die on the way; two hosts have wrong clocks, and one answers late."""
    report, faults = run_chaos(own_apache_kafka(), tmp_path, seconds=SECONDS, runs=80, gap_s=(4.0, 6.0), seed=7)
    print(msgspec.json.format(msgspec.json.encode({"faults": faults, **msgspec.to_builtins(report)})).decode())

    assert {"kill a worker", "kill agents", "restart the broker"} <= faults.keys()
    assert report.kills_lost == []
    assert report.wrong_kills == []
    assert report.steps_after_kill == []
    assert report.contradictions == 0
    assert report.looped_on == {}
    assert report.dead_letters == []
    # The storm met something: loops enough, most of which were killed, and runs that were taken up again.
    assert report.kills_landed >= 40
    assert report.resumed > 0
    assert report.refused_starts > 0
    # Nor does the detector believe that one was broken.
    assert [alarm for alarm in report.alarms if alarm.startswith("step_after_kill")] == []
    assert set(report.errors.values()) == {0}
