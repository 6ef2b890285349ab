"""Tells people elsewhere what is asked: one JSON object by HTTP POST for each event, to the tenant's own address.

Nothing here is waited for: an event goes into a bounded queue, one for each address, and is sent in the background.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yaml
from msgspec import Meta, Struct

from loopwarden_models.errors import ConfigError
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.question_board import Event
from loopwarden_streams.question_rows import row_of

log = logging.getLogger(__name__)

EVERYONE: Final = "*"
MAX_QUEUED: Final = 1_000
SIGNATURE: Final = "Loopwarden-Signature"
EVENT_ID: Final = "Loopwarden-Event-Id"

_BUSY: Final = frozenset({408, 425, 429})


class Webhook(Struct, frozen=True, forbid_unknown_fields=True):
    """Where events of a tenant go.

    Attributes:
        url: `https://…`, or `http://…`.
        secret_file: File with the secret that bodies are signed with; none = unsigned.
        timeout_s: Of one attempt.
        attempts: How often an event is tried before it is given up.
        backoff_s: Before the second attempt; doubled each time, up to a minute, and spread.
    """

    url: Annotated[str, Meta(min_length=1, max_length=2_048)]
    secret_file: str = ""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 5.0
    attempts: Annotated[int, Meta(ge=1, le=20)] = 6
    backoff_s: Annotated[float, Meta(gt=0, le=60)] = 1.0


def load_webhooks(path: str) -> dict[str, Webhook]:
    """Read the file that names an address for each tenant, and under `*` for all others. No path: none.

    Raises:
        ConfigError: Names the file, the tenant and the remedy; never an address or a secret.
    """
    if not path:
        return {}
    try:
        hooks = msgspec.convert(yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}, dict[str, Webhook])
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        kind = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"webhooks file {path!r}: {kind}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"webhooks file {path!r}: {error}") from None
    for tenant, hook in hooks.items():
        parts = urlsplit(hook.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"webhooks file {path!r}: url of {tenant} is no http:// or https:// address")
        _secret(hook, tenant)
    return hooks


def signature(secret: bytes, body: bytes, at_s: int) -> str:
    """Return the value of the signature's header: `t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">`."""
    return f"t={at_s},v1={hmac.new(secret, f'{at_s}.'.encode() + body, hashlib.sha256).hexdigest()}"


class Webhooks:
    """Sends events. Owned by one event loop; `tell` returns at once, whatever the other side does."""

    def __init__(self, hooks: Mapping[str, Webhook], metrics: Metrics) -> None:
        """Send to `hooks`, see `load_webhooks`."""
        self._hooks = dict(hooks)
        self._secrets = {tenant: _secret(hook, tenant) for tenant, hook in hooks.items()}
        self._metrics = metrics
        self._queues: dict[str, asyncio.Queue[tuple[str, bytes]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    def tell(self, event: Event, now_ms: int) -> None:
        """Queue an event for its tenant's address, if there is one; a full queue drops it, counted."""
        name = event.entry.tenant if event.entry.tenant in self._hooks else EVERYONE
        if name not in self._hooks:
            return
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = asyncio.Queue(MAX_QUEUED)
            self._tasks.append(asyncio.get_running_loop().create_task(self._send_all(name, queue)))
        body = {"v": 1, "event_id": event.event_id, "event": event.status, "at_ms": now_ms}
        body["question"] = row_of(event.entry, now_ms)
        try:
            queue.put_nowait((event.event_id, msgspec.json.encode(body)))
        except asyncio.QueueFull:
            self._metrics.count_webhook("dropped")

    async def close(self) -> None:
        """Stop sending; what is queued is told again by the next worker, if it is still open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _send_all(self, name: str, queue: asyncio.Queue[tuple[str, bytes]]) -> None:
        while True:
            event_id, body = await queue.get()
            try:
                await self._send(name, event_id, body)
            except Exception as error:  # noqa: BLE001 - one event must not end the sending of all others
                self._metrics.count_webhook("unreachable")
                # The type alone: texts of errors quote addresses, and addresses hold tokens.
                log.warning("webhook of %s: event %s was not sent: %s", name, event_id, type(error).__name__)

    async def _send(self, name: str, event_id: str, body: bytes) -> None:
        hook = self._hooks[name]
        wait_s = hook.backoff_s
        told = ""
        for attempt in range(hook.attempts):
            if attempt:
                await asyncio.sleep(wait_s * (0.5 + random.random()))
                wait_s = min(60.0, 2 * wait_s)
            status, told = await self._post(name, hook, event_id, body)
            if status is not None and status < 300:  # noqa: PLR2004
                self._metrics.count_webhook()
                return
            if status is not None and status < 500 and status not in _BUSY:  # noqa: PLR2004
                self._metrics.count_webhook("refused")
                log.warning("webhook of %s: event %s was refused with status %d", name, event_id, status)
                return
        self._metrics.count_webhook("unreachable")
        log.warning("webhook of %s: event %s was given up after %d attempts: %s", name, event_id, hook.attempts, told)

    async def _post(self, name: str, hook: Webhook, event_id: str, body: bytes) -> tuple[int | None, str]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {"Content-Type": "application/json", "User-Agent": "loopwarden", EVENT_ID: event_id}
        secret = self._secrets[name]
        if secret:
            headers[SIGNATURE] = signature(secret, body, int(time.time()))
        options: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(total=hook.timeout_s), "allow_redirects": False}
        try:
            async with self._session.post(hook.url, data=body, headers=headers, **options) as answer:
                return answer.status, f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return None, type(error).__name__


def _secret(hook: Webhook, tenant: str) -> bytes:
    if not hook.secret_file:
        return b""
    try:
        secret = Path(hook.secret_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"webhook of {tenant}: secret file {hook.secret_file!r}: {error.strerror}") from None
    if not secret:
        raise ConfigError(f"webhook of {tenant}: secret file {hook.secret_file!r} is empty")
    return secret
