"""`import loopwarden` in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import loopwarden

PROBE = """
import sys, threading
import loopwarden
heavy = {"kafka", "msgspec", "asyncio", "numpy", "loopwarden_models.codec"} & set(sys.modules)
assert not heavy, heavy
assert threading.active_count() == 1
loopwarden.Guard
assert not {"kafka", "asyncio", "cryptography"} & set(sys.modules)
assert threading.active_count() == 1
"""


def test_importing_loads_nothing_heavy_and_starts_no_thread() -> None:
    """Agents import us at start-up, also those that never run: they must not pay for Kafka."""
    probed = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)

    assert probed.returncode == 0, probed.stderr


def test_every_public_name_can_be_used() -> None:
    """The names are loaded lazily, so a wrong home would show only when a user asks for it."""
    for name in loopwarden.__all__:
        assert getattr(loopwarden, name) is not None
    assert set(loopwarden.__all__) <= set(dir(loopwarden))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """`hasattr` and tools that probe modules rely on this exception."""
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = loopwarden.no_such_name
