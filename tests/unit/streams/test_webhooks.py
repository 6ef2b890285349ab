"""Webhooks against a real HTTP server: what is posted, signed, tried again and given up; and what is never said."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web
from tests.unit.streams.test_question_board import NOW_MS, asked

from loopwarden_models.errors import ConfigError
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.question_board import Event
from loopwarden_streams.question_book import Entry
from loopwarden_streams.webhooks import EVENT_ID, MAX_QUEUED, SIGNATURE, Webhook, Webhooks, load_webhooks

SECRET = "s3cret-of-acme"  # noqa: S105 - of the test


class Receiver:
    """An HTTP server that answers what it was told to, in turn, and then 200."""

    def __init__(self, *answers: int, delay_s: float = 0.0) -> None:
        self._answers = list(answers)
        self._delay_s = delay_s
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/hook?token=t0ken"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.heard.append((dict(request.headers), await request.read()))
        await asyncio.sleep(self._delay_s)
        status = self._answers.pop(0) if self._answers else 200
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 307 else None)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    """Return a file with a secret, as it is mounted."""
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


@pytest.fixture
def metrics() -> Metrics:
    """Return what is counted."""
    return Metrics()


def event(question_id: str = "q1", tenant: str = "acme") -> Event:
    """Return the opening of a question."""
    return Event(
        f"e-{question_id}", "open", Entry(tenant, question_id, asked(question_id, tenant=tenant), None, NOW_MS)
    )


def failures(metrics: Metrics, reason: str) -> float:
    """Return how many events were given up for a reason."""
    return metrics.registry.get_sample_value("loopwarden_webhook_failures_total", {"reason": reason}) or 0.0


def sent(metrics: Metrics) -> float:
    """Return how many events were taken."""
    return metrics.registry.get_sample_value("loopwarden_webhooks_sent_total") or 0.0


async def until(look: Callable[[], object], what: str) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + 20.0
    while not look():
        assert time.monotonic() < deadline, f"waited for {what}"
        await asyncio.sleep(0.01)


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scene on a loop of its own."""
    asyncio.run(asyncio.wait_for(scene(), 30.0))


