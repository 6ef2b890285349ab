"""Cases: short sequences of steps with the right verdict. Reads their files and expands them to step events.

A case file is YAML. `events` are step events in short form: `repeat` expands its events, `{i}` is the number of the
innermost repeat from 1, `{i0}` from 0, `{a..z}` cycles letters, `{hex}` is 32 digits that no other position has. What a
case leaves out is filled in: version, tenant, run, incarnation, `seq`, time (2 s later than the event before), call
ids, effects from `tools`, outcome `ok`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import yaml
from msgspec import Meta, Struct

from loopwarden_models.codec import decode_step
from loopwarden_models.errors import ConfigError, InvalidEvent
from loopwarden_models.events import STEP_TYPES, AnyStep
from loopwarden_models.patterns import LevelName
from loopwarden_models.policy import Policy
from loopwarden_streams.evaluate_policy import laid_over
from loopwarden_streams.evaluate_problems import BadFileError, Problem

START_MS: Final = 1_800_000_000_000
# A case is meant to be read; a slip such as `repeat: 1000000000` must not fill the memory.
MAX_EVENTS: Final = 100_000
_MAX_DEPTH: Final = 20
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_STEP_MS: Final = 2_000
_TYPES: Final = tuple(str(kind.__struct_config__.tag) for kind in STEP_TYPES)
_EFFECTS: Final = ("read", "write", "poll", "clock", "unknown")
# libyaml is ten times as fast, where it was built in.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

EventNumber = Annotated[int, Meta(ge=1)]


class Target(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whose verdicts `min_level` is about; `max_level` then holds for all others."""

    run_id: str | None = None
    tenant: str | None = None


