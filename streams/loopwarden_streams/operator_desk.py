"""Where a person's orders are written: reads what stands, then writes the audit, the record and the command, in order.

The audit goes first, so that nothing takes effect unrecorded; the level before the edge, so that a runtime that takes a
run up in this moment finds its order one way or the other.
"""

from __future__ import annotations

import argparse
import getpass
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from msgspec import Struct

from loopwarden.fencing import OPERATOR
from loopwarden_models.codec import decode_message, encode
from loopwarden_models.commands import Command
from loopwarden_models.control_state import RunRecord
from loopwarden_models.errors import InvalidEvent, TransportError
from loopwarden_models.events import step_key
from loopwarden_models.ids import control_partition
from loopwarden_models.operator_actions import OperatorAction
from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.operator_orders import Person, RunOrder, in_force, next_version
from loopwarden_streams.question_book import QuestionBook
from loopwarden_streams.settings import Settings, add_settings_arguments
from loopwarden_streams.signing import control_encoder
from loopwarden_streams.standing_orders import StandingOrders
from loopwarden_streams.topic_tail import tail

STATE: Final = "control.state"
COMMANDS: Final = "control.commands"
VERDICTS: Final = "verdicts"
EVERYONE: Final = "*"

# How far back commands are looked at for what operators said last: the retention of their topic.
COMMANDS_BACK_MS: Final = 3_600_000

CONNECTION: Final = (
    "brokers",
    "app_id",
    "topic_prefix",
    "security_protocol",
    "sasl_mechanism",
    "sasl_username",
    "ssl_cafile",
)


class OperatorDesk:
    """Writes on behalf of one person. One event loop owns it; make it with `desk`.

    Attributes:
        standing: What `control.state` said when it was read.
        questions: What people are asked, likewise.
        commands: Commands of the last hour, in the order of each partition.
    """

    def __init__(self, settings: Settings, producer: AIOKafkaProducer, person: Person) -> None:
        self._settings = settings
        self._producer = producer
        # Runtimes that require signatures take a person's orders signed as well.
        self._encode_control = control_encoder(settings)
        self._partitions = 0
        self.person = person
        self.standing = StandingOrders()
        self.questions = QuestionBook()
        self.commands: list[Command] = []

    async def look(self) -> None:
        """Read what stands.

        Raises:
            ConfigError: A topic does not exist.
            TransportError: The brokers cannot be reached.
        """
        state, commands = self._settings.topic(STATE), self._settings.topic(COMMANDS)
        hour_ago = int(time.time() * 1000) - COMMANDS_BACK_MS
        async with tail(self._settings, {state: "beginning", commands: hour_ago}) as reader:
            self._partitions = reader.partitions[state]
            for record in await reader.to_end():
                if record.topic == state:
                    self.standing.put(record.key, record.value, record.timestamp)
                    self.questions.put(record.key, record.value, record.timestamp)
                    continue
                try:
                    self.commands.append(decode_message(record.value, Command))
                except InvalidEvent:
                    continue  # the runtimes count them

    def version_for(self, key: str, now_ms: int, *, tenant: str = "", run_id: str = "") -> list[int]:
        """Return a version for a key of `control.state`, and for a command to the run, that fences all before it.

        Raises:
            ConfigError: See `next_version`.
        """
        said = [self.standing.newest_version(key)]
        said += [
            [command.epoch, command.seq]
            for command in self.commands
            if command.writer == OPERATOR and (command.tenant, command.run_id) == (tenant, run_id)
        ]
        return next_version(max((version for version in said if version is not None), default=None), now_ms)

    async def give(self, order: RunOrder) -> int:
        """Write an order to a run; returns the broker's time at which its command was appended, Unix milliseconds.

        Raises:
            TransportError: The broker refused something; what was written before it stands.
        """
        command = order.command
        await self.audit(order.action)
        await self._write_run_record(order.record, command.tenant)
        key = f"{command.tenant}|{command.run_id}".encode()
        return await self._send(COMMANDS, key, self._encode_control(command), self._partition(command.tenant))

    async def tell_model(self, words: Command) -> None:
        """Send a person's words to a run, for its next prompt.

        Raises:
            TransportError: The broker refused it.
        """
        key = f"{words.tenant}|{words.run_id}".encode()
        await self._send(COMMANDS, key, self._encode_control(words), self._partition(words.tenant))

    async def keep_dead(self, order: RunOrder) -> None:
        """Put a kill that was applied in force for every later incarnation.

        Raises:
            TransportError: The broker refused it.
        """
        await self._write_run_record(in_force(order), order.command.tenant)

    async def audit(self, action: OperatorAction) -> None:
        """Write down who does what, and why.

        Raises:
            TransportError: The broker refused it.
        """
        if action.tenant is not None and action.run_id is not None:
            key = step_key(action.tenant, action.root_run_id or action.run_id)
        else:
            key = action.key.encode()
        await self._send(VERDICTS, key, encode(action), None)

    async def set_state(self, action: OperatorAction, record: Struct, key: str) -> None:
        """Write a state of a tool, or of the big switch, after its audit.

        Raises:
            TransportError: The broker refused it.
        """
        await self.audit(action)
        await self._send(STATE, key.encode(), self._encode_control(record), self._partition(action.tenant or EVERYONE))

    async def _write_run_record(self, record: RunRecord, tenant: str) -> None:
        await self._send(STATE, record.key.encode(), self._encode_control(record), self._partition(tenant))

    def _partition(self, tenant: str) -> int:
        return control_partition(tenant, self._partitions)

    async def _send(self, topic: str, key: bytes, value: bytes, partition: int | None) -> int:
        name = self._settings.topic(topic)
        try:
            sent = await self._producer.send_and_wait(name, key=key, value=value, partition=partition)
        except KafkaError as error:
            raise TransportError(f"{name} was not written: {error!r}") from error
        return int(sent.timestamp)


@asynccontextmanager
async def desk(settings: Settings, person: Person) -> AsyncIterator[OperatorDesk]:
    """Open a desk that has read what stands.

    Raises:
        ConfigError: A topic does not exist.
        TransportError: The brokers cannot be reached.
    """
    producer = new_producer(settings)
    made = OperatorDesk(settings, producer, person)
    await made.look()
    try:
        await producer.start()
    except KafkaError as error:
        raise TransportError(f"brokers {settings.brokers}: {error}") from error
    try:
        yield made
    finally:
        await producer.stop()


def add_person_arguments(
    parser: argparse.ArgumentParser, *, needs_why: bool, signing: Sequence[str] = ("signing_key_file", "signing_kid")
) -> None:
    """Declare `--who` and `--why`, and how to reach the brokers."""
    parser.add_argument("--why", required=needs_why, default="", metavar="TEXT", help="why, for the audit and the run")
    parser.add_argument("--who", default=None, metavar="NAME", help="who orders it (default: the user's name)")
    add_settings_arguments(parser, *CONNECTION, *signing)


def person_of(args: argparse.Namespace) -> Person:
    """Return who orders, and why."""
    return Person(args.who if args.who is not None else _user(), args.why)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return "unknown"
