"""`loopwarden worker`: run the detector until a signal or a failure."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from aiokafka.errors import KafkaError

from loopwarden_models.errors import TransportError
from loopwarden_models.policy import Policy
from loopwarden_models.policy_version import stamp
from loopwarden_streams.detector import Detector
from loopwarden_streams.health import HealthServer
from loopwarden_streams.logs import configure_logs
from loopwarden_streams.policy_file import load_policy
from loopwarden_streams.settings import Settings, add_settings_arguments

log = logging.getLogger(__name__)

# sysexits.h EX_SOFTWARE: not a wrong setting, so an orchestrator should start the worker again.
EXIT_STATE_LOST: Final = 70
STOP_TIMEOUT_S = 25.0
SWITCH_INTERVAL_S = 0.0005

# mallopt(3). A fetch is megabytes; given back to the system after each, its pages are cleared again for the next.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_FREE_BYTES = 64 * 2**20
MAX_HEAP_BLOCK_BYTES = 32 * 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden worker`: a flag for each setting."""
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run one worker. Returns 0 after a clean stop, 70 if its state could not be trusted any more."""
    settings = Settings.from_args(args)
    policy = load_policy(settings.policy or None)
    configure_logs(settings.log_level, settings.log_format)
    # The thread that fetches needs the interpreter for moments only, and waits this long for each of them: with the
    # default of 5 ms it starves while a backlog is judged (measured: a fifth of the rate).
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Most objects of a worker live long or die at once: fewer, larger young collections (measured: a tenth less CPU).
    gc.set_threshold(50_000, 20, 50)
    _keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="loopwarden-") as data_dir, asyncio.Runner() as runner:
        status = runner.run(_serve(settings, policy, Path(data_dir)))
        # All that is to be saved is. Faust's threads may still hold on to connections, and tasks of the client that
        # look for a broker do not let themselves be cancelled: an orderly end of the interpreter would wait for them.
        shutil.rmtree(data_dir, ignore_errors=True)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _keep_freed_memory() -> None:
    """Let the C library keep what fetches free, where it is glibc (measured: a tenth of the rate)."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, MAX_HEAP_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


async def _serve(settings: Settings, policy: Policy, data_dir: Path) -> int:
    detector = Detector(settings, policy, data_dir)
    health = HealthServer(detector)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    await health.start()
    mode = detector.rules.policy.mode
    log.info(
        "worker %s of %s starts: mode %s, policy %s, health on %s:%d",
        settings.instance_id(),
        settings.app_id,
        mode,
        stamp(detector.rules.policy, ""),
        settings.host,
        health.port,
    )
    if mode != "enforce":
        log.warning("mode %s: kills are recorded, not sent; LOOPWARDEN_MODE=enforce sends them", mode)
    signalled = asyncio.ensure_future(stopping.wait())
    starting = asyncio.ensure_future(detector.start())
    waiting: list[asyncio.Future[Any]] = [signalled, detector.failed, starting]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            starting.result()
        else:
            # A signal, or a failure, while it recovers: that may take long, and an orchestrator does not wait.
            starting.cancel()
    except (KafkaError, OSError, TransportError) as error:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(detector.stop(save=False), STOP_TIMEOUT_S)
        await health.stop()
        reason = error if isinstance(error, TransportError) else repr(error)
        raise TransportError(f"cannot start on brokers {settings.brokers}: {reason}") from error
    ended = asyncio.ensure_future(detector.app.wait_until_stopped())
    waiting = [signalled, detector.failed, ended]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.is_set() and not detector.failed.done():
        detector.fail(detector.app.crash_reason or RuntimeError("Faust stopped by itself"))
    failed = detector.failed.done()
    log.info("worker stops%s", " without saving: its state cannot be trusted" if failed else "")
    try:
        await asyncio.wait_for(detector.stop(save=not failed), STOP_TIMEOUT_S)
    except TimeoutError:
        log.error("not stopped within %.0f s; what was not saved is replayed", STOP_TIMEOUT_S)  # noqa: TRY400 - the trace would be of the timer
        failed = True
    except (Exception, asyncio.CancelledError):
        # Whatever could not be closed because the broker is away, clients of it that cancel themselves included: the
        # process ends all the same.
        log.exception("not stopped in order; what was not saved is replayed")
        failed = True
    await health.stop()
    return EXIT_STATE_LOST if failed else 0
