"""Policy files: YAML to policies and documents, and back."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    return DEFAULT_POLICY if path is None else Policy.from_builtins(read_yaml(path))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return what a policy file says, unchecked; nothing for an empty one. `-` is the standard input.

    Raises:
        ConfigError: It cannot be read, is no YAML, or no mapping.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else Path(path).read_text(encoding="utf-8")
        data = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise ConfigError(f"policy file {str(path)!r}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"policy file {str(path)!r} is not YAML: {' '.join(str(error).split())}") from None
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"policy file {str(path)!r}: expected a mapping at the top, got {type(data).__name__}")
    return data or {}


def to_yaml(policy: Policy) -> str:
    """Return `policy` as YAML that `load_policy` reads back to an equal policy."""
    return document_to_yaml(msgspec.to_builtins(policy, builtin_types=(dt.date,)))


def document_to_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML that `read_yaml` reads back, in the order in which it is written."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
