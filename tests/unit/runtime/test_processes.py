"""The processes of this machine, as the runtime sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests._support.workers import wait_until

from loopwarden import processes
from loopwarden.processes import ProcessTree, is_above, look_up, parse_stat, process_table

# A shell whose child outlives it, re-parented to init.
ORPHANING = ["sh", "-c", "sleep 60 & echo $!"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_name_may_hold_anything() -> None:
    """A program may call itself `) Z 1 1`, and is neither a zombie nor a child of init for that."""
    rest = " ".join(str(n) for n in range(5, 53))
    process = parse_stat(f"77 (a) Z 1 1 () S 4 {rest}".encode())
    assert (process.pid, process.parent, process.group, process.session, process.is_over) == (77, 4, 5, 6, False)
    assert process.started == 22.0


def test_psutil_sees_what_proc_shows(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc, the same tree is found by the other way."""
    seen = look_up(sleeper.pid)
    monkeypatch.setattr(processes, "_HAS_PROC", False)
    other = look_up(sleeper.pid)
    assert seen is not None
    assert other is not None
    assert (other.pid, other.parent, other.group, other.session) == (seen.pid, os.getpid(), sleeper.pid, sleeper.pid)
    assert (seen.parent, seen.group, seen.session) == (other.parent, other.group, other.session)
    assert ProcessTree(other, is_ended=True).alive(process_table()) == [sleeper.pid]


def test_an_orphan_is_found_by_its_session() -> None:
    """The parent is gone, and its child is still a member."""
    with subprocess.Popen(ORPHANING, start_new_session=True, stdout=subprocess.PIPE, text=True) as shell:
        root = look_up(shell.pid)
        assert root is not None
        assert shell.stdout is not None
        orphan = int(shell.stdout.readline())
        tree = ProcessTree(root, is_ended=True)
        shell.wait()
    assert look_up(shell.pid) is None
    assert not tree.is_gone()
    assert tree.alive(process_table()) == [orphan]
    os.kill(orphan, 9)
    wait_until(lambda: not tree.alive(process_table()), "the orphan to be gone")


def test_a_descendant_is_found_by_its_parent_and_kept() -> None:
    """Without a session of its own, whoever was seen once stays a member."""
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        root = look_up(parent.pid)
        assert root is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        tree = ProcessTree(root, is_ended=True)
        assert sorted(tree.alive(process_table())) == sorted([parent.pid, child])
        parent.kill()
    assert tree.alive(process_table()) == [child]
    assert not tree.is_gone()
    os.kill(child, 9)
    wait_until(tree.is_gone, "the child to be gone")


def test_an_id_that_was_given_to_another_is_no_member(sleeper: subprocess.Popen[bytes]) -> None:
    """A stranger under a known id started at another time."""
    root = look_up(sleeper.pid)
    assert root is not None
    former = processes.Process(root.pid, 1, 1, 1, root.started - 1)
    tree = ProcessTree(former, is_ended=True)
    assert tree.is_gone()
    assert tree.alive(process_table()) == []


def test_who_is_above() -> None:
    """A run must not end the process that hosts it, nor any that this came from."""
    assert is_above(os.getpid())
    assert is_above(os.getppid())
    assert is_above(1)
    assert is_above(0)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not is_above(child.pid)
        child.kill()
