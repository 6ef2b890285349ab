"""Operating-system processes that a run started: which belong together, and which of them still live."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

_PROC = Path("/proc")
_DEAD_STATES = frozenset("ZXx")

# Fields of /proc/<pid>/stat behind the name, which is in brackets and may hold anything (proc_pid_stat(5)).
_STATE, _PARENT, _GROUP, _SESSION, _STARTED = 0, 1, 2, 3, 19


class HasPid(Protocol):
    """A process object of the standard library."""

    @property
    def pid(self) -> int | None:
        """Its id; `None` before it was started."""
        ...


class Process(Struct, frozen=True, gc=False):
    """One line of the process table.

    Attributes:
        pid: Its id, which another process may have later.
        parent: Id of its parent; of `init`, or of a subreaper, once the parent has ended.
        group: Its process group. `session`: its session.
        started: When it started, in a unit of the system's own: id and start together are unique.
        is_over: It has ended, and nobody has asked for its exit status yet.
    """

    pid: int
    parent: int
    group: int
    session: int
    started: float
    is_over: bool = False


Table = Mapping[int, Process]


def look_up(pid: int) -> Process | None:
    """Return one process, `None` if there is none. Cost: 20 µs on Linux.

    Raises:
        ProcessesUnknownError: This system has no `/proc`, and `psutil` is not installed.
    """
    if not _HAS_PROC:
        return _table_of_psutil().get(pid)
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None


def process_table() -> Table:
    """Return all processes. Cost: 20 µs a process on Linux, unmeasured elsewhere.

    Raises:
        ProcessesUnknownError: This system has no `/proc`, and `psutil` is not installed.
    """
    if not _HAS_PROC:
        return _table_of_psutil()
    found = (look_up(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def parse_stat(line: bytes) -> Process:
    """Return what a line of `/proc/<pid>/stat` says."""
    pid, _, rest = line.partition(b" ")
    fields = rest.rpartition(b")")[2].split()
    return Process(
        int(pid),
        int(fields[_PARENT]),
        int(fields[_GROUP]),
        int(fields[_SESSION]),
        float(fields[_STARTED]),
        fields[_STATE].decode() in _DEAD_STATES,
    )


class ProcessesUnknownError(Exception):
    """The processes of this system cannot be listed."""


class ProcessTree:
    """A process and all that came of it. For one thread at a time.

    Members are found by their parents, and by process groups and sessions that a member leads: who was started in a
    session of its own cannot lose a grandchild, also if everybody between them has ended. A member that was seen once
    stays one, whoever becomes its parent.

    Attributes:
        is_ended: Whether it may be ended with the run.
        told: Members that were asked to end (SIGTERM).
    """

    def __init__(self, root: Process, *, is_ended: bool) -> None:
        self.is_ended = is_ended
        self.told: set[int] = set()
        self._members = {root.pid: root.started}
        self._led = {root.pid} if root.pid in (root.group, root.session) else set[int]()

    def is_gone(self) -> bool:
        """Return whether nothing of it can be left; cheap, for runs that go on.

        Asked often, since the id of a process that is gone may be given to a stranger.

        Raises:
            ProcessesUnknownError: See `look_up`.
        """
        if self._led:
            return not any(_has_group(group) for group in self._led)
        return all(
            (process := look_up(pid)) is None or process.started != started for pid, started in self._members.items()
        )

    def alive(self, table: Table) -> list[int]:
        """Take note of new members, and return the ids of those that live.

        Args:
            table: As it is now.
        """
        for pid, started in list(self._members.items()):
            process = table.get(pid)
            if process is None or process.started != started:
                del self._members[pid]
        own = os.getpid()
        is_new = True
        while is_new:
            is_new = False
            for process in table.values():
                if process.pid in self._members or process.pid == own:
                    continue
                if process.parent in self._members or process.group in self._led or process.session in self._led:
                    self._members[process.pid] = process.started
                    if process.pid in (process.group, process.session):
                        self._led.add(process.pid)
                    is_new = True
        return [pid for pid in self._members if not table[pid].is_over]


def is_above(pid: int) -> bool:
    """Return whether `pid` is this process, or one that this process came from.

    Raises:
        ProcessesUnknownError: See `look_up`.
    """
    at = os.getpid()
    while at > 1 and at != pid:
        process = look_up(at)
        at = 0 if process is None else process.parent
    return at == pid or pid <= 1


def _has_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        # A leader that has gone on into a group of its own leaves its session behind; rare, so looked for only then.
        return any(process.session == group for process in process_table().values())
    except PermissionError:
        return True
    return True


def _table_of_psutil() -> Table:
    try:
        import psutil  # noqa: PLC0415 - only where there is no /proc, and only where it is installed
    except ImportError as error:
        raise ProcessesUnknownError("this system has no /proc: install psutil") from error
    found: dict[int, Process] = {}
    for process in psutil.process_iter(["ppid", "create_time", "status"]):
        info = process.info
        try:
            group, session = (os.getpgid(process.pid), os.getsid(process.pid)) if hasattr(os, "getsid") else (0, 0)
        except OSError:
            group = session = 0
        is_over = info["status"] == psutil.STATUS_ZOMBIE
        found[process.pid] = Process(
            process.pid, info["ppid"] or 0, group, session, info["create_time"] or 0.0, is_over
        )
    return found


_HAS_PROC = (_PROC / "self" / "stat").exists()
