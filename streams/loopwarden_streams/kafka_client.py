"""How aiokafka clients of ours reach the brokers: one place for addresses and credentials."""

from __future__ import annotations

import ssl
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from loopwarden_streams.batch_writer import MAX_BATCH_BYTES, MAX_REQUEST_BYTES
from loopwarden_streams.settings import Settings


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context that the settings ask for, `None` for a connection without."""
    if not settings.security_protocol.endswith("SSL"):
        return None
    return ssl.create_default_context(cafile=settings.ssl_cafile or None)


def client_arguments(settings: Settings) -> dict[str, Any]:
    """Return the connection arguments that every aiokafka client takes."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.broker_list(),
        "security_protocol": settings.security_protocol,
        "ssl_context": ssl_context(settings),
    }
    if settings.sasl_mechanism:
        arguments |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    return arguments


def faust_credentials(settings: Settings) -> faust.types.auth.CredentialsT | None:
    """Return the same credentials in Faust's form, `None` for plain connections."""
    context = ssl_context(settings)
    if settings.sasl_mechanism:
        return faust.SASLCredentials(
            mechanism=settings.sasl_mechanism,
            username=settings.sasl_username,
            password=settings.sasl_password,
            ssl_context=context,
        )
    return faust.SSLCredentials(context=context) if context is not None else None


def new_producer(settings: Settings) -> AIOKafkaProducer:
    """Return a producer without linger that waits for all replicas. Not started."""
    return AIOKafkaProducer(
        acks="all",
        linger_ms=0,
        max_batch_size=MAX_BATCH_BYTES,
        max_request_size=MAX_REQUEST_BYTES,
        request_timeout_ms=30_000,
        **client_arguments(settings),
    )


async def first_offset(settings: Settings, tp: TopicPartition, offset: int) -> int | None:
    """Return the offset of the first record at `offset` or above, `None` if none came within five seconds.

    Read with a client of its own, past everything between the broker and an agent that can lose a fetch.

    Raises:
        KafkaError: No broker can be reached.

    Cost: connects, asks once and closes: about 50 ms.
    """
    reader = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="none", **client_arguments(settings))
    await reader.start()
    try:
        reader.assign([tp])
        reader.seek(tp, offset)
        found = (await reader.getmany(tp, timeout_ms=5_000, max_records=1)).get(tp)
        return int(found[0].offset) if found else None
    finally:
        await reader.stop()
