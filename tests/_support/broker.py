"""What every test broker can do, whichever program it is."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Broker(ABC):
    """One broker on loopback with a data directory of its own. Not thread-safe.

    Its address never changes: a client that was connected before `restart()` finds it again. All methods block, and
    must not be called from a coroutine: use `asyncio.to_thread` there.

    Args:
        data_dir: Where it keeps data and log, for the next start too; made if missing. Without one, a temporary
            directory that `close()` removes.
    """

    def __init__(self, data_dir: Path | None) -> None:
        self._owns_dir = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="loopwarden-kafka-")) if data_dir is None else data_dir
        self.data_dir.mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """Address for clients, `host:port`."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id of the running broker, for signals such as SIGSTOP."""

    @abstractmethod
    def start(self) -> None:
        """Start and return when clients can connect and groups can be joined. Does nothing while it runs."""

    @abstractmethod
    def stop(self) -> None:
        """End the broker in good order; the data stays. Does nothing if it does not run."""

    @abstractmethod
    def kill(self) -> None:
        """End the broker by SIGKILL; the data stays as it is. Does nothing if it does not run."""

    def restart(self) -> None:
        """Stop, if it runs, and start again on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the broker: in good order where its data stays, at once where its directory goes with it."""
        if self._owns_dir:
            self.kill()
            shutil.rmtree(self.data_dir, ignore_errors=True)
        else:
            self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
