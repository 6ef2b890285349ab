"""How aiokafka clients of ours reach the brokers: one place for addresses and credentials."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from loopwarden_streams.batch_writer import MAX_BATCH_BYTES, MAX_REQUEST_BYTES
from loopwarden_streams.settings import Settings

# Between two questions for the leaders of partitions while nobody answers.
_ASK_AGAIN_S: Final = 0.1


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
    producer = AIOKafkaProducer(
        acks="all",
        linger_ms=0,
        max_batch_size=MAX_BATCH_BYTES,
        max_request_size=MAX_REQUEST_BYTES,
        request_timeout_ms=30_000,
        **client_arguments(settings),
    )
    _ask_patiently(producer)
    return producer


def _ask_patiently(producer: AIOKafkaProducer) -> None:
    """Have it wait before it asks for leaders again.

    aiokafka 0.14 asks anew at once while it has something to send and knows no leader: more than a thousand times a
    second while a broker that is restarted refuses connections, on the core that the broker needs to come back.
    """
    client = producer.client
    update = client._metadata_update  # noqa: SLF001 - there is no setting for it

    async def update_patiently(*arguments: Any) -> bool:
        is_updated: bool = await update(*arguments)
        if not is_updated:
            await asyncio.sleep(_ASK_AGAIN_S)
        return is_updated

    client._metadata_update = update_patiently  # noqa: SLF001 - likewise


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


async def record_at(settings: Settings, topic: str, partition: int, offset: int) -> bytes | None:
    """Return the value of the record at an offset, `None` if it is gone or cannot be read within five seconds."""
    reader = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="none", **client_arguments(settings))
    try:
        await reader.start()
        tp = TopicPartition(topic, partition)
        reader.assign([tp])
        reader.seek(tp, offset)
        found = (await reader.getmany(tp, timeout_ms=5_000, max_records=1)).get(tp)
    except KafkaError:
        return None
    finally:
        await reader.stop()
    return found[0].value if found and found[0].offset == offset else None
