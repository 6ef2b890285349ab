"""Kafka's client library as we use it; what needs a broker is in the integration tests."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from kafka.partitioner import murmur2 as client_murmur2

from loopwarden.kafka_client import may_answer
from loopwarden.records import Outgoing
from loopwarden.transport import KafkaTransport
from loopwarden_models.errors import TransportError
from loopwarden_models.events import step_key
from loopwarden_models.ids import murmur2

# Nothing listens on the discard port.
NOWHERE = "127.0.0.1:9"


def test_the_client_partitions_by_the_same_murmur2_as_we() -> None:
    """The detector finds a run's steps and acknowledgements by this hash; clients' defaults differ."""
    for n in range(200):
        key = step_key("acme", "r-" + "é" * (n % 7) + str(n))
        assert client_murmur2(key) & 0x7FFFFFFF == murmur2(key) & 0x7FFFFFFF


def test_setting_up_connects_to_nothing() -> None:
    """Programs are constructed where Kafka cannot be reached: in tests, at import, before a fork."""
    begun = time.monotonic()
    KafkaTransport(NOWHERE, security={"sasl_plain_password": "secret"}).close(1.0)

    assert time.monotonic() - begun < 1.0


def test_no_broker_is_a_transport_error_and_leaves_nothing_behind() -> None:
    """The lanes try again every two seconds, for days: a socket or thread left each time would add up."""
    transport = KafkaTransport(NOWHERE, connect_timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(TransportError, match="cannot connect to"):
            transport.send("steps", [Outgoing(b"k", b"v")])
        with pytest.raises(TransportError, match="cannot connect to"):
            transport.open_control("acme")
    transport.close(0.1)


@pytest.mark.parametrize(
    ("broker", "answers"),
    [
        ("127.0.0.1:9", False),
        ("SASL_SSL://127.0.0.1:9", False),
        ("[::1]:9", False),
        ("no-port", True),
        ("host:name", True),
    ],
)
def test_an_address_is_only_ruled_out_when_nobody_answers(broker: str, answers: bool) -> None:
    """What we cannot read is left to the client library, which may."""
    assert may_answer(broker) is answers


def test_closing_does_not_wait_for_a_connection_that_is_being_made() -> None:
    """Somebody answers and says nothing: a load balancer without brokers, say."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        transport = KafkaTransport(f"127.0.0.1:{mute.getsockname()[1]}", connect_timeout_s=0.5)
        errors: list[TransportError] = []

        def connect() -> None:
            try:
                transport.send("steps", [Outgoing(b"k", b"v")])
            except TransportError as error:
                errors.append(error)

        thread = threading.Thread(target=connect)
        thread.start()
        while not transport._lock.locked():
            time.sleep(0.001)
        begun = time.monotonic()
        transport.close(0.05)
        assert time.monotonic() - begun < 0.4
        thread.join()

    assert len(errors) == 1


def test_after_closing_nothing_connects() -> None:
    """A lane that is late must not open a connection that nobody closes."""
    transport = KafkaTransport(NOWHERE, connect_timeout_s=0.05)
    transport.close(0.1)

    with pytest.raises(TransportError, match="closed"):
        transport.send("steps", [Outgoing(b"k", b"v")])
    with pytest.raises(TransportError, match="closed"):
        transport.open_control("acme")
