"""`loopwarden keys`: make, list and try the keys that commands and states are signed with."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from loopwarden_models.codec import decode_message
from loopwarden_models.commands import Command
from loopwarden_models.control_state import BreakerState, EnforcementRecord, FenceRecord, RunRecord
from loopwarden_models.errors import ConfigError, InvalidEvent
from loopwarden_models.key_ring import PUBLIC_SUFFIX, ROLES, KeyRing, RingKey, SignatureRefused, role_of
from loopwarden_models.questions import AnswerRecord, QuestionRecord
from loopwarden_models.signing import SigningKey, parse_signed
from loopwarden_streams.signing import KEY_SUFFIX, load_signing_key

# A name that is a file's name on every system, and needs no quotes in any shell.
_KID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_READERS: Final[dict[str, Callable[[bytes], object]]] = {
    "run": lambda value: decode_message(value, RunRecord),
    "breaker": lambda value: decode_message(value, BreakerState),
    "fence": lambda value: decode_message(value, FenceRecord),
    "enforcement": lambda value: decode_message(value, EnforcementRecord),
    "question": lambda value: decode_message(value, QuestionRecord),
    "approval": lambda value: decode_message(value, AnswerRecord),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden keys`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    generate = actions.add_parser("generate", help="make a private and a public key")
    generate.add_argument("--kid", required=True, help="name of the key; letters, digits and . _ -")
    generate.add_argument(
        "--out", required=True, type=Path, help=f"directory for NAME{KEY_SUFFIX}, NAME{PUBLIC_SUFFIX}"
    )
    generate.add_argument("--role", choices=ROLES, default="detector", help="who will hold it (default: detector)")
    generate.add_argument("--not-before", type=_moment, help="refuse what is appended earlier: 2026-12-01T00:00:00Z")
    generate.add_argument("--not-after", type=_moment, help="refuse what is appended then or later")
    generate.add_argument("--json", action="store_true", help="print one JSON object")
    generate.set_defaults(act=_generate)

    listing = actions.add_parser("list", help="check a key ring and print what is in it")
    listing.add_argument("ring", help=f"directory of *{PUBLIC_SUFFIX} files, or one file")
    listing.add_argument("--json", action="store_true", help="print one JSON object a key")
    listing.set_defaults(act=_list)

    sign = actions.add_parser("sign", help="sign commands or states, one JSON object a line")
    sign.add_argument("file", nargs="?", default="-", help="- or nothing reads the standard input")
    sign.add_argument("--key", required=True, help="private key file")
    sign.add_argument("--kid", default="", help="name of the key (default: that of the file)")
    sign.set_defaults(act=_sign)

    verify = actions.add_parser("verify", help="say whether a runtime with this ring would believe them")
    verify.add_argument("file", nargs="?", default="-", help="- or nothing reads the standard input")
    verify.add_argument("--ring", required=True, help=f"directory of *{PUBLIC_SUFFIX} files, or one file")
    verify.add_argument("--at-ms", type=int, help="when the broker appended them, Unix milliseconds (default: now)")
    verify.set_defaults(act=_verify)


def run(args: argparse.Namespace) -> int:
    """Do what was asked. Returns 0, or 1 if something is not to be believed."""
    act: Callable[[argparse.Namespace], int] = args.act
    return act(args)


def _generate(args: argparse.Namespace) -> int:
    if _KID.fullmatch(args.kid) is None:
        raise ConfigError(f"--kid = {args.kid!r} must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    key = SigningKey.generate(args.kid)
    try:
        public = RingKey(
            kid=args.kid,
            role=args.role,
            public_key=base64.b64encode(key.public_key).decode("ascii"),
            not_before=args.not_before,
            not_after=args.not_after,
        )
    except ValueError as error:
        raise ConfigError(f"--not-after: {error}") from None
    private_file, public_file = args.out / f"{args.kid}{KEY_SUFFIX}", args.out / f"{args.kid}{PUBLIC_SUFFIX}"
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        # Not one of the two if the other cannot be written.
        if private_file.exists():
            raise ConfigError(f"{private_file} exists: a key is never written over; choose another --kid")
        _write_new(public_file, msgspec.json.format(msgspec.json.encode(public)) + b"\n", mode=0o644)
        _write_new(private_file, key.to_pem(), mode=0o600)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} exists: a key is never written over; choose another --kid") from None
    except OSError as error:
        raise ConfigError(f"--out = {str(args.out)!r}: {error.strerror or error}") from None
    if args.json:
        print(json.dumps({"kid": args.kid, "private": str(private_file), "public": str(public_file)}))
        return 0
    owner = "the workers" if args.role == "detector" else "the operator"
    print(f"{private_file}  private: for {owner} alone, and never into a repository")
    print(
        f"{public_file}  public: into the key ring of every runtime (LOOPWARDEN_KEY_RING), before anybody signs with it"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    for key in KeyRing.load(args.ring).keys:
        if args.json:
            print(msgspec.json.encode(key).decode())
            continue
        state = "withdrawn" if key.withdrawn else _reach(key)
        print(f"{key.kid}  {key.role}  {state}  {key.public_key}")
    return 0


def _sign(args: argparse.Namespace) -> int:
    key = load_signing_key(args.key, args.kid)
    for place, line in _lines(args.file):
        try:
            fields = parse_signed(line)
            _check_kind(line, str(fields.get("key", "")))
            print(msgspec.json.encode(key.sign(fields)).decode())
        except (ValueError, InvalidEvent) as error:
            raise ConfigError(f"{place}: {error}") from None
    return 0


def _verify(args: argparse.Namespace) -> int:
    ring = KeyRing.load(args.ring)
    at_ms = int(time.time() * 1_000) if args.at_ms is None else args.at_ms
    status = 0
    for place, line in _lines(args.file):
        try:
            fields = parse_signed(line)
            key = ring.check(fields, at_ms=at_ms)
            print(f"{place}: signed by {key.kid}, in the role of the {role_of(fields)}")
        except (ValueError, SignatureRefused) as error:
            print(f"{place}: refused: {error}")
            status = 1
    return status


def _lines(name: str) -> Iterator[tuple[str, bytes]]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield f"{'standard input' if name == '-' else name}:{number}", line


def _check_kind(value: bytes, key: str) -> None:
    """Refuse what no runtime could read: a signature under a mistake only makes it look right."""
    kind = key.partition("|")[2].partition("|")[0]
    if not key:
        decode_message(value, Command)
    elif kind in _READERS:
        _READERS[kind](value)
    else:
        raise ValueError(f"key {key[:80]!r} is of no kind of state: {', '.join(_READERS)}")


def _reach(key: RingKey) -> str:
    reach = [f"from {key.not_before.isoformat()}" if key.not_before else ""]
    reach += [f"until {key.not_after.isoformat()}" if key.not_after else ""]
    return " ".join(filter(None, reach)) or "valid"


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time with a zone, such as 2026-12-01T00:00:00Z")
    return moment


def _write_new(file: Path, data: bytes, *, mode: int) -> None:
    # The mode is there before the first byte is: at no moment can anybody else read a private key.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(data)
