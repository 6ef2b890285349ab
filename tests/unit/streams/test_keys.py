"""`loopwarden keys`: what it writes, prints and refuses."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest
from tests._support.keys import DETECTOR, OPERATOR, public, write_ring

from loopwarden.testing import enforcement, kill, run_record
from loopwarden_models.codec import encode
from loopwarden_models.key_ring import KeyRing
from loopwarden_models.signing import is_signed_by, parse_signed
from loopwarden_streams import cli


def keys(*words: str | Path) -> int:
    """Run `loopwarden keys`."""
    return cli.main(["keys", *map(str, words)])


def test_a_new_pair_signs_and_is_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Generate, sign, verify: the three commands understand each other, and what they leave is a ring."""
    assert keys("generate", "--kid", "d1", "--out", tmp_path / "made") == 0
    file = tmp_path / "order.json"
    file.write_bytes(encode(kill("r-42")) + b"\n\n" + encode(run_record("r-42", "killed")))
    assert "LOOPWARDEN_KEY_RING" in capsys.readouterr().out
    assert keys("sign", file, "--key", tmp_path / "made" / "d1.key") == 0
    signed = capsys.readouterr().out
    (ring,) = KeyRing.load(tmp_path / "made").keys
    (tmp_path / "signed.json").write_text(signed)

    assert keys("verify", tmp_path / "signed.json", "--ring", tmp_path / "made") == 0
    assert (ring.kid, ring.role) == ("d1", "detector")
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in told] == ["signed by d1, in the role of the detector"] * 2
    assert json.loads(signed.splitlines()[0])["kid"] == "d1"


def test_the_private_key_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask of the shell is."""
    assert keys("generate", "--kid", "d1", "--out", tmp_path) == 0

    assert stat.S_IMODE((tmp_path / "d1.key").stat().st_mode) == 0o600
    assert (tmp_path / "d1.key").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert b"PRIVATE" not in (tmp_path / "d1.pub").read_bytes()


def test_no_key_is_ever_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lost private key means a rotation of the whole fleet."""
    for name in ("d1.key", "d1.pub"):
        (tmp_path / name).write_text("kept")

        assert keys("generate", "--kid", "d1", "--out", tmp_path) == cli.EXIT_USAGE
        assert f"{name} exists: a key is never written over" in capsys.readouterr().err
        assert [file.read_text() for file in tmp_path.iterdir()] == ["kept"]
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kid", "../k"], "--kid = '../k' must be"),
        (["--kid", ""], "--kid = '' must be"),
        (["--kid", "k" * 65], "must be 1 to 64"),
        (
            ["--kid", "k", "--not-before", "2027-01-01T00:00:00Z", "--not-after", "2026-01-01T00:00:00Z"],
            "never be valid",
        ),
    ],
)
def test_impossible_keys_are_refused(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name is a file's name; a key that is never valid is a mistake."""
    assert keys("generate", *words, "--out", tmp_path) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["tomorrow", "2026-12-01", "2026-12-01T00:00:00"])
def test_a_time_needs_a_zone(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The broker's clock has no idea of where the operator sits."""
    with pytest.raises(SystemExit, match="2"):
        keys("generate", "--kid", "k", "--out", tmp_path, "--not-after", text)

    assert "is not a time with a zone" in capsys.readouterr().err


def test_a_ring_is_listed_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before a rotation one looks at what is there."""
    assert keys("generate", "--kid", "a", "--out", tmp_path, "--not-after", "2026-12-01T00:00:00+02:00", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "kid": "a",
        "private": str(tmp_path / "a.key"),
        "public": str(tmp_path / "a.pub"),
    }
    write_ring(tmp_path, public(DETECTOR, withdrawn=True), public(OPERATOR, "operator"))
    assert keys("list", tmp_path) == 0
    rows = [line.split("  ")[:3] for line in capsys.readouterr().out.splitlines()]
    assert keys("list", tmp_path, "--json") == 0

    assert rows == [
        ["a", "detector", "until 2026-12-01T00:00:00+02:00"],
        ["detector-1", "detector", "withdrawn"],
        ["operator-1", "operator", "valid"],
    ]
    assert [json.loads(line)["kid"] for line in capsys.readouterr().out.splitlines()] == [
        "a",
        "detector-1",
        "operator-1",
    ]


def test_an_operator_signs_what_comes_through_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the tool that writes an order and the one that sends it."""
    (tmp_path / "ops.key").write_bytes(OPERATOR.to_pem())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(encode(enforcement("observe_only")))))

    assert keys("sign", "--key", tmp_path / "ops.key", "--kid", "operator-1") == 0
    fields = parse_signed(capsys.readouterr().out.encode())
    assert fields["kid"] == "operator-1"
    assert is_signed_by(fields, OPERATOR.public_key)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"v": 1, "v": 1}', "order.json:1: a name comes twice"),
        (b'{"v": 1, "type": "kill_run"}', "order.json:1: command_id: required, and not there"),
        (b'{"v": 1, "key": "acme|run|r-1"}', "order.json:1: version: required"),
        (
            b'{"v": 1, "key": "acme|runs|r-1"}',
            "is of no kind of state: run, breaker, fence, enforcement, question",
        ),
    ],
)
def test_what_no_runtime_could_read_is_not_signed(
    tmp_path: Path, line: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signature under a mistake only makes it look right."""
    (tmp_path / "ops.key").write_bytes(OPERATOR.to_pem())
    file = tmp_path / "order.json"
    file.write_bytes(line)

    assert keys("sign", file, "--key", tmp_path / "ops.key") == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_verify_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same answer as in the `detail` of the acknowledgement, line by line, and a status for scripts."""
    ring = write_ring(tmp_path / "ring", public(DETECTOR))
    file = tmp_path / "orders.json"
    lines = [
        DETECTOR.encode(kill("r-1")),
        DETECTOR.encode(kill("r-2")).replace(b"r-2", b"r-3"),
        encode(kill("r-4")),
        b"{",
    ]
    file.write_bytes(b"\n".join(lines))

    assert keys("verify", file, "--ring", ring) == 1
    told = capsys.readouterr().out.splitlines()
    assert "signed by detector-1" in told[0]
    assert "refused: the signature is not that of key 'detector-1'" in told[1]
    assert "refused: not signed" in told[2]
    assert "refused: Expecting" in told[3]


@pytest.mark.parametrize("words", [["verify", "/nowhere", "--ring"], ["list"]])
def test_a_missing_file_is_named(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a slip of the keyboard."""
    place = write_ring(tmp_path / "ring", public(DETECTOR)) if words[0] == "verify" else Path("/nowhere")

    assert keys(*words, place) == cli.EXIT_USAGE
    assert "/nowhere" in capsys.readouterr().err
