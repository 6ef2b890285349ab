"""What the worker's orders are encoded with."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests._support.keys import DETECTOR

from loopwarden.testing import kill
from loopwarden_models.codec import encode
from loopwarden_models.errors import ConfigError
from loopwarden_models.signing import is_signed_by, parse_signed
from loopwarden_streams.settings import Settings
from loopwarden_streams.signing import control_encoder

ORDER = kill("r-42")


def key_file(directory: Path, *, mode: int = 0o600, data: bytes = b"") -> Path:
    """Write the detector's private key, or something else, to a file."""
    file = directory / "detector-2026-12.key"
    file.write_bytes(data or DETECTOR.to_pem())
    file.chmod(mode)
    return file


def test_without_a_key_orders_are_encoded_as_ever() -> None:
    """Signing is a choice; who makes none pays nothing."""
    assert control_encoder(Settings()) is encode


@pytest.mark.parametrize(("kid", "name"), [("", "detector-2026-12"), ("another", "another")])
def test_with_a_key_orders_are_signed_under_its_name(tmp_path: Path, kid: str, name: str) -> None:
    """The file's name is the key's, unless a mounted secret is called otherwise."""
    settings = Settings(signing_key_file=str(key_file(tmp_path)), signing_kid=kid)
    fields = parse_signed(control_encoder(settings)(ORDER))

    assert fields["kid"] == name
    assert is_signed_by(fields, DETECTOR.public_key)


def test_a_key_that_others_may_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can read it can stop the fleet; but mounted secrets are readable by a group at times."""
    with caplog.at_level(logging.WARNING):
        control_encoder(Settings(signing_key_file=str(key_file(tmp_path))))
        assert not caplog.records
        control_encoder(Settings(signing_key_file=str(key_file(tmp_path, mode=0o640))))

    assert "can be read by others than its owner (mode 640)" in caplog.text


def test_wrong_settings_say_what_to_do(tmp_path: Path) -> None:
    """A worker that starts unsigned by mistake is found out by a fleet that obeys nothing."""
    for settings, message in [
        (Settings(signing_kid="k"), "signing_kid = 'k' without signing_key_file"),
        (Settings(signing_key_file="/nowhere/k.key"), "signing key file '/nowhere/k.key': No such file"),
        (Settings(signing_key_file=str(tmp_path)), "Is a directory"),
        (Settings(signing_key_file=str(key_file(tmp_path, data=b"{}"))), "key': not a private key in PEM"),
    ]:
        with pytest.raises(ConfigError, match=message):
            control_encoder(settings)


def test_variables_of_the_runtime_library_are_no_mistake_of_the_worker() -> None:
    """Agents and workers are started from one shell at times."""
    environ = {"LOOPWARDEN_KEY_RING": "ring", "LOOPWARDEN_REQUIRE_SIGNATURE": "1"}

    assert Settings.from_env(environ) == Settings()
    with pytest.raises(ConfigError, match="did you mean LOOPWARDEN_SIGNING_KEY_FILE"):
        Settings.from_env({"LOOPWARDEN_SIGNING_KEYFILE": "k"})
