"""`loopwarden policy`: read, check and print policy files."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from pathlib import Path

import msgspec
import yaml

from loopwarden_models.errors import ConfigError
from loopwarden_models.policy import DEFAULT_POLICY, Policy


class _Loader(yaml.SafeLoader):
    """YAML 1.2 in one point: `off`, `on`, `yes` and `no` are texts. `mode: off` must not become `false`."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$", re.IGNORECASE), list("tTfF"))


def load_policy(path: str | Path | None) -> Policy:
    """Return the policy of a YAML file laid over the defaults, or the default policy for `None`.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or names what does not exist or cannot be; the message
            says where.
    """
    if path is None:
        return DEFAULT_POLICY
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise ConfigError(f"policy file {str(path)!r}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"policy file {str(path)!r} is not YAML: {' '.join(str(error).split())}") from None
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"policy file {str(path)!r}: expected a mapping at the top, got {type(data).__name__}")
    return Policy.from_builtins(data)


def to_yaml(policy: Policy) -> str:
    """Return `policy` as YAML that `load_policy` reads back to an equal policy."""
    data = msgspec.to_builtins(policy, builtin_types=(dt.date,))
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden policy`."""
    parser.add_argument("file", nargs="?", help="policy file to check; without it the default policy is printed")
    parser.add_argument("--tenant", default="", help="show what is in force for this tenant")
    parser.add_argument("--agent", default="", help="... for this agent")
    parser.add_argument("--tool", default="", help="... and for calls of this tool")


def run(args: argparse.Namespace) -> int:
    """Print a policy: the defaults, a checked file laid over them, or what is in force in one place of its layers."""
    policy = load_policy(args.file)
    if args.tenant or args.agent or args.tool:
        policy = policy.of(args.tenant, args.agent).for_tool(args.tool)
    print(to_yaml(policy), end="")
    return 0
