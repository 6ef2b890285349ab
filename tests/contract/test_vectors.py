"""The published vectors: our code agrees with them, and so do implementations that share nothing with ours."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
import warnings
from hashlib import blake2b
from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loopwarden_models.canonical import canonical_json, loads_strict
from loopwarden_models.hashes import content_hash, derived_id, hash_point, is_probe, stable_key
from loopwarden_models.ids import command_id, control_partition, murmur2, verdict_id
from loopwarden_models.signing import SigningKey, is_signed_by, parse_signed, public_bytes, signed_bytes

FILE = files("loopwarden_models") / "vectors.json"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
# Imported by name: neither client ships types. kafka-python calls a deprecated function of the standard library.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    KAFKA_MURMUR2 = import_module("kafka.partitioner").murmur2
    AIOKAFKA_MURMUR2 = import_module("aiokafka.partitioner").murmur2
CANONICAL = VECTORS["canonical_json"] + VECTORS["canonical_json_beyond_rfc8785"]

# Samples of the number format that were published with RFC 8785: not derived from any code of ours.
RFC8785_NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


def by_name(vector: dict[str, Any]) -> str:
    """Name a case after its vector."""
    return str(vector["name"])


@pytest.mark.parametrize("vector", CANONICAL, ids=by_name)
def test_canonical_form_and_hash_are_the_published_ones(vector: dict[str, Any]) -> None:
    """A runtime in another language hashes after these; a change here makes its loops invisible."""
    value = loads_strict(vector["json"])

    assert canonical_json(value) == vector["canonical"].encode()
    assert content_hash(value) == vector["hash"]


@pytest.mark.parametrize("vector", CANONICAL, ids=by_name)
def test_hash_is_the_head_of_the_long_digest_of_the_published_text(vector: dict[str, Any]) -> None:
    """Needs no code of ours: the hash follows from the text in the file alone."""
    assert blake2b(vector["canonical"].encode(), digest_size=64).hexdigest()[:16] == vector["hash"]


def test_hash_is_not_that_of_the_short_digest() -> None:
    """A 64-bit BLAKE2b is another function; a library that offers only that one must not be used."""
    assert blake2b(b"{}", digest_size=8).hexdigest() != content_hash({})


@pytest.mark.parametrize("vector", VECTORS["canonical_json_refused"], ids=by_name)
def test_value_without_a_canonical_form_is_refused(vector: dict[str, Any]) -> None:
    """Two runtimes that fold NaN in two ways would disagree about what is equal: nobody hashes it."""
    with pytest.raises(ValueError, match=r".+"):
        content_hash(loads_strict(vector["json"]))


def test_published_numbers_hold_the_samples_of_the_rfc() -> None:
    """The file could be wrong as a whole; the standard's own samples cannot."""
    published = {vector["bits"]: vector["text"] for vector in VECTORS["numbers"]}

    assert {bits: published[bits] for bits in RFC8785_NUMBERS} == RFC8785_NUMBERS


@pytest.mark.parametrize("vector", VECTORS["numbers"], ids=lambda vector: str(vector["bits"]))
def test_number_is_written_as_published(vector: dict[str, Any]) -> None:
    """Number formats are where canonical JSON goes wrong first."""
    (value,) = struct.unpack(">d", bytes.fromhex(vector["bits"]))

    assert canonical_json(value).decode() == vector["text"]


# Key pairs of the samples that were published with RFC 8032 (7.1): not derived from any code of ours.
RFC8032_KEYS = {
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    ),
    "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    ),
}


@pytest.mark.parametrize("vector", VECTORS["signatures"], ids=by_name)
def test_signature_is_the_published_one(vector: dict[str, Any]) -> None:
    """Whoever signs in another language is believed by a runtime of ours, and the other way round."""
    fields = parse_signed(vector["json"].encode())
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["private_key"])), fields["kid"])

    assert public_bytes(vector["public_key"]) == key.public_key
    assert key.public_key.hex() == RFC8032_KEYS[vector["private_key"]]
    assert signed_bytes(fields) == vector["signed"].encode()
    assert is_signed_by(fields, key.public_key)
    assert key.sign(fields) == {**fields, "sig": vector["sig"]}


@pytest.mark.parametrize("vector", VECTORS["signatures_refused"], ids=by_name)
def test_signature_that_is_not_the_one_is_refused(vector: dict[str, Any]) -> None:
    """A verifier that accepts everything passes every other test of this kind."""
    assert not is_signed_by(parse_signed(vector["json"].encode()), public_bytes(vector["public_key"]))


