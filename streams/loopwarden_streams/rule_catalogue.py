"""Every rule with what the code says of it: its class, its thresholds with their sources, its nudge, its pattern.

Nothing is listed by hand. A rule is whatever has a part of its own in the policy; what it says of itself stands in the
classes of `loopwarden_detectors` that bear its `name`, or in the module that bears it as `NAME`. Whoever adds a rule
adds it here by that alone.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

import loopwarden_detectors
from loopwarden.nudge_texts import TEMPLATES
from loopwarden.nudges import render
from loopwarden_detectors import base
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_models.commands import Command, Reason
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.policy_layers import NOT_OF_AGENTS, NOT_OF_TOOLS
from loopwarden_models.rule_config import RuleConfig

_EXAMPLE_TOOL: Final = "search"
# Lines of a docstring that answer a question of their own.
_LABELS: Final = ("Levels", "State", "Cost")
_SIGN: Final = re.compile(r"^(?P<name>[A-Z_]+): Final = [\d_]+  # (?P<text>.+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s+# (?P<text>.*)$")
_FIELD: Final = re.compile(r"^    (?P<name>\w+): ")
_PART: Final = re.compile(r"^        (?P<name>\w+)=")


class Threshold(Struct, frozen=True):
    """One value of the policy: its path, its default, and why it is that."""

    path: str
    value: Any
    why: str


class Rule(Struct, frozen=True, kw_only=True):
    """One rule.

    Attributes:
        name: As in verdicts and in the policy.
        pattern: Public name of what it finds, `""` if no class says so.
        text: What it looks at, in one sentence: the docstring of its configuration.
        paragraphs: The docstring of its class.
        labels: What that says of `Levels`, `State` and `Cost`.
        looks_at: Signs of calls and types of steps that it waits for.
        thresholds: In the order of the policy.
        advice: The text of its nudge, as for a tool of that name; `None` if it has none.
        is_per_tool: The policy may have it otherwise for one tool. `is_per_agent`: ... for one agent.
    """

    name: str
    pattern: str
    text: str
    paragraphs: list[str]
    labels: dict[str, str]
    looks_at: list[str]
    thresholds: list[Threshold]
    advice: str | None
    is_per_tool: bool
    is_per_agent: bool


class _Source(Struct, frozen=True):
    """What describes a rule: a class, or a module. Its docstring, and its names by value."""

    doc: str
    names: Mapping[str, Any]
    pattern: str


def rules() -> list[Rule]:
    """Return all rules, in the order of the catalogue.

    Cost: reads the source of the detectors, a tenth of a second.
    """
    parts = [name for name in DEFAULT_POLICY.__struct_fields__ if isinstance(_config(name), RuleConfig)]
    sources = _sources()
    ordered = [*(name for name in RULES if name in parts), *(name for name in parts if name not in RULES)]
    return [_rule(name, sources.get(name, [])) for name in ordered]


def _config(name: str) -> Any:
    return getattr(DEFAULT_POLICY, name)


def _sources() -> Mapping[str, list[_Source]]:
    """Return what describes each rule by its name, what has most to say first."""
    found: dict[str, list[_Source]] = {}
    for module_info in pkgutil.iter_modules(loopwarden_detectors.__path__):
        module = importlib.import_module(f"{loopwarden_detectors.__name__}.{module_info.name}")
        for kind in vars(module).values():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                continue
            name = vars(kind).get("name")
            if isinstance(name, str):
                found.setdefault(name, []).append(_Source(kind.__doc__ or "", vars(kind), vars(kind)["pattern"]))
        name = vars(module).get("NAME")
        if isinstance(name, str) and vars(module)["__name__"].endswith(f".{name}"):
            doc = "\n\n".join((inspect.getdoc(module) or "", _without_sections(inspect.getdoc(module.observe) or "")))
            found.setdefault(name, []).append(_Source(doc, {}, vars(module)["PATTERN"]))
    return {name: sorted(sources, key=lambda source: -len(source.doc)) for name, sources in found.items()}


def _rule(name: str, sources: list[_Source]) -> Rule:
    config = _config(name)
    doc = inspect.cleandoc(sources[0].doc) if sources else ""
    paragraphs, labels = _split(doc)
    looks_at = [*dict.fromkeys(text for source in sources for text in _looks_at(source.names))]
    # A rule about calls is asked with the policy of the call's tool.
    is_of_tools = name in NOT_OF_AGENTS or (bool(sources) and all("signs" in source.names for source in sources))
    nudge = f"nudge.{name}"
    return Rule(
        name=name,
        pattern=sources[0].pattern if sources else "",
        text=re.sub(rf"\s*\(`{name}`\)", "", inspect.cleandoc(type(config).__doc__ or "").split("\n\n", maxsplit=1)[0]),
        paragraphs=paragraphs,
        labels=labels,
        looks_at=looks_at,
        thresholds=list(_thresholds(name, config)),
        advice=_example(nudge, name, config) if nudge in TEMPLATES else None,
        is_per_tool=is_of_tools and name not in NOT_OF_TOOLS,
        is_per_agent=name not in NOT_OF_AGENTS,
    )


def _without_sections(doc: str) -> str:
    """Return a function's docstring without its first line, and without what its arguments and results are."""
    blocks = doc.split("\n\n")[1:]
    return "\n\n".join(block for block in blocks if not block.startswith(("Args:", "Returns:", "Raises:")))


