"""Which control records are believed: checked in the control thread, before anything else is done with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final, NamedTuple

from loopwarden.clock import Clock
from loopwarden.faults import Counters
from loopwarden.records import EVERYONE, ControlRecord
from loopwarden_models.errors import ConfigError
from loopwarden_models.key_ring import KeyRing, SignatureRefused, ring_files
from loopwarden_models.signing import parse_signed, require_cryptography

RING_VARIABLE: Final = "LOOPWARDEN_KEY_RING"
REQUIRE_VARIABLE: Final = "LOOPWARDEN_REQUIRE_SIGNATURE"

# How soon a changed key ring counts. A key that is missing is looked for sooner: a rotation may be under way.
RELOAD_MS = 5_000
MISSING_MS = 1_000

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})


class Trust(NamedTuple):
    """What is known of the origin of a record.

    Attributes:
        is_proven: A key of the ring signed it.
        refusal: Why it must not be applied, for the `detail` of an acknowledgement; empty if it may.
    """

    is_proven: bool
    refusal: str = ""


UNCHECKED: Final = Trust(is_proven=False)
_ANOTHERS: Final = Trust(is_proven=False, refusal="meant for another tenant")


class RingFile:
    """A key ring on disk, read again when it changes. For one thread at a time."""

    def __init__(self, path: str | PathLike[str], *, clock: Clock, counters: Counters) -> None:
        """Read the ring.

        Raises:
            ConfigError: As `KeyRing.load`.
        """
        self._path = path
        self._clock = clock
        self._counters = counters
        self._state = _state_of(path)
        self._ring = KeyRing.load(path)
        self._looked_ms = clock.monotonic_ms()

    def ring(self, *, within_ms: int = RELOAD_MS) -> KeyRing:
        """Return the ring as it was on disk at most `within_ms` ago. What cannot be read changes nothing.

        Cost: 0.3 µs; when it is due, a look at the files.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= within_ms:
            self._looked_ms = now_ms
            try:
                state = _state_of(self._path)
                if state != self._state:
                    self._ring = KeyRing.load(self._path)
                    self._state = state
                    self._counters.add("key_ring_reloads")
            except ConfigError as error:
                # Half a ring while somebody writes it, or a mistake: the keys that were good still are.
                self._counters.add("key_ring_errors")
                self._counters.warn("key ring", "the key ring stays as it was: %s", error)
        return self._ring


class Signatures:
    """Decides which records are believed. For one thread at a time: the one that reads the control topics."""

    def __init__(self, source: RingFile | KeyRing | None, *, is_required: bool, counters: Counters) -> None:
        """Check against `source`; `None` checks nothing. `is_required` refuses what has no signature."""
        self._source = source
        self._counters = counters
        self.is_checking = source is not None
        self.is_required = is_required

    def judge(self, record: ControlRecord, tenant: str) -> Trust:
        """Check one record, whatever is in it. What is of no concern to `tenant` costs no arithmetic.

        Returns:
            Whether it may be applied. Where there are no keys everything may; a tombstone has nothing to check.

        Cost: about 0.2 ms for 400 bytes where there are keys.
        """
        if self._source is None or record.value is None:
            return UNCHECKED
        try:
            fields = parse_signed(record.value)
        except ValueError as error:
            return self._refuse(record, SignatureRefused("wrong", f"cannot have been signed: {error}"))
        if _tenant_of(record, fields) not in {tenant, EVERYONE}:
            return _ANOTHERS
        try:
            self._ring_for(fields.get("kid")).check(fields, at_ms=record.append_ms)
            _check_key(record, fields)
        except SignatureRefused as refused:
            if refused.reason == "missing" and not self.is_required:
                self._counters.add("signatures_absent")
                return UNCHECKED
            return self._refuse(record, refused)
        return Trust(is_proven=True)

    def _ring_for(self, kid: object) -> KeyRing:
        if not isinstance(self._source, RingFile):
            assert self._source is not None  # noqa: S101 - asked only where there is one
            return self._source
        ring = self._source.ring()
        return ring if kid is None or ring.has(kid) else self._source.ring(within_ms=MISSING_MS)

    def _refuse(self, record: ControlRecord, refused: SignatureRefused) -> Trust:
        self._counters.add("signatures_refused")
        self._counters.add(f"signature_{refused.reason}")
        self._counters.warn(
            f"signature {refused.reason} {record.inlet}",
            "a record on control.%s with key %r is not believed: %s",
            record.inlet,
            _key_of(record)[:256],
            refused,
        )
        return Trust(is_proven=False, refusal=str(refused))


def _check_key(record: ControlRecord, fields: Mapping[str, Any]) -> None:
    # A state says in its key whom it binds, and Kafka's key is not signed: the object has it once more.
    if record.inlet == "state" and fields.get("key") != _key_of(record):
        raise SignatureRefused("wrong_key", f"signed for the key {str(fields.get('key'))[:256]!r}")


def configured(
    key_ring: KeyRing | str | PathLike[str] | None,
    require_signature: bool | None,
    *,
    clock: Clock,
    counters: Counters,
    environ: Mapping[str, str] = os.environ,
) -> Signatures:
    """Return the check that arguments and environment ask for; an argument wins over its variable.

    Raises:
        ConfigError: A signature is required and there are no keys, a ring cannot be read, `cryptography` is missing,
            or a variable makes no sense.
    """
    place = (environ.get(RING_VARIABLE) or None) if key_ring is None else key_ring
    is_required = _flag(environ.get(REQUIRE_VARIABLE, "")) if require_signature is None else require_signature
    if place is None:
        if is_required:
            require_cryptography()
            raise ConfigError(
                f"require_signature is on and there are no keys to check with: set key_ring or {RING_VARIABLE}, to a "
                "directory with the public keys of the detector and of operators"
            )
        return Signatures(None, is_required=False, counters=counters)
    source = place if isinstance(place, KeyRing) else RingFile(place, clock=clock, counters=counters)
    return Signatures(source, is_required=is_required, counters=counters)


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _YES | _NO:
        raise ConfigError(f"{REQUIRE_VARIABLE} = {text!r} is neither true nor false")
    return word in _YES


def _state_of(path: str | PathLike[str]) -> list[tuple[str, int, int, int]]:
    found = []
    for file in ring_files(path):
        try:
            stat = file.stat()
        except OSError as error:
            raise ConfigError(f"key file {str(file)!r}: {error.strerror or error}") from None
        found.append((str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return found


def _tenant_of(record: ControlRecord, fields: Mapping[str, Any]) -> object:
    if record.inlet == "commands":
        return fields.get("tenant") if isinstance(fields.get("tenant"), str) else None
    return _key_of(record).partition("|")[0]


def _key_of(record: ControlRecord) -> str:
    return (record.key or b"").decode("utf-8", "replace")
