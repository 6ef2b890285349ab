"""What goes wrong, by whose hand: the exceptions that cross module edges."""

from __future__ import annotations


class LoopwardenError(Exception):
    """Base of every exception that Loopwarden raises on purpose."""


class ConfigError(LoopwardenError):
    """A setting, flag, policy or topic is wrong; the message names it, its value and the remedy."""


class InvalidEvent(LoopwardenError):  # noqa: N818 - the name is part of the contract's vocabulary
    """A record that cannot become a message of the contract.

    Attributes:
        reason: One of the closed set `REASONS`, fit for a metric label.
        field: Path of the offending field (`seq`, `error.status`), or `""` for the record as a whole.
        detail: What is wrong, with the offending value cut to a safe length. Safe to log.
    """

    def __init__(self, reason: str, detail: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {detail}" if field else detail)
        self.reason = reason
        self.field = field
        self.detail = detail


class StateCorrupt(LoopwardenError):  # noqa: N818 - reads as the finding that it is
    """A snapshot that cannot be read back; `key` names the run tree, `version` the version byte found."""

    def __init__(self, key: str, version: int | None, detail: str) -> None:
        super().__init__(f"snapshot of {key!r} (version {version}): {detail}")
        self.key = key
        self.version = version


class TransportError(LoopwardenError):
    """Kafka refused or lost something that we cannot go on without."""


# Why a record was refused. Closed, because it is a metric label and the first thing a person filters by.
REASONS = (
    "tombstone",  # a record without a value on a topic that has no deletions
    "empty_key",  # no key: the run cannot be assigned to a partition
    "key_mismatch",  # the key is not `tenant|root_run_id` of the event
    "too_large",  # above the size limit of the edge
    "not_utf8",  # bytes that are not UTF-8
    "not_json",  # truncated or malformed JSON, NaN and Infinity included
    "too_deep",  # nesting beyond the decoder's limit
    "unsupported_version",  # `v` is not 1
    "missing_field",
    "wrong_type",
    "out_of_range",  # numbers and lengths
    "bad_value",  # right type, impossible content
    "unhandled",  # a fault of ours: report it
)
