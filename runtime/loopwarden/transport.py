"""How records get in and out of the process: a small protocol, and Kafka behind it.

Kafka is imported by the functions that connect, so that neither `import loopwarden` nor a test pays for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from loopwarden.kafka_client import close_producer, is_hopeless, kafka_python, may_answer
from loopwarden.kafka_feed import KafkaFeed
from loopwarden.records import ControlRecord, Outgoing, Outlet
from loopwarden_models.errors import TransportError


class ControlFeed(Protocol):
    """One connection to the control topics. Used and closed by one thread."""

    @property
    def is_caught_up(self) -> bool:
        """True once everything was delivered that was there when the feed was opened."""
        ...

    def poll(self, timeout_s: float) -> Sequence[ControlRecord]:
        """Return new records, or none after `timeout_s` seconds; state before commands.

        Raises:
            TransportError: The connection is of no more use; open another.
        """
        ...

    def close(self) -> None:
        """Let go of the connection. Never raises."""
        ...


class Transport(Protocol):
    """What the guard needs of the outer world. Safe to call from any thread."""

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Publish in order and wait for the acknowledgements.

        Returns:
            What has to be sent again, in order, and how many records were refused for good.

        Raises:
            TransportError: Nothing of the batch was acknowledged.
        """
        ...

    def open_control(self, tenant: str) -> ControlFeed:
        """Begin to read the control topics of `tenant`: state from its beginning, commands from an hour ago.

        A transport that is asked again goes on where the last feed ended.

        Raises:
            TransportError: Not now; try again.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Let go of all connections within about `timeout_s` seconds. Never raises."""
        ...