def test_an_event_is_posted_and_signed(metrics: Metrics, secret_file: Path) -> None:
    """The receiver can check body and time, and tell a copy by the id."""

    async def scene() -> None:
        async with Receiver() as receiver:
            hooks = Webhooks({"acme": Webhook(receiver.url, str(secret_file))}, metrics)
            hooks.tell(event(), NOW_MS)
            await until(lambda: sent(metrics) == 1, "the event")
            headers, body = receiver.heard[0]
            said: dict[str, Any] = json.loads(body)
            assert (said["event"], said["event_id"], said["at_ms"]) == ("open", "e-q1", NOW_MS)
            assert (said["question"]["question_id"], said["question"]["tool"]) == ("q1", "pay")
            assert headers[EVENT_ID] == "e-q1"
            at, mac = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
            expected = hmac.new(SECRET.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
            assert hmac.compare_digest(mac, expected)
            assert abs(int(at) - time.time()) < 60
            await hooks.close()

    play(scene)


def test_a_failing_address_is_tried_again(metrics: Metrics) -> None:
    """500 and 429 pass; the event arrives once it is mended."""

    async def scene() -> None:
        async with Receiver(500, 429) as receiver:
            hooks = Webhooks({"*": Webhook(receiver.url, backoff_s=0.01)}, metrics)
            hooks.tell(event(), NOW_MS)
            await until(lambda: sent(metrics) == 1, "the event")
            assert len(receiver.heard) == 3
            assert failures(metrics, "unreachable") == 0
            await hooks.close()

    play(scene)


@pytest.mark.parametrize("status", [307, 400, 404, 410])
def test_a_refusal_is_final_and_a_redirect_is_not_followed(metrics: Metrics, status: int) -> None:
    """Who says that it is wrong would say so again; and nobody has us post into the operator's own network."""

    async def scene() -> None:
        async with Receiver(status) as receiver:
            hooks = Webhooks({"acme": Webhook(receiver.url, backoff_s=0.01)}, metrics)
            hooks.tell(event(), NOW_MS)
            await until(lambda: failures(metrics, "refused") == 1, "the refusal")
            hooks.tell(event("q2"), NOW_MS)
            await until(lambda: sent(metrics) == 1, "the next event")
            assert [headers[EVENT_ID] for headers, _ in receiver.heard] == ["e-q1", "e-q2"]
            await hooks.close()

    play(scene)


def test_nobody_is_there_and_nothing_is_said_of_the_address(
    metrics: Metrics, secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Given up after its attempts; the log has neither address nor token nor secret."""

    async def scene() -> None:
        async with Receiver() as receiver:
            url = receiver.url
        hooks = Webhooks({"acme": Webhook(url, str(secret_file), attempts=2, backoff_s=0.01)}, metrics)
        hooks.tell(event(), NOW_MS)
        await until(lambda: failures(metrics, "unreachable") == 1, "the end of the attempts")
        await hooks.close()
        assert "acme" in caplog.text
        for word in ("t0ken", SECRET, "/hook", url):
            assert word not in caplog.text

    with caplog.at_level(logging.DEBUG, logger="loopwarden_streams"):
        play(scene)


def test_an_address_that_hangs_delays_nobody(metrics: Metrics) -> None:
    """Telling takes no time, another tenant's events pass, and beyond the queue events are dropped and counted."""

    async def scene() -> None:
        async with Receiver(delay_s=5.0) as slow, Receiver() as quick:
            hooks = Webhooks({"acme": Webhook(slow.url), "borealis": Webhook(quick.url)}, metrics)
            began = time.perf_counter()
            for n in range(MAX_QUEUED + 10):
                hooks.tell(event(f"q{n}"), NOW_MS)
            assert time.perf_counter() - began < 2.0
            hooks.tell(event("b", "borealis"), NOW_MS)
            await until(lambda: quick.heard, "the other tenant's event")
            assert failures(metrics, "dropped") == 10
            assert len(slow.heard) <= 1
            await hooks.close()

    play(scene)


def test_a_tenant_without_an_address_is_told_nowhere(metrics: Metrics) -> None:
    """No queue, no task."""

    async def scene() -> None:
        async with Receiver() as receiver:
            hooks = Webhooks({"acme": Webhook(receiver.url)}, metrics)
            hooks.tell(event("q", "borealis"), NOW_MS)
            hooks.tell(event("last"), NOW_MS)
            await until(lambda: receiver.heard, "the event")
            assert [headers[EVENT_ID] for headers, _ in receiver.heard] == ["e-last"]
            await hooks.close()

    play(scene)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("acme: {url: 'ftp://t0ken@host'}", "url of acme is no http:// or https:// address"),
        ("acme: {url: 'http://h', secret_file: /nowhere/s3cret}", "secret file '/nowhere/s3cret': No such file"),
        ("acme: {link: 'http://h/t0ken'}", "`link`"),
        ("acme: {url: 'http://h/t0ken', attempts: 0}", "attempts"),
        ("acme: [", "ParserError"),
    ],
)
def test_a_wrong_file_is_refused_without_quoting_an_address(tmp_path: Path, text: str, says: str) -> None:
    """At the start, with the place and the remedy."""
    file = tmp_path / "webhooks.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError) as raised:
        load_webhooks(str(file))
    assert says in str(raised.value)
    assert "t0ken" not in str(raised.value)


def test_no_file_is_no_webhook(tmp_path: Path) -> None:
    """And one that is named and missing is a mistake."""
    assert load_webhooks("") == {}
    with pytest.raises(ConfigError, match="No such file"):
        load_webhooks(str(tmp_path / "missing.yaml"))
