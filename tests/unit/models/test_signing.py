"""Signatures over the object as it was read, and private keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from tests._support.keys import DETECTOR, STRANGER

from loopwarden.testing import kill
from loopwarden_models.codec import decode_message
from loopwarden_models.commands import Command
from loopwarden_models.errors import ConfigError
from loopwarden_models.signing import SigningKey, is_signed_by, parse_signed, public_bytes


def test_a_signed_command_reads_as_the_command_that_was_signed() -> None:
    """A runtime that checks nothing must not notice."""
    order = kill("r-42", steps_partition=3)
    wire = DETECTOR.encode(order)
    read = decode_message(wire, Command)

    assert msgspec.structs.replace(read, kid=None, sig=None) == order
    assert read.kid == "detector-1"
    assert is_signed_by(parse_signed(wire), DETECTOR.public_key)
    assert not is_signed_by(parse_signed(wire), STRANGER.public_key)


def test_what_a_newer_sender_adds_is_covered() -> None:
    """Checked is the object that was read, not what this version understands of it."""
    fields = DETECTOR.sign({**msgspec.to_builtins(kill("r-42")), "of_a_later_version": {"b": [1.0, None], "a": "ü"}})
    wire = msgspec.json.encode(fields)

    assert is_signed_by(parse_signed(wire), DETECTOR.public_key)
    assert not is_signed_by(parse_signed(wire.replace(b"null", b"true")), DETECTOR.public_key)


def test_signing_again_replaces_name_and_signature() -> None:
    """Whoever passes an order on signs it with his own name."""
    fields = DETECTOR.sign(STRANGER.sign({"v": 1}))

    assert fields["kid"] == "detector-1"
    assert is_signed_by(fields, DETECTOR.public_key)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b'{"run_id": "r-1", "run_id": "r-2"}', "a name comes twice"),
        (b'{"reason": {"tool": "a", "tool": "b"}}', "a name comes twice"),
        (b"[]", "not a JSON object"),
        (b"{", "Expecting property name"),
        (b'{"share": NaN}', "NaN is not a JSON number"),
        (b'\xff{"v":1}', "codec can't decode"),
        ('{"v":1}'.encode("utf-16"), "codec can't decode"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"v":' + b"9" * 5_000 + b"}", "Exceeds the limit"),
    ],
)
def test_what_two_readers_may_read_differently_cannot_have_been_signed(value: bytes, message: str) -> None:
    """The reader that checks and the reader that obeys must see one and the same object."""
    with pytest.raises(ValueError, match=message):
        parse_signed(value)


@pytest.mark.parametrize("fields", [{"v": float("inf")}, {"v": "\ud800"}, {"v": 1e999}])
def test_what_has_no_canonical_form_is_signed_by_nobody(fields: dict[str, object]) -> None:
    """No answer but yes or no, whatever somebody has written."""
    assert not is_signed_by({**fields, "sig": DETECTOR.sign({"v": 1})["sig"]}, DETECTOR.public_key)


def test_a_key_survives_its_file() -> None:
    """What was generated signs as before after it was written and read."""
    again = SigningKey.from_pem(DETECTOR.to_pem(), "detector-1")

    assert again.encode(kill("r-42")) == DETECTOR.encode(kill("r-42"))


def test_files_that_are_no_ed25519_key_are_refused_in_words_without_their_content() -> None:
    """The message goes into logs."""
    curve = ec.generate_private_key(ec.SECP256R1())
    encrypted = DETECTOR._private.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a passphrase")
    )
    other = curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for data, message in [
        (other, "of another kind .*Ed25519 is needed"),
        (encrypted, "encrypted; write it without a passphrase"),
        (b"s3cret", "not a private key in PEM"),
    ]:
        with pytest.raises(ConfigError, match=message) as told:
            SigningKey.from_pem(data, "k")
        assert "s3cret" not in str(told.value)


def test_a_key_never_shows_itself() -> None:
    """`repr` lands in tracebacks and logs."""
    assert repr(DETECTOR) == "SigningKey(kid='detector-1')"


@pytest.mark.parametrize("kid", ["", "k" * 257])
def test_a_key_has_a_name_that_fits_the_wire(kid: str) -> None:
    """`kid` has room for 256 characters."""
    with pytest.raises(ConfigError, match="1 to 256 characters"):
        SigningKey.generate(kid)


@pytest.mark.parametrize("text", ["", "AAAA", "!", "A" * 42 + "B=", "é"])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    """Half a key, or a second spelling of one, is a mistake of an edit."""
    assert public_bytes("A" * 43 + "=") == bytes(32)
    with pytest.raises(ValueError, match=r"base64|has 32"):
        public_bytes(text)


PROBE = """
import sys
sys.modules["cryptography"] = None  # as if it were not installed
from loopwarden import Guard
from loopwarden.testing import MemoryTransport
from loopwarden_models.errors import ConfigError
Guard(MemoryTransport(), tenant="acme")
for key_ring in (sys.argv[1], None):
    try:
        Guard(MemoryTransport(), tenant="acme", require_signature=True, key_ring=key_ring)
    except ConfigError as error:
        print(error)
"""


def test_without_the_package_a_runtime_runs_unless_it_is_to_check(tmp_path: Path) -> None:
    """The base install is msgspec and kafka-python; who asks for more is told at the start what to install."""
    told = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert told.returncode == 0, told.stderr
    assert told.stdout.count("pip install 'loopwarden[signing]'") == 2
