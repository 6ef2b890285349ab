"""`loopwarden`: the command line. Imports nothing heavy until a command is chosen."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from loopwarden_models.errors import ConfigError, LoopwardenError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

# Command, module that holds it, extra that it needs, one line of help. A module has `add_arguments(parser)` and
# `run(args) -> int`.
COMMANDS: Final = (
    ("worker", "loopwarden_streams.worker", "service", "run the detector: read steps, publish verdicts and commands"),
    ("topics", "loopwarden_streams.topics", "service", "create the Kafka topics, or check the ones that are there"),
    ("replay", "loopwarden_streams.replay", "service", "judge recorded steps offline and show every verdict"),
    ("eval", "loopwarden_streams.evaluate", "service", "judge cases and labelled runs, and count what is right"),
    ("backtest", "loopwarden_streams.backtest", "service", "what another policy would have said of recorded steps"),
    ("calibrate", "loopwarden_streams.calibrate", "service", "propose limits from recorded runs that went well"),
    ("demo", "loopwarden_streams.demo", "service,demo", "watch a small fleet being guarded; needs nothing but Python"),
    ("runs", "loopwarden_streams.runs_command", "service", "who runs, what it costs, what was said, what binds it"),
    ("run", "loopwarden_streams.run_command", "service", "look at one run, kill it, let it wait, or release it"),
    ("approvals", "loopwarden_streams.approvals_command", "service", "what people are asked: list, show, answer"),
    ("enforcement", "loopwarden_streams.enforcement_command", "service", "the big switch: status, on, off"),
    ("breakers", "loopwarden_streams.breakers_command", "service", "list the breakers of tools, and hold or free them"),
    ("policy", "loopwarden_streams.policy_command", "service", "policy files, and the policies that workers follow"),
    ("keys", "loopwarden_streams.keys", "signing", "make, list and try the keys that commands are signed with"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong usage or a missing extra."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="loopwarden", description="Stops runaway LLM agents: that run, or that tool, and nothing else."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Only the chosen command's module is imported; `--help` of the whole lists them all without importing any.
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, module_name, extra, text in COMMANDS:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name != chosen:
            continue
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.split(".")[0].startswith("loopwarden"):
                raise
            print(
                f"loopwarden {name} needs {error.name!r}, which is not installed: pip install 'loopwarden[{extra}]'",
                file=sys.stderr,
            )
            return EXIT_USAGE
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        return int(args.run(args))
    except ConfigError as error:
        print(f"loopwarden {args.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except LoopwardenError as error:
        print(f"loopwarden {args.command}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _version() -> str:
    from loopwarden import __version__  # noqa: PLC0415 - the command line starts without the runtime

    return f"loopwarden {__version__}"


if __name__ == "__main__":
    raise SystemExit(main())
