"""A Kafka-compatible broker in a child process, for `loopwarden demo`: no Java, no container, gone when we are."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loopwarden_models.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

LOOPBACK = "127.0.0.1"

# Below Linux's range of ephemeral ports (32768 to 60999). Inside it, a client that reconnects to a broker that is
# down can be given that very port as its own: it then talks to itself, and the broker cannot bind when it returns.
PORTS = range(20_000, 32_000)

# Runs the command in place of the shell, so that the process id is the command's, beside a watcher that waits on our
# pipe. A line means that we ended the command ourselves; end of file means that we died, however it happened.
# A parent-death signal would not do: it fires when the starting *thread* ends.
TIE = 'exec 3<&0 </dev/null; (read -r line <&3 || kill -TERM $$) & exec 3<&-; exec "$@"'


class TiedProcess:
    """A child process that ends when this process ends, even by SIGKILL.

    It has a session of its own, so Ctrl-C in the terminal reaches us alone, and we decide in which order things stop.
    Not thread-safe.

    Attributes:
        pid: Process id of the command itself.
    """

    def __init__(self, argv: Sequence[str], *, log_path: Path) -> None:
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own command, and no shell reads its words
                ["/bin/sh", "-c", TIE, "sh", *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def is_running(self) -> bool:
        """Return whether the process has not ended yet."""
        return self._process.poll() is None

    def terminate(self, *, timeout_s: float) -> None:
        """Ask the process to end, and kill it if it has not within `timeout_s`. Returns when it is gone."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def kill(self) -> None:
        """End the process at once. Returns when it is gone."""
        self._process.kill()
        self._reap()

    def _reap(self) -> None:
        self._process.wait()
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):
                pipe.write(b"\n")
            pipe.close()


