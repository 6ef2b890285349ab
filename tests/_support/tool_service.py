"""A small HTTP service that is a tool of many agents: it counts its calls, and can be switched off for a tenant."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

from loopwarden_streams.embedded_broker import LOOPBACK


class Hit(NamedTuple):
    """A call that reached the service, when in Unix milliseconds, and what it was answered."""

    tenant: str
    run_id: str
    at_ms: int
    status: int


class ToolService:
    """Answers `GET /tenant/run`: 200, or 503 while it is down for the tenant or broken for the run.

    Attributes:
        url: Where it is, without a path.
        down: Tenants for whom it is down. `broken`: runs whose own calls fail.
        hits: Every call, in order. Thread-safe to read: only ever added to.
    """

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.broken: set[str] = set()
        self.hits: list[Hit] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _, tenant, run_id = self.path.split("/")
                status = 503 if tenant in service.down or run_id in service.broken else 200
                service.hits.append(Hit(tenant, run_id, time.time_ns() // 1_000_000, status))
                body = b"upstream is away" if status != 200 else b"page %d" % len(service.hits)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
                """Say nothing: the hits are the log."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"

    def of(self, tenant: str) -> list[Hit]:
        """Return the calls of a tenant."""
        return [hit for hit in list(self.hits) if hit.tenant == tenant]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
