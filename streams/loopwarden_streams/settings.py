"""The settings of the service: one frozen object, from the environment and from flags that win over it."""

from __future__ import annotations

import argparse
import difflib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from loopwarden_models.errors import ConfigError

PREFIX: Final = "LOOPWARDEN_"
# Read by Faust itself (`env_prefix`), by the test suite or by the runtime library, not by `Settings`.
_FOREIGN: Final = ("LOOPWARDEN_FAUST_", "LOOPWARDEN_TEST_", "LOOPWARDEN_KEY_RING", "LOOPWARDEN_REQUIRE_SIGNATURE")

_MODES: Final = ("policy", "off", "shadow", "warn", "enforce")
_LOG_FORMATS: Final = ("json", "text")


def _setting(default: Any, help_text: str, *, secret: bool = False, choices: tuple[str, ...] | None = None) -> Any:
    metadata = {"help": help_text, "secret": secret, "choices": choices}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an operator can set: `LOOPWARDEN_<NAME>` in the environment, `--<name>` as a flag."""

    brokers: str = _setting("127.0.0.1:9092", "Kafka bootstrap servers, comma-separated host:port")
    app_id: str = _setting("loopwarden", "Kafka consumer group, and prefix of the snapshot changelog")
    topic_prefix: str = _setting("loopwarden.", "prefix of every topic")
    instance: str = _setting(
        "", "stable id of this worker; the same after a restart keeps its partitions without a wait"
    )
    partitions: int = _setting(12, "partitions of steps, acks and the changelog; cannot be changed later")
    control_partitions: int = _setting(8, "partitions of the two control topics; cannot be changed later")
    replication: int = _setting(1, "replication factor of topics that are created; 3 in production")
    policy: str = _setting("", "policy file (YAML); empty = the default policy")
    mode: str = _setting("policy", "policy, off, shadow, warn or enforce: overrides the policy's mode", choices=_MODES)
    semantic_model: str = _setting(
        "default", "static model of texts, folder or name; default = if sentence-transformers is there, empty = none"
    )
    semantic_confirm_model: str = _setting(
        "default", "transformer that confirms what the static model sees, folder or name; empty = none"
    )
    checkpoint_ms: int = _setting(5_000, "how often changed runs are saved and offsets committed")
    tick_ms: int = _setting(1_000, "how often rules about passing time are asked")
    max_runs: int = _setting(500_000, "run trees held in memory; beyond it the idlest are evicted")
    run_ttl_ms: int = _setting(86_400_000, "a run without a step for this long is forgotten")
    ended_run_ttl_ms: int = _setting(300_000, "a run that ended is kept for this long, for late copies and answers")
    run_record_ttl_ms: int = _setting(
        86_400_000, "a run's record on control.state that binds nothing any more is deleted after this long"
    )
    max_step_bytes: int = _setting(1_048_576, "a larger record goes to the dead-letter topic")
    max_action_age_ms: int = _setting(
        60_000, "older steps are judged in shadow: no command for what is long over; 0 = act on all"
    )
    max_clock_ahead_ms: int = _setting(300_000, "a step's time is cut to this much after the broker got it")
    max_fetch_bytes: int = _setting(1_048_576, "bytes that one fetch brings of a partition: the size of a batch")
    start_at: str = _setting("latest", "where a new group begins: latest or earliest", choices=("latest", "earliest"))
    session_timeout_ms: int = _setting(12_000, "after this silence the group gives a worker's partitions away")
    dead_letter_max_ratio: float = _setting(0.5, "a partition is alarmed as broken above this share of refused records")
    stuck_after_ms: int = _setting(60_000, "a partition with lag that has not moved for this long makes /livez fail")
    host: str = _setting("127.0.0.1", "address of the health and metrics endpoint")
    port: int = _setting(6066, "port of the health and metrics endpoint; 0 = a free one")
    log_level: str = _setting("info", "debug, info, warning or error", choices=("debug", "info", "warning", "error"))
    log_format: str = _setting("json", "json or text", choices=_LOG_FORMATS)
    security_protocol: str = _setting("PLAINTEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    sasl_mechanism: str = _setting("", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    sasl_username: str = _setting("", "user name for SASL")
    sasl_password: str = _setting("", "password for SASL", secret=True)
    ssl_cafile: str = _setting("", "certificate authority file for SSL")
    signing_key_file: str = _setting("", "private key (PEM) that commands and states are signed with; empty = unsigned")
    webhooks: str = _setting("", "file (YAML) with the addresses that questions are posted to, by tenant; empty = none")
    signing_kid: str = _setting("", "name of that key in the key rings of runtimes; empty = that of the file")

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: Names the setting, its value and the remedy.
        """
        for name in (
            "partitions",
            "control_partitions",
            "replication",
            "checkpoint_ms",
            "tick_ms",
            "max_runs",
            "max_fetch_bytes",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)} must be at least 1")
        for name in (
            "max_action_age_ms",
            "port",
            "max_clock_ahead_ms",
            "run_ttl_ms",
            "ended_run_ttl_ms",
            "run_record_ttl_ms",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)} must not be negative")
        if not 0 < self.dead_letter_max_ratio <= 1:
            raise ConfigError(f"dead_letter_max_ratio = {self.dead_letter_max_ratio} must lie in (0, 1]")
        if self.session_timeout_ms < 6_000:  # noqa: PLR2004 - the broker's own lower bound by default
            raise ConfigError(f"session_timeout_ms = {self.session_timeout_ms} is below the broker's limit of 6000")
        for broker in self.broker_list():
            host, _, port = broker.rpartition(":")
            if not host or not port.isdigit():
                raise ConfigError(f"brokers = {self.brokers!r}: {broker!r} is not host:port")
        for each in fields(self):
            choices = each.metadata["choices"]
            value = getattr(self, each.name)
            if choices and value not in choices:
                raise ConfigError(f"{each.name} = {value!r} is not one of {', '.join(choices)}")

    def broker_list(self) -> list[str]:
        """Return the bootstrap servers as `host:port` texts."""
        return [broker.strip() for broker in self.brokers.split(",") if broker.strip()]

    def topic(self, name: str) -> str:
        """Return the full name of a topic of the contract, such as `steps`."""
        return self.topic_prefix + name

    def instance_id(self) -> str:
        """Return the worker's id: the one that was set, else host and process."""
        return self.instance or f"{socket.gethostname()}-{os.getpid()}"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the environment.

        Raises:
            ConfigError: An unknown variable with our prefix (the closest known name is given), or a bad value.
        """
        environ = os.environ if environ is None else environ
        known = {PREFIX + each.name.upper(): each for each in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in environ.items():
            if not name.startswith(PREFIX) or name.startswith(_FOREIGN):
                continue
            each = known.get(name)
            if each is None:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ConfigError(f"environment variable {name} is not a setting{hint}")
            values[each.name] = _parse(name, text, each.default)
        return cls(**values)

    @classmethod
    def from_args(cls, args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Self:
        """Read the environment, then lay the flags of `args` over it.

        Raises:
            ConfigError: As `from_env`.
        """
        settings = cls.from_env(environ)
        given = {each.name: getattr(args, each.name, None) for each in fields(cls)}
        chosen = {
            name: _parse(f"--{name.replace('_', '-')}", value, getattr(settings, name))
            for name, value in given.items()
            if value is not None
        }
        return replace(settings, **chosen)


def add_settings_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare a flag for each setting in `names`, or for all of them but secrets, which belong in the environment."""
    for each in fields(Settings):
        if each.metadata["secret"] or (names and each.name not in names):
            continue
        default = each.default if each.default != "" else "none"
        parser.add_argument(
            f"--{each.name.replace('_', '-')}",
            metavar=type(each.default).__name__.upper(),
            help=f"{each.metadata['help']} (default: {default}; {PREFIX}{each.name.upper()})",
        )


def _parse(name: str, text: str, default: Any) -> Any:
    kind = type(default)
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name} = {text!r} is not {'an integer' if kind is int else 'a number'}") from None