class EmbeddedBroker:
    """The broker of the `noida-db` wheel on a free loopback port.

    For demonstrations on one machine. Release 0.2.3 of the wheel, measured beside Apache Kafka 4.1, does the same with
    idempotent and transactional producers, `LogAppendTime`, compaction, look-up by time, static membership and records
    of 7 MB. What it cannot do:

    * **Survive a kill.** It lives in memory and saves everything about once a second, as one JSON file four times the
      size of the records. What it acknowledged since then is lost. 130,000 records of 600 bytes are 300 MB per save and
      two thirds of a core, so keep a demonstration below that.
    * **Expire a dead group member.** A member that was killed keeps its partitions: with a session timeout of 6 s,
      nobody else had them after 40 s (Apache Kafka: 6 s). Static members come back under their own id.
    * **Commit during a rebalance.** It answers `IllegalGeneration`, and the client rejoins under a new id.
    * **Refuse unknown topics.** Any request that names one creates it, and there is no setting for it.
    * **Take records above 1 MB** where the topic does not set `max.message.bytes`; the broker has no such setting.
    * **Hold a fetch** until a record comes: `held_fetches` does it in front of it, in a second process.
    * **Wait with retention.** Records older than `retention.ms` by their own timestamps vanish at once, without waiting
      for a segment to close.

    So nothing about fail-over or durability may be concluded from it. Not thread-safe.

    Args:
        data_dir: Where it keeps its data, for the next start too; made if missing. Without one it gets a temporary
            directory that is removed by `stop()`.
    """

    def __init__(self, *, data_dir: Path | None = None) -> None:
        self._kept_dir = data_dir
        self._temporary_dir: Path | None = None
        self._port = free_port()
        self._inner_port = free_port()
        self._process: TiedProcess | None = None
        self._front: TiedProcess | None = None
        self._seen_bytes: dict[Path, int] = {}

    @property
    def bootstrap(self) -> str:
        """Address for clients, the same for the life of this object."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker.

        Raises:
            TransportError: It is not running.
        """
        if self._process is None:
            raise TransportError("the embedded broker is not running: call start() first")
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether it was started and has not ended."""
        return all(process is not None and process.is_running() for process in (self._process, self._front))

    def start(self, *, timeout_s: float = 10.0) -> None:
        """Start the broker and return when it accepts connections. Does nothing while it runs.

        Raises:
            ConfigError: The wheel is not installed.
            TransportError: It ended, or was not ready within `timeout_s`; the message ends with its output.

        Cost: blocks for about 100 ms; with data of an earlier start about 25 ms per MB of records.
        """
        if self.is_running():
            return
        self.kill()  # one that ended by itself still has to be reaped
        executable = _find_executable()
        data_dir = self._make_data_dir()
        inner = f"{LOOPBACK}:{self._inner_port}"
        argv = [executable, "start", "--only", "kafka", "--host", LOOPBACK, "--kafka-port", str(self._inner_port)]
        self._process = self._spawn([*argv, "--data-dir", str(data_dir)], data_dir / "broker.log")
        argv = [sys.executable, "-m", "loopwarden_streams.held_fetches", self.bootstrap, inner]
        self._front = self._spawn(argv, data_dir / "front.log")
        deadline = time.monotonic() + timeout_s
        # Both print their address once it is bound: until then, an open port may be somebody else's.
        for process, address, log_path in (
            (self._process, inner, data_dir / "broker.log"),
            (self._front, self.bootstrap, data_dir / "front.log"),
        ):
            while address.encode() not in log_path.read_bytes()[self._seen_bytes[log_path] :]:
                if not process.is_running() or time.monotonic() > deadline:
                    message = f"the embedded broker did not start on {address} within {timeout_s:g} s"
                    output = tail(log_path)
                    self.kill()
                    self.stop()
                    raise TransportError(f"{message}; its output:\n{output}")
                time.sleep(0.005)

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End the broker; it saves its data first if the directory is the caller's. May be called twice.

        Cost: blocks for about 50 ms; up to 3 s while it saves 130,000 records.
        """
        if self._temporary_dir is None and self._process is not None:
            self._process.terminate(timeout_s=timeout_s)
            self._process = None
        self.kill()
        if self._temporary_dir is not None:
            shutil.rmtree(self._temporary_dir, ignore_errors=True)
            self._temporary_dir = None

    def kill(self) -> None:
        """End the broker at once, as a crash would: up to a second of records is lost. `start()` works afterwards."""
        for process in (self._front, self._process):
            if process is not None:
                process.kill()
        self._front = self._process = None

    def _spawn(self, argv: list[str], log_path: Path) -> TiedProcess:
        self._seen_bytes[log_path] = log_path.stat().st_size if log_path.exists() else 0
        return TiedProcess(argv, log_path=log_path)

    def _make_data_dir(self) -> Path:
        if self._kept_dir is not None:
            self._kept_dir.mkdir(parents=True, exist_ok=True)
            return self._kept_dir
        if self._temporary_dir is None:
            self._temporary_dir = Path(tempfile.mkdtemp(prefix="loopwarden-broker-"))
        return self._temporary_dir

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a loopback port that nobody listens on, outside the ephemeral range.

    Raises:
        TransportError: A hundred random ports were all taken.
    """
    for _ in range(100):
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise TransportError(f"found no free port from {PORTS.start} to {PORTS.stop - 1} on {LOOPBACK}")


def tail(log_path: Path, *, lines: int = 30) -> str:
    """Return the last lines of a log, for an error message; `"(no output)"` if there are none."""
    try:
        text = log_path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    return "\n".join(text.splitlines()[-lines:]) or "(no output)"


def _find_executable() -> str:
    """Return the path of the wheel's program.

    Raises:
        ConfigError: The wheel is not installed, or is of a platform without the program.
    """
    spec = importlib.util.find_spec("noida_db")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the embedded broker is not installed: pip install 'loopwarden[demo]', "
            "or name a Kafka cluster of your own instead"
        )
    executable = Path(spec.origin).with_name("noida-db")
    if not executable.is_file():
        raise ConfigError(f"the noida-db wheel has no program at {str(executable)!r}: reinstall 'loopwarden[demo]'")
    if not os.access(executable, os.X_OK):
        # Some installers drop the executable bit; the wheel's own entry point sets it too, at every call.
        executable.chmod(0o755)
    return str(executable)
