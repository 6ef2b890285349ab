"""Builds the wheel and uses it as others will: in fresh environments, away from the repository. `make package`.

The base install must stay what goes into other people's agents: `import loopwarden` loads neither Kafka nor anything
heavy and starts no thread, and the command line says which extra is missing. With the extras, the service starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "dev.txt"

BASE = ("msgspec", "kafka-python")
HEAVY = (
    "kafka",
    "aiokafka",
    "cryptography",
    "faust",
    "numpy",
    "prometheus_client",
    "rich",
    "yaml",
    "aiohttp",
    "asyncio",
)

_PROBE = f"""
import json, sys, threading, time
before = set(sys.modules)
start = time.perf_counter()
import loopwarden
took_ms = (time.perf_counter() - start) * 1000
loaded = sorted(name for name in {HEAVY!r} if name in sys.modules and name not in before)
print(json.dumps({{"loaded": loaded, "threads": threading.active_count(), "took_ms": round(took_ms, 1)}}))
"""


def run(command: Sequence[str | Path], cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command away from the repository and insist on its exit status."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != expect:
        sys.exit(f"{command}: status {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}")
    return done


def environment(directory: Path, *arguments: str | Path) -> Path:
    """Make a fresh environment with what pip gets as `arguments`; returns its bin directory."""
    venv.create(directory, with_pip=True)
    run([directory / "bin" / "python", "-m", "pip", "install", "--quiet", *arguments], directory)
    return directory / "bin"


def check_base(wheel: Path, work: Path) -> None:
    """Check the base install: two dependencies, a light import, and a clear word about the extras."""
    lock = LOCK.read_text(encoding="utf-8").splitlines()
    pins = [line.split(" ")[0].rstrip("\\").strip() for line in lock if line.split("==")[0] in BASE]
    bin_ = environment(work / "base", wheel, *pins)
    listed = json.loads(run([bin_ / "python", "-m", "pip", "list", "--format", "json"], work).stdout)
    extra = {package["name"].lower() for package in listed} - {"pip", "setuptools", "loopwarden", *BASE}
    if extra:
        sys.exit(f"the base install brings more than it should: {sorted(extra)}")
    probe = json.loads(run([bin_ / "python", "-c", _PROBE], work).stdout)
    if probe["loaded"] or probe["threads"] != 1:
        sys.exit(f"import loopwarden is not light: {probe}")
    for command in ("worker", "replay", "topics"):
        told = run([bin_ / "loopwarden", command], work, expect=2).stderr
        if "loopwarden[service]" not in told:
            sys.exit(f"loopwarden {command} does not name its extra: {told!r}")
    told = run([bin_ / "loopwarden", "keys", "generate", "--kid", "k", "--out", work / "keys"], work, expect=2).stderr
    if "loopwarden[signing]" not in told:
        sys.exit(f"loopwarden keys does not name its extra: {told!r}")
    run([bin_ / "loopwarden", "--help"], work)
    print(f"base install: {', '.join(BASE)}; import loopwarden takes {probe['took_ms']} ms")


def check_service(wheel: Path, work: Path) -> None:
    """Check the wheel with its extras: the whole lock, then the wheel; replay an example; types are shipped."""
    bin_ = environment(work / "service", "--require-hashes", "-r", LOCK)
    run([bin_ / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel], work)
    example = ROOT / "docs" / "examples" / "loops.jsonl"
    summary = json.loads(run([bin_ / "loopwarden", "replay", example, "--json"], work).stdout.splitlines()[-1])
    if not summary["summary"]["verdicts"]:
        sys.exit(f"the installed wheel sees no loop in {example.name}: {summary}")
    run([bin_ / "loopwarden", "worker", "--help"], work)
    run([bin_ / "loopwarden", "keys", "generate", "--kid", "k", "--out", work / "keys"], work)
    run([bin_ / "python", "-m", "pip", "check"], work)
    for package in ("loopwarden", "loopwarden_models", "loopwarden_detectors", "loopwarden_streams"):
        run([bin_ / "mypy", "-p", package, "--ignore-missing-imports"], work)
    print("installed wheel: replays, and its types check")


def main() -> int:
    """Build sdist and wheel, then check both installs."""
    with tempfile.TemporaryDirectory(prefix="loopwarden-wheel-") as directory:
        work = Path(directory)
        run([sys.executable, "-m", "hatchling", "build", "-d", work / "dist"], ROOT)
        wheel = next((work / "dist").glob("*.whl"))
        sdist = next((work / "dist").glob("*.tar.gz"))
        print(f"built {wheel.name} ({wheel.stat().st_size // 1024} KB) and {sdist.name}")
        check_base(wheel, work)
        check_service(wheel, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
