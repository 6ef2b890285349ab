"""`/livez`, `/readyz` and `/metrics`: answered by the loop that does the work, so that a blocked loop is not alive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from loopwarden_streams.detector import Detector


class HealthServer:
    """A small HTTP server beside the detector."""

    def __init__(self, detector: Detector) -> None:
        """Answer for `detector`; nothing listens yet."""
        self._detector = detector
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on the address of the settings; `port` says where if that was 0.

        Raises:
            OSError: The address is in use.
        """
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        settings = self._detector.settings
        await web.TCPSite(self._runner, settings.host, settings.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the server."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        """Alive = every owned partition that has lag has moved lately, as has a recovery, and nothing failed."""
        detector = self._detector
        stuck = detector.stuck()
        failed = repr(detector.failed.result()) if detector.failed.done() else None
        return _answer(not stuck and failed is None, stuck=stuck, failed=failed)

    async def _readyz(self, _: web.Request) -> web.Response:
        """Ready = recovery is done and no rebalance is under way."""
        detector = self._detector
        partitions = {
            str(number): {"next_offset": partition.next_offset, "runs": len(partition.trees), "epoch": partition.epoch}
            for number, partition in sorted(detector.partitions.items())
        }
        return _answer(detector.is_ready, partitions=partitions, broken=sorted(detector.ingest.broken))

    async def _metrics(self, request: web.Request) -> web.Response:
        render = self._detector.metrics.render
        body, content_type = await asyncio.to_thread(render, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _answer(ok: bool, **details: Any) -> web.Response:
    return web.Response(
        text=json.dumps({"ok": ok, **details}) + "\n", status=200 if ok else 503, content_type="application/json"
    )
