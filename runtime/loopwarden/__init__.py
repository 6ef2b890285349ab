"""Loopwarden inside an agent's process: report each step, obey what the detector orders, never get in the way.

    import loopwarden

    guard = loopwarden.Guard(loopwarden.KafkaTransport("kafka:9092"), tenant="acme")
    guard.start()
    with guard.run("r-42", agent="researcher") as run:
        run.raise_if_stopped()
        ...

The names below are loaded on first use: `import loopwarden` alone costs about a millisecond, loads neither Kafka nor
msgspec and starts no thread.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Type checkers take this branch; `typing.TYPE_CHECKING` itself would cost the import of `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopwarden.approvals import Approvals
    from loopwarden.decisions import Action, Decision, LoopwardenStopped, RunKey, SpawnRefusedError
    from loopwarden.guard import Guard
    from loopwarden.nudges import Nudge
    from loopwarden.run_guard import RunGuard
    from loopwarden.safety_net import SafetyNet
    from loopwarden.tools import tool
    from loopwarden.transport import KafkaTransport, Transport
    from loopwarden_models.effects import CLOCK, POLL, READ, UNKNOWN, WRITE
    from loopwarden_models.events import Limits, Usage

__all__ = [
    "CLOCK",
    "POLL",
    "READ",
    "UNKNOWN",
    "WRITE",
    "Action",
    "Approvals",
    "Decision",
    "Guard",
    "KafkaTransport",
    "Limits",
    "LoopwardenStopped",
    "Nudge",
    "RunGuard",
    "RunKey",
    "SafetyNet",
    "SpawnRefusedError",
    "Transport",
    "Usage",
    "tool",
]

_HOMES = {
    "Action": "loopwarden.decisions",
    "Approvals": "loopwarden.approvals",
    "CLOCK": "loopwarden_models.effects",
    "Decision": "loopwarden.decisions",
    "Guard": "loopwarden.guard",
    "KafkaTransport": "loopwarden.transport",
    "Limits": "loopwarden_models.events",
    "LoopwardenStopped": "loopwarden.decisions",
    "Nudge": "loopwarden.nudges",
    "POLL": "loopwarden_models.effects",
    "READ": "loopwarden_models.effects",
    "RunGuard": "loopwarden.run_guard",
    "RunKey": "loopwarden.decisions",
    "SafetyNet": "loopwarden.safety_net",
    "SpawnRefusedError": "loopwarden.decisions",
    "Transport": "loopwarden.transport",
    "UNKNOWN": "loopwarden_models.effects",
    "Usage": "loopwarden_models.events",
    "WRITE": "loopwarden_models.effects",
    "tool": "loopwarden.tools",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