def _split(doc: str) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs of a docstring, and apart from them what stands behind its labels."""
    paragraphs, labels = [], {}
    label = ""
    for block in doc.split("\n\n"):
        lines: list[str] = []
        label = ""
        for line in block.splitlines():
            word, colon, rest = line.partition(": ")
            if colon and word in _LABELS:
                label = word
                labels[label] = rest
            elif label:
                labels[label] += f" {line.strip()}"
            else:
                lines.append(line)
        if lines:
            paragraphs.append("\n".join(lines))
    return paragraphs, labels


def _looks_at(kind: Mapping[str, Any]) -> Iterator[str]:
    signs = kind.get("signs", 0)
    for match in _SIGN.finditer(inspect.getsource(base)):
        value = getattr(base, match["name"])
        if isinstance(value, int) and value & signs and match["name"] != "ANY_SIGN":
            yield f"calls: {match['text']}"
    for step in kind.get("kinds", ()):
        yield f"steps of type `{step.__struct_config__.tag}`"
    if "tick" in kind:
        yield "ticks: time that passes without an event"
    if kind and "kinds" not in kind and "signs" not in kind and "tick" not in kind:
        yield "counters of the run's tree, after every step that changes one"


def _thresholds(name: str, config: Any) -> Iterator[Threshold]:
    why = _comments(type(config))
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if field.name in ("mode", "until"):
            continue
        if isinstance(value, Struct):
            for inner in value.__struct_fields__:
                path = f"{field.name}.{inner}"
                yield Threshold(f"{name}.{path}", getattr(value, inner), why.get(path, "declared by the run"))
        else:
            yield Threshold(f"{name}.{field.name}", value, why.get(field.name, ""))


def _comments(config: type) -> dict[str, str]:
    """Return the comment above each field of a configuration, and above each value that a field's default names."""
    found: dict[str, str] = {}
    pending: list[str] = []
    field = ""
    for line in inspect.getsource(config).splitlines():
        if match := _COMMENT.match(line):
            pending.append(match["text"])
            continue
        if match := _FIELD.match(line):
            field = match["name"]
            name = field
        elif match := _PART.match(line):
            name = f"{field}.{match['name']}"
        else:
            name = ""
        if name and pending:
            found[name] = " ".join(pending)
        pending = []
    return found


def _example(message_id: str, name: str, config: Any) -> str | None:
    count = next((value for at in ("nudge", "break_at") if isinstance(value := getattr(config, at, None), int)), 3)
    reason = Reason(pattern="", detector=name, count=count, window_ms=60_000, tool=_EXAMPLE_TOOL)
    order = Command(
        v=1,
        command_id="example",
        type="nudge",
        tenant="example",
        run_id="example",
        issued_at_ms=0,
        expires_at_ms=0,
        epoch=0,
        seq=0,
        reason=reason,
        message_id=message_id,
    )
    return render(order)