def test_another_tool_agrees_about_the_signature_bytes(tmp_path: Path) -> None:
    """The text in the file, the key and the signature, checked by OpenSSL from the command line."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    vector = VECTORS["signatures"][0]
    (tmp_path / "text").write_bytes(vector["signed"].encode())
    (tmp_path / "sig").write_bytes(base64.b64decode(vector["sig"]))
    # The fixed head of an Ed25519 public key in DER (RFC 8410, 10.1).
    (tmp_path / "key").write_bytes(bytes.fromhex("302a300506032b6570032100") + base64.b64decode(vector["public_key"]))
    words = ["pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", "key", "-rawin", "-in", "text"]

    done = subprocess.run([openssl, *words, "-sigfile", "sig"], cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == 0, done


@pytest.mark.parametrize("vector", VECTORS["stable_key"], ids=lambda vector: vector["text"][:20])
def test_stable_key_is_the_published_one(vector: dict[str, Any]) -> None:
    """Keys lie in snapshots: a change would forget every loop at the next release."""
    digest = blake2b(vector["text"].encode(), digest_size=8).digest()

    assert stable_key(vector["text"]) == int(vector["key"]) == struct.unpack(">Q", digest)[0]


def framed(parts: list[str | int]) -> bytes:
    """Frame `parts` as the contract describes it, written down anew."""
    return b"".join(struct.pack(">I", len(str(part).encode())) + str(part).encode() for part in parts)


@pytest.mark.parametrize("vector", VECTORS["derived_id"], ids=lambda vector: repr(vector["parts"]))
def test_derived_id_is_the_published_one(vector: dict[str, Any]) -> None:
    """The same events must give the same ids after a crash and after an upgrade."""
    assert derived_id(*vector["parts"]) == vector["id"]
    assert blake2b(framed(vector["parts"]), digest_size=16).hexdigest() == vector["id"]


def test_frames_are_four_bytes_of_length_and_the_text() -> None:
    """The whole of an id, spelled out in bytes."""
    spelled_out = b"\x00\x00\x00\x02ab\x00\x00\x00\x01c"

    assert derived_id("ab", "c") == blake2b(spelled_out, digest_size=16).hexdigest()


@pytest.mark.parametrize("kind", ["verdict", "command"])
def test_ids_of_verdicts_and_commands_are_the_published_ones(kind: str) -> None:
    """A runtime that has applied a command must know it again, whoever computed the id."""
    function: Any = {"verdict": verdict_id, "command": command_id}[kind]
    for vector in VECTORS[f"{kind}_id"]:
        parts = {name: value for name, value in vector.items() if name != "id"}

        assert function(**parts) == vector["id"]
        assert blake2b(framed([kind, *parts.values()]), digest_size=16).hexdigest() == vector["id"]


@pytest.mark.parametrize("vector", VECTORS["murmur2"], ids=lambda vector: vector["bytes"][:16] or "empty")
def test_murmur2_is_that_of_two_kafka_clients(vector: dict[str, Any]) -> None:
    """A tenant's commands must be where its runtimes look for them."""
    data = bytes.fromhex(vector["bytes"])

    assert murmur2(data) == vector["hash"]
    assert KAFKA_MURMUR2(data) & 0xFFFFFFFF == vector["hash"]
    assert AIOKAFKA_MURMUR2(data) & 0xFFFFFFFF == vector["hash"]


def test_murmur2_is_that_of_the_java_client() -> None:
    """Values that Kafka's own test suite has, as signed integers."""
    known = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}

    assert {data: murmur2(data) for data in known} == {data: value % 2**32 for data, value in known.items()}


@pytest.mark.parametrize("vector", VECTORS["control_partition"], ids=lambda v: f"{v['tenant']}-{v['partitions']}")
def test_control_partition_is_the_published_one(vector: dict[str, Any]) -> None:
    """Java takes the hash without its sign bit, not its absolute value."""
    tenant, partitions = vector["tenant"], vector["partitions"]

    assert control_partition(tenant, partitions) == vector["partition"]
    assert (KAFKA_MURMUR2(tenant.encode()) & 0x7FFFFFFF) % partitions == vector["partition"]


@pytest.mark.parametrize("vector", VECTORS["probe"], ids=lambda v: f"{v['run_id']}-{v['epoch']}-{v['share']}")
def test_probe_is_the_published_one(vector: dict[str, Any]) -> None:
    """Every runtime decides by itself; two that decide differently let more through than the share."""
    run_id, epoch = vector["run_id"], vector["epoch"]
    digest = blake2b(canonical_json([run_id, epoch]), digest_size=64).hexdigest()

    assert hash_point(run_id, epoch) == vector["point"] == int(digest[:13], 16) / 2**52
    assert content_hash([run_id, epoch]) == vector["hash"] == digest[:16]
    assert is_probe(run_id, epoch, vector["share"]) is vector["passes"]


def test_probes_are_spread_evenly_and_take_turns() -> None:
    """A share of 5 % is 5 % of the runs, and with the next epoch 5 % of the others."""
    runs = [f"run-{n}" for n in range(4_000)]
    first = {run for run in runs if is_probe(run, 9, 0.05)}
    second = {run for run in runs if is_probe(run, 10, 0.05)}

    # Five standard deviations of a binomial: 200 +- 69.
    assert 131 < len(first) < 269
    assert 131 < len(second) < 269
    assert len(first & second) < len(first) / 2


def test_another_language_agrees_with_every_vector() -> None:
    """JavaScript's own number format and key order, OpenSSL's BLAKE2b: nothing of it is ours or Python's."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    with as_file(FILE) as path:
        done = subprocess.run(
            [node, str(Path(__file__).with_name("reference.mjs")), str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )

    assert json.loads(done.stdout) == []


def test_short_digests_agree_with_the_reference_command() -> None:
    """`b2sum` is built from the algorithm's reference code: it checks the lengths that JavaScript cannot make."""
    b2sum = shutil.which("b2sum")
    if b2sum is None:
        pytest.skip("b2sum is not installed")
    wanted = [(128, framed(vector["parts"]), vector["id"]) for vector in VECTORS["derived_id"]]
    wanted += [(64, vector["text"].encode(), f"{int(vector['key']):016x}") for vector in VECTORS["stable_key"]]
    for bits, data, digest in wanted:
        done = subprocess.run([b2sum, "-l", str(bits)], input=data, capture_output=True, check=True, timeout=60)

        assert done.stdout.split()[0].decode() == digest