class Expect(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The verdict that would have been right. Events are numbered from 1, after expansion."""

    max_level: LevelName | None = None
    min_level: LevelName | None = None
    by_event: EventNumber | None = None
    kill_by_event: EventNumber | None = None
    pattern: str | None = None
    target: Target | None = None
    note: str | None = None


class _CaseFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The top of a case file. `source`, `title` and `why` are for people."""

    id: str
    kind: str
    events: list[dict[Any, Any]]
    expect: Expect
    tools: dict[str, str] = {}
    policy: dict[str, Any] = {}
    title: str = ""
    source: Any = None
    why: Any = None


class Case(Struct, frozen=True):
    """One case file, expanded.

    Attributes:
        name: Its `id`. `kind`: what sort of mistake it guards against. `title`: one line for people.
        expected: The right verdict.
        steps: Its events, decoded as from the wire.
        overrides: What it lays over the policy.
        problems: What is odd about the file without keeping it from being judged.
    """

    name: str
    kind: str
    title: str
    expected: Expect
    steps: list[AnyStep]
    overrides: dict[str, Any] = {}
    problems: list[Problem] = []

    @property
    def expect(self) -> dict[str, Any]:
        """The right verdict as the file has it."""
        told: dict[str, Any] = msgspec.to_builtins(self.expected)
        return told

    def policy(self, base: Policy) -> Policy:
        """Return `base` with what the case lays over it.

        Raises:
            ConfigError: The case names a setting that does not exist, or one that cannot be.
        """
        return laid_over(base, self.overrides)


class _Short(NamedTuple):
    """An event as the file has it: its place there, and the number of the lap."""

    event: dict[Any, Any]
    lap: int
    place: str


def find_cases(paths: list[str]) -> list[Path]:
    """Return the case files that `paths` name: a folder stands for its `*.yaml` and `*.yml`, sorted by name.

    Raises:
        ConfigError: A path does not exist, or is a folder without a case.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix in {".yaml", ".yml"})
            if not inside:
                raise ConfigError(f"folder {str(path)!r} holds no *.yaml: give the folder with the case files")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ConfigError(f"no such file or folder: {str(path)!r}")
    return list(dict.fromkeys(found))


def load(path: Path) -> Case:
    """Read a case file and expand it.

    Raises:
        BadFileError: It is no case; the problem says where and what to do.

    Cost: about 1 ms, most of it YAML.
    """
    data = _read(path)
    problems = [
        Problem(file=str(path), place=str(key), text=f"not a key of a case; known: {_known_keys()}")
        for key in data
        if key not in _CaseFile.__struct_fields__
    ]
    try:
        file = msgspec.convert({key: data[key] for key in data if key in _CaseFile.__struct_fields__}, _CaseFile)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise BadFileError(path, place.rstrip("`"), f"{text}; see docs/eval.md for the format") from None
    try:
        steps = list(_steps(file, path))
    except RecursionError:
        raise BadFileError(path, "events", "nested without end: remove the YAML alias that holds itself") from None
    problems += _oddities(file, path, len(steps))
    overrides = {name: value for name, value in file.policy.items() if name != "attended"}
    case = Case(file.id, file.kind, file.title, file.expect, steps, _modes_as_texts(overrides), problems)
    try:
        case.policy(Policy())
    except ConfigError as error:
        raise BadFileError(path, "policy", f"{error}; `loopwarden policy show` prints what can be set") from None
    return case


def expand(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a case's step events with every field that the case leaves out.

    Raises:
        BadFileError: The events cannot be expanded; the problem names no file.
    """
    file = msgspec.convert({"expect": {}} | case, _CaseFile)
    yield from (event for event, _ in _expanded(file, ""))


def _read(path: Path) -> dict[Any, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe loader
    except OSError as error:
        raise BadFileError(path, "", f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadFileError(path, f"byte {error.start}", "not UTF-8: save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise BadFileError(path, place, f"not YAML: {error.problem}; quote texts with : or {{}}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadFileError(path, "", f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise BadFileError(path, "", f"expected a mapping with {_known_keys()}, got {type(data).__name__}")
    return data


def _known_keys() -> str:
    return ", ".join(_CaseFile.__struct_fields__)


def _oddities(file: _CaseFile, path: Path, events: int) -> Iterator[Problem]:
    expect = file.expect
    if file.id != path.stem:
        yield Problem(file=str(path), place="id", text=f"{file.id!r} is not the name of the file: rename one of them")
    if expect.max_level is None and expect.min_level is None and expect.kill_by_event is None:
        text = "nothing is expected, so everything is right: give max_level or min_level"
        yield Problem(file=str(path), place="expect", text=text)
    for name in ("by_event", "kill_by_event"):
        number = getattr(expect, name)
        if number is not None and number > events:
            text = f"{number} is after the last event: give one of 1 to {events}"
            yield Problem(file=str(path), place=f"expect.{name}", text=text)


def _steps(file: _CaseFile, path: Path) -> Iterator[AnyStep]:
    for number, (event, place) in enumerate(_expanded(file, path), 1):
        at = f"event {number} ({place})"
        try:
            step = decode_step(json.dumps(event).encode())
        except InvalidEvent as error:
            field = f"{error.field}: " if error.field else ""
            raise BadFileError(path, at, f"{field}{error.detail}; see docs/contract.md for its fields") from None
        except (TypeError, ValueError) as error:
            raise BadFileError(path, at, f"{error}: quote what YAML takes for a date") from None
        if step is None:
            raise BadFileError(path, at, f"type {event['type']!r} is not one of {', '.join(_TYPES)}")
        yield step


def _expanded(file: _CaseFile, path: Path | str) -> Iterator[tuple[dict[str, Any], str]]:
    for tool, effect in file.tools.items():
        if effect not in _EFFECTS:
            raise BadFileError(path, f"tools.{tool}", f"{effect!r} is not one of {', '.join(_EFFECTS)}")
    attended = file.policy.get("attended")
    if attended is not None and not isinstance(attended, bool):
        raise BadFileError(path, "policy.attended", f"{attended!r} is not true or false")
    seqs: dict[str, int] = {}
    open_calls: dict[tuple[str, str], str] = {}
    now_ms = START_MS
    calls = 0
    for position, (short, lap, place) in enumerate(_flatten(file.events, 1, "events", path)):
        if position >= MAX_EVENTS:
            raise BadFileError(path, place, f"more than {MAX_EVENTS:,} events: lower a `repeat`")
        if odd := _odd_keys(short):
            raise BadFileError(path, place, f"key {odd[0]!r} is not a text: quote yes, no, on, off and numbers")
        event = _filled(short, lap, position)
        if not isinstance(event.get("type"), str):
            raise BadFileError(path, place, f"an event needs a type, one of {', '.join(_TYPES)}, or a repeat")
        try:
            now_ms = int(event.pop("ts_ms", now_ms + int(event.pop("dt_ms", _STEP_MS))))
        except (TypeError, ValueError):
            raise BadFileError(path, place, "ts_ms and dt_ms are whole milliseconds") from None
        run_id = event.setdefault("run_id", "r1")
        seqs[run_id] = seqs.get(run_id, -1) + 1
        event = {"v": 1, "tenant": "acme", "root_run_id": run_id, "incarnation": "a", "seq": seqs[run_id]} | event
        event["ts_ms"] = now_ms
        if event["type"] == "run_start" and attended is not None:
            event.setdefault("attended", attended)
        if event["type"] in ("tool_start", "tool_end"):
            tool = str(event.get("tool"))  # a call without one is refused when it is decoded
            event.setdefault("effect", file.tools.get(tool, "unknown"))
            if "call_id" not in event:
                if event["type"] == "tool_end" and (run_id, tool) in open_calls:
                    event["call_id"] = open_calls.pop((run_id, tool))
                else:
                    calls += 1
                    event["call_id"] = f"c{calls}"
                    if event["type"] == "tool_start":
                        open_calls[run_id, tool] = event["call_id"]
        if event["type"] == "tool_end":
            event.setdefault("outcome", "ok")
        yield event, place


def _flatten(events: list[dict[Any, Any]], lap: int, place: str, path: Path | str, depth: int = 0) -> Iterator[_Short]:
    if depth > _MAX_DEPTH:
        raise BadFileError(path, place, f"more than {_MAX_DEPTH} repeats in one another: flatten them")
    for at, event in enumerate(events):
        here = f"{place}[{at}]"
        if not isinstance(event, dict):
            raise BadFileError(path, here, f"{event!r} is no mapping: an event is {{type: ..., ...}}")
        if "repeat" not in event:
            yield _Short(event, lap, here)
            continue
        times, inner = event["repeat"], event.get("events")
        if type(times) is not int or times < 0:
            raise BadFileError(path, here, f"repeat: {times!r} is not a number of times")
        if not isinstance(inner, list) or not inner:
            raise BadFileError(path, here, "a repeat needs a list of `events` below it")
        for number in range(1, times + 1):
            yield from _flatten(inner, number, f"{here}.events", path, depth + 1)


def _filled(value: Any, lap: int, position: int) -> Any:
    if isinstance(value, str):
        if "{" not in value:
            return value
        nonce = blake2b(f"{position}:{value}".encode(), digest_size=16).hexdigest()
        filled = value.replace("{i0}", str(lap - 1)).replace("{i}", str(lap))
        return filled.replace("{a..z}", _LETTERS[(lap - 1) % len(_LETTERS)]).replace("{hex}", nonce)
    if isinstance(value, dict):
        return {_filled(key, lap, position): _filled(inner, lap, position) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, lap, position) for inner in value]
    return value


def _odd_keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        return odd + [key for inner in value.values() for key in _odd_keys(inner)]
    return [key for inner in value for key in _odd_keys(inner)] if isinstance(value, list) else []


def _modes_as_texts(settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` with a bare `off`, which YAML 1.1 reads as false, as the mode that was meant."""
    return {
        name: _modes_as_texts(value)
        if isinstance(value, dict)
        else "off"
        if name == "mode" and value is False
        else value
        for name, value in settings.items()
    }
