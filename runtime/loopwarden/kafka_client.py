"""kafka-python as we use it: imported late, and its rough edges in one place."""

from __future__ import annotations

import logging
import socket
from typing import Any

# Long enough for another region.
_KNOCK_S = 2.0


def kafka_python() -> Any:
    """Return kafka-python: imported here and nowhere else, by the threads that connect."""
    import kafka  # noqa: PLC0415

    # While a broker is away it logs several errors a second. Without this handler they would end up on the standard
    # error of an agent that does not configure logging; one that does, sees them as before.
    logger = logging.getLogger("kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return kafka


def may_answer(broker: str) -> bool:
    """Return False if nothing accepts a connection at this address.

    Asked before kafka-python is: it leaves the socket of each refused attempt to the garbage collector (3.0.12,
    `KafkaNetSocket.sock_connect`) and logs each as an error, several times a second, for as long as Kafka is away.
    """
    host, separator, port = broker.rpartition("://")[2].rpartition(":")
    if not separator or not port.isdecimal():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
    except OSError:
        return False
    return True


def is_hopeless(error: BaseException) -> bool:
    """Return whether the record itself is at fault, so that it would stand in the way of all later ones for ever."""
    errors = kafka_python().errors
    return isinstance(
        error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError | errors.InvalidRecordError
    )


def close_producer(producer: Any, timeout_s: float) -> None:
    """End a producer and its thread, after at most about `timeout_s` seconds for what it still holds."""
    errors = kafka_python().errors
    try:
        producer.close(timeout=timeout_s)
    except errors.KafkaError:
        # `close` gives up at a flush that times out, before it has stopped its thread (3.0.12, `KafkaProducer.close`).
        sender = getattr(producer, "_sender", None)
        if sender is not None:
            sender.force_close()
