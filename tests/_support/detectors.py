"""Detectors inside the test process, for faults that cannot be put into a worker from outside."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwarden_streams.detector import Detector
from loopwarden_streams.policy_file import load_policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests._support.workers import Deployment

READY_S = 60.0


@contextlib.asynccontextmanager
async def running(
    deployment: Deployment,
    *,
    save: bool = True,
    meanwhile: Callable[[Detector], Awaitable[None]] | None = None,
    **settings: Any,
) -> AsyncIterator[Detector]:
    """Run one detector of a deployment, ready at the start of the block, stopped at its end.

    Args:
        deployment: Whose topics it reads.
        save: Whether it may save its state at the end, if it has not failed. False is as close to a kill as a part of
            a process gets: what was not saved by then is for the next owner to replay.
        meanwhile: Runs beside the start, which ends when the detector has recovered.
        settings: Over those of the deployment.
    """
    chosen = deployment.settings(**settings)
    with tempfile.TemporaryDirectory(prefix="loopwarden-test-") as data_dir:
        detector = Detector(chosen, load_policy(chosen.policy or None), Path(data_dir))
        beside = asyncio.ensure_future(meanwhile(detector)) if meanwhile is not None else None
        await detector.start()
        try:
            if beside is not None:
                await beside
            await until(lambda: detector.is_ready or detector.failed.done(), "the detector to be ready")
            if detector.failed.done():
                raise detector.failed.result()
            yield detector
        finally:
            await detector.stop(save=save and not detector.failed.done())


async def until(look: Callable[[], object], what: str, *, timeout_s: float = READY_S) -> None:
    """Wait until `look` returns something true.

    Raises:
        AssertionError: It did not within `timeout_s`; says `what` was waited for.
    """
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        await asyncio.sleep(0.02)


async def applied(deployment: Deployment, *detectors: Detector, timeout_s: float = READY_S) -> None:
    """Wait until these detectors, together, have applied all that was written; saved it need not be."""
    ends = {name: await asyncio.to_thread(deployment.ends, name) for name in ("steps", "acks")}

    def look() -> bool:
        for detector in detectors:
            if detector.failed.done():
                raise AssertionError("a detector has failed") from detector.failed.result()
        found = {number: own for detector in detectors for number, own in detector.partitions.items()}
        return all(
            number in found and found[number].next_offset[name] >= end
            for name, all_ends in ends.items()
            for number, end in enumerate(all_ends)
        )

    await until(look, "everything to be applied", timeout_s=timeout_s)


def counted(detector: Detector, name: str, **labels: str) -> float:
    """Return the sum of the samples called `name` that have these labels; 0 if there are none."""
    return sum(
        sample.value
        for family in detector.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
