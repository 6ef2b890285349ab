"""When `/livez` must say no: a restart is the only cure for a consumer that has quietly stopped."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP
from tests._support.detectors import applied, running, until
from tests._support.fleet import looping, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment

from loopwarden_streams.embedded_broker import LOOPBACK
from loopwarden_streams.health import HealthServer
from loopwarden_streams.transport import BatchConsumer


async def ask(server: HealthServer, path: str) -> tuple[int, Any]:
    """Return status and decoded body of an answer."""

    def get() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{server.port}{path}", timeout=5) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    return await asyncio.to_thread(get)


def test_a_partition_with_lag_that_stands_still_is_not_alive(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rebalance some partitions send no fetch any more, and all that Faust shows is health."""
    monkeypatch.setattr("loopwarden_streams.detector.LAG_EVERY_S", 0.1)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, stuck_after_ms=300, port=0) as detector:
            server = HealthServer(detector)
            await server.start()
            try:
                stuck = {TP(deployment.topic("steps"), deployment.partition_of(b"acme|r1"))}
                detector.app.consumer.pause_partitions(stuck)
                # Quiet is not stuck.
                await asyncio.sleep(0)
                assert (await ask(server, "/livez"))[0] == 200

                await asyncio.to_thread(deployment.write, records(looping("r1", 3, start_ms=0), deployment.partitions))
                await until(detector.stuck, "the partition to be called stuck")

                status, answer = await ask(server, "/livez")
                (tp,) = stuck
                assert (status, answer["ok"], answer["stuck"]) == (503, False, [f"{tp.topic}/{tp.partition}"])
                assert (await ask(server, "/readyz"))[0] == 200

                detector.app.consumer.resume_partitions(stuck)
                await applied(deployment, detector)
                await until(lambda: not detector.stuck(), "the partition to be alive again")
                assert (await ask(server, "/livez"))[0] == 200
            finally:
                await server.stop()

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))


def test_a_recovery_that_does_not_end_is_not_alive(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that waits for snapshots that do not come owns its partitions and serves none of them."""
    fetch = BatchConsumer._getmany
    is_deaf = True

    async def deaf(self: BatchConsumer, active_partitions: set[TP] | None, timeout: float) -> dict[TP, Any]:  # noqa: ASYNC109 - as the method
        fetched = await fetch(self, active_partitions=active_partitions, timeout=timeout)
        return {tp: batch for tp, batch in fetched.items() if not (is_deaf and "changelog" in tp.topic)}

    async def scenario(deployment: Deployment) -> None:
        nonlocal is_deaf
        async with running(deployment) as detector:
            await asyncio.to_thread(deployment.write, records(looping("r1", 3, start_ms=0), deployment.partitions))
            await applied(deployment, detector)
        monkeypatch.setattr(BatchConsumer, "_getmany", deaf)

        async def hear(detector: Any) -> None:
            nonlocal is_deaf
            await until(lambda: detector.stuck() == ["recovery"], "the recovery to be called stuck")
            is_deaf = False

        async with running(deployment, meanwhile=hear, stuck_after_ms=1_500) as detector:
            assert detector.stuck() == []

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))


def test_a_failure_is_not_alive(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The process is about to end; until then nobody must count on it."""

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, port=0) as detector:
            server = HealthServer(detector)
            await server.start()
            try:
                detector.fail(RuntimeError("the state is lost"))

                status, answer = await ask(server, "/livez")

                assert status == 503
                assert "the state is lost" in answer["failed"]
                assert (await ask(server, "/readyz"))[0] == 503
            finally:
                await server.stop()

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))
