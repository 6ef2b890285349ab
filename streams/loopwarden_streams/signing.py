"""How what is written to the control topics is encoded: signed, where a key is configured."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from loopwarden_models.codec import encode
from loopwarden_models.errors import ConfigError
from loopwarden_models.signing import SigningKey
from loopwarden_streams.settings import Settings

log = logging.getLogger(__name__)

KEY_SUFFIX: Final = ".key"

ControlEncoder = Callable[[msgspec.Struct], bytes]


def control_encoder(settings: Settings) -> ControlEncoder:
    """Return what every command and every state has to be encoded with before it is sent.

    Raises:
        ConfigError: The key cannot be read or is no key, or `cryptography` is missing.

    Cost of the encoder: below 1 µs for 400 bytes without a key, about 0.15 ms with one.
    """
    if not settings.signing_key_file:
        if settings.signing_kid:
            raise ConfigError(f"signing_kid = {settings.signing_kid!r} without signing_key_file: name the key's file")
        return encode
    key = load_signing_key(settings.signing_key_file, settings.signing_kid)
    log.info("commands and states are signed with key %s", key.kid)
    return key.encode


def load_signing_key(path: str | Path, kid: str = "") -> SigningKey:
    """Read a private key; without `kid`, its name is that of the file without `.key`.

    Raises:
        ConfigError: As `control_encoder`; the message names the file and quotes nothing of it.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
        mode = file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"signing key file {str(path)!r}: {error.strerror or error}") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        # No refusal: mounted secrets are often readable by a group of one member.
        log.warning("signing key file %s can be read by others than its owner (mode %o)", path, stat.S_IMODE(mode))
    try:
        return SigningKey.from_pem(data, kid or file.name.removesuffix(KEY_SUFFIX))
    except ConfigError as error:
        raise ConfigError(f"signing key file {str(path)!r}: {error}") from None
