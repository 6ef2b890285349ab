"""Fetches Apache Kafka once per checkout, through Maven."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).parent / "apache_kafka" / "pom.xml"
LIBS = ROOT / "build" / "kafka" / "libs"

OLDEST_JAVA = 17  # Apache Kafka 4: its classes do not load in an older one
FETCH_TIMEOUT_S = 900  # 45 MB on a slow line; 13 s on a fast one


class KafkaUnavailableError(RuntimeError):
    """Apache Kafka cannot be fetched or run here; the message says what is missing."""


def apache_obstacle() -> str | None:
    """Return what keeps Apache Kafka from running on this machine, or None.

    Cost: 100 ms for asking Java its version, once per process.
    """
    java = _java_version()
    if java is None:
        return f"`java` is not on the path (Java {OLDEST_JAVA} or newer is needed)"
    if java < OLDEST_JAVA:
        return f"`java` is version {java}, and Apache Kafka needs {OLDEST_JAVA} or newer"
    if shutil.which("mvn") is None and not _stamp(LIBS).exists():
        return "`mvn` (Maven) is not on the path, and it has not fetched Apache Kafka before"
    return None


def fetch_kafka_jars(target: Path = LIBS) -> Path:
    """Return the directory with Apache Kafka and all it needs, having Maven fill it the first time.

    Several processes may call this at once: one fetches, the others wait for it. A change of the `pom.xml` fetches
    anew.

    Args:
        target: Directory of the jars. Nothing else may live there.

    Raises:
        KafkaUnavailableError: Maven is missing or failed; the message ends with its output.

    Cost: microseconds when it is there, otherwise the time of a download of 45 MB.
    """
    stamp = _stamp(target)
    if stamp.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            _run_maven(target)
            stamp.touch()
    return target


def _run_maven(target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError("`mvn` (Maven) is not on the path; it fetches Apache Kafka for the tests")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailableError(f"Maven did not fetch Apache Kafka within {FETCH_TIMEOUT_S} s") from error
    if result.returncode != 0:
        output = (result.stdout + result.stderr)[-2_000:]
        raise KafkaUnavailableError(f"Maven could not fetch Apache Kafka (exit code {result.returncode}):\n{output}")


def _stamp(target: Path) -> Path:
    """Return the file that says that `target` is complete and belongs to the `pom.xml` as it is now."""
    return target / f".complete-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"


@functools.cache
def _java_version() -> int | None:
    java = shutil.which("java")
    if java is None:
        return None
    output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None