class KafkaTransport:
    """Kafka through kafka-python, in pure Python. Connects on first use; Kafka may come later, go, and come back.

    Thread safety: safe. Threads: kafka-python's own, one for the producer and one for the consumer.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        *,
        prefix: str = "loopwarden.",
        security: Mapping[str, Any] | None = None,
        client_id: str = "loopwarden",
        fetch_max_wait_ms: int = 500,
        connect_timeout_s: float = 5.0,
        delivery_timeout_s: float = 20.0,
    ) -> None:
        """Set up; connects to nothing yet.

        Args:
            brokers: `host:port`, or several.
            prefix: Of the topics' names.
            security: Options of kafka-python for TLS and SASL: `security_protocol`, `ssl_cafile`, `sasl_mechanism`,
                `sasl_plain_username`, … Passed on as they are and never logged.
            client_id: Shown in the broker's logs and quotas.
            fetch_max_wait_ms: How long a broker may hold a fetch. Apache Kafka answers at once when a record comes;
                for brokers that do not, this is the latency of a command.
            connect_timeout_s: How long one attempt to connect may take, in the background.
            delivery_timeout_s: After this a window that was not acknowledged is sent anew.
        """
        self._brokers = [brokers] if isinstance(brokers, str) else list(brokers)
        self._prefix = prefix
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._delivery_timeout_s = delivery_timeout_s
        self._common: dict[str, Any] = {
            "bootstrap_servers": self._brokers,
            "client_id": client_id,
            "bootstrap_timeout_ms": int(connect_timeout_s * 1_000),
            # 30 s by default: a broker that is back would be found half a minute late.
            "reconnect_backoff_max_ms": 2_000,
            "request_timeout_ms": 10_000,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            **(security or {}),
        }
        self._lock = threading.Lock()
        self._producer: Any = None
        self._positions: dict[tuple[str, int], int] = {}
        self._is_closed = False

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Publish with `acks=all`; the partition is murmur2 of the key, kafka-python's default and Java's.

        Raises:
            TransportError: No connection.
        """
        errors = kafka_python().errors

        producer = self._get_producer()
        unsent: list[Outgoing] = []
        futures: list[tuple[Outgoing, Any]] = []
        refused = 0
        for n, record in enumerate(batch):
            try:
                futures.append((record, producer.send(self._prefix + topic, key=record.key, value=record.value)))
            except (errors.KafkaError, ValueError, AssertionError, RuntimeError) as error:
                if is_hopeless(error):
                    refused += 1
                    continue
                # The topic is unknown or the producer is closed: the rest would only wait for the same answer.
                unsent = list(batch[n:])
                break
        deadline_s = time.monotonic() + 2 * self._delivery_timeout_s
        failed: list[Outgoing] = []
        for record, future in futures:
            try:
                future.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except (errors.KafkaError, RuntimeError) as error:
                if is_hopeless(error):
                    refused += 1
                else:
                    failed.append(record)
        if failed:
            # It has tried for as long as a delivery may take, or is broken. A new one starts from a clean state, and
            # only when somebody answers: while Kafka is away this one would go on knocking, and logging errors.
            self._abandon(producer)
        return [*failed, *unsent], refused

    def open_control(self, tenant: str) -> ControlFeed:
        """Assign the partitions of `tenant`, without a consumer group, from where the last feed ended.

        Raises:
            TransportError: No connection, or the topics do not exist yet.
        """
        if self._is_closed:
            raise TransportError("the transport is closed")
        return KafkaFeed(
            self._connect(
                "KafkaConsumer",
                fetch_max_wait_ms=self._fetch_max_wait_ms,
                fetch_min_bytes=1,
                enable_auto_commit=False,
                # Only when a position is lost, with the topic or by retention: reading twice is harmless here.
                auto_offset_reset="earliest",
            ),
            state=self._prefix + "control.state",
            commands=self._prefix + "control.commands",
            tenant=tenant,
            positions=self._positions,
        )

    def close(self, timeout_s: float) -> None:
        """Close the producer; feeds are closed by the thread that reads them."""
        self._is_closed = True
        # A thread that is connecting holds the lock; it will see that it came too late, and need not be waited for.
        if not self._lock.acquire(timeout=timeout_s):
            return
        try:
            producer, self._producer = self._producer, None
        finally:
            self._lock.release()
        if producer is not None:
            close_producer(producer, timeout_s)

    def _get_producer(self) -> Any:
        with self._lock:
            if self._is_closed:
                raise TransportError("the transport is closed")
            if self._producer is None:
                producer = self._connect(
                    "KafkaProducer",
                    acks="all",
                    # Steps were gathered by our own thread already, and an acknowledgement must not wait.
                    linger_ms=0,
                    # 60 s by default, for which `send` would hold the thread whenever a topic's metadata is missing.
                    max_block_ms=100,
                    delivery_timeout_ms=int(self._delivery_timeout_s * 1_000),
                )
                if self._is_closed:
                    close_producer(producer, 0.0)
                    raise TransportError("the transport is closed")
                self._producer = producer
            return self._producer

    def _abandon(self, producer: Any) -> None:
        with self._lock:
            if self._producer is producer:
                self._producer = None
        close_producer(producer, 0.0)

    def _connect(self, kind: Literal["KafkaProducer", "KafkaConsumer"], **options: Any) -> Any:
        kafka = kafka_python()
        if "proxy_url" not in self._common and not any(may_answer(broker) for broker in self._brokers):
            raise TransportError(f"cannot connect to {', '.join(self._brokers)}: nobody answers")
        factory = getattr(kafka, kind)
        clients: list[Any] = []

        def remember(**client_options: Any) -> Any:
            clients.append(factory.DEFAULT_CONFIG["kafka_client"](**client_options))
            return clients[-1]

        try:
            return factory(**self._common, **options, kafka_client=remember)
        except (kafka.errors.KafkaError, OSError, RuntimeError) as error:
            # A constructor that fails leaves its sockets and its thread behind (3.0.12): one more every two seconds.
            for client in clients:
                client.close()
            raise TransportError(f"cannot connect to {', '.join(self._brokers)}: {error}") from error
