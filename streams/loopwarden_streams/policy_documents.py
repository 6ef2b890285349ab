"""Policies as data: the documents of the topic `policies`, laid over the workers' policy file.

From the weakest to the strongest: the file, the document `*`, the document of a tenant. A document is what a policy
file holds; a tenant's is what stands below `tenants.T` in one. Documents are laid over each other value by value, and
what comes out is one policy, whose layers hold as they always do. So `tenants.acme` in the file, which speaks of one
tenant, is stronger than the top of the document `*`, which speaks of all.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from loopwarden_models.codec import TENANT_PATTERN
from loopwarden_models.errors import ConfigError
from loopwarden_models.hashes import content_hash
from loopwarden_models.policy import Policy
from loopwarden_models.policy_layers import merged

log = logging.getLogger(__name__)

EVERYONE: Final = "*"

Data = Mapping[str, Any]
Change = tuple[bytes | None, bytes | None]
"""Key and value of a record; without a value the document is deleted."""


class PolicyDocuments:
    """What is in force: the file, and the documents over it that make a policy together. Not thread-safe.

    Attributes:
        policy: In force now.
        documents: In force, by key.
        refused: By key, why its newest document is not in force; the one before it is, if there was one.
    """

    def __init__(self, base: Policy, mode: str = "policy") -> None:
        """Begin with the workers' file.

        Args:
            base: The file, or the defaults.
            mode: Overrides the mode at the top of what is composed; `policy` = does not.
        """
        self._base: dict[str, Any] = msgspec.to_builtins(base, builtin_types=(dt.date,))
        self._mode = mode
        self.policy = _with_mode(base, mode)
        self.documents: dict[str, Data] = {}
        self.refused: dict[str, str] = {}

    def compose(self, documents: Mapping[str, Data]) -> Policy:
        """Return the policy that documents make over the file.

        Raises:
            ConfigError: As `Policy.from_builtins`; a path below `tenants.T` is of the document of T, or of the file.

        Cost: about a millisecond for each pair of a tenant and an agent that has a layer.
        """
        data = merged(self._base, documents.get(EVERYONE, {}))
        tenants = data.get("tenants", {})
        if not isinstance(tenants, Mapping):
            raise ConfigError(f"policy: tenants = {tenants!r} must be a mapping from names to what differs there")
        tenants = dict(tenants)
        for key, document in documents.items():
            if key != EVERYONE:
                tenants[key] = merged(tenants.get(key, {}), document)
        data["tenants"] = tenants
        return _with_mode(Policy.from_builtins(data), self._mode)

    def apply(self, changes: Sequence[Change]) -> bool:
        """Take records in their order; returns whether the policy in force is another one.

        All at once if that makes a policy. Else one by one, and what makes none is refused, so that an invalid document
        keeps no valid one away, and leaves the one before it in force.
        """
        before = self.policy
        wanted = dict(self.documents)
        readable: list[tuple[str, Data | None]] = []
        unreadable: dict[str, ConfigError] = {}
        for key, value in changes:
            name = (key or b"").decode("utf-8", "replace")
            try:
                document = read_document(key, value)
            except ConfigError as error:
                unreadable[name] = error
                continue
            unreadable.pop(name, None)
            readable.append((name, document))
            _lay(wanted, name, document)
        try:
            self._accept(self.compose(wanted), wanted, [name for name, _ in readable])
        except ConfigError:
            self._one_by_one(readable)
        for name, fault in unreadable.items():
            self._refuse(name, fault)
        return self.policy is not before

    def _one_by_one(self, left: Sequence[tuple[str, Data | None]]) -> None:
        # Until nothing moves: a tenant's document may fit only what the document `*` says after it.
        while left:
            refused: list[tuple[str, Data | None]] = []
            for change in left:
                wanted = dict(self.documents)
                _lay(wanted, *change)
                try:
                    self._accept(self.compose(wanted), wanted, [change[0]])
                except ConfigError as error:
                    self._refuse(change[0], error)
                    refused.append(change)
                    continue
                # What was refused of this key is older.
                refused = [other for other in refused if other[0] != change[0]]
            if len(refused) == len(left):
                return
            left = refused

    def _accept(self, policy: Policy, documents: dict[str, Data], names: Sequence[str]) -> None:
        for name in names:
            self.refused.pop(name, None)
        if documents != self.documents:
            self.documents, self.policy = documents, policy

    def _refuse(self, key: str, error: ConfigError) -> None:
        if self.refused.get(key) != str(error):
            log.error("the policy document of %r is refused, the one before it stays in force: %s", key, error)
        self.refused[key] = str(error)


def read_document(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Return the document of a record, `None` if it deletes its key.

    Raises:
        ConfigError: The key is neither a tenant nor `*`, the value is no JSON object, or a tenant's document holds what
            is of all tenants.
    """
    name = (key or b"").decode("utf-8", "replace")
    if name != EVERYONE and TENANT_PATTERN.fullmatch(name) is None:
        raise ConfigError(f"policy: the key {name[:64]!r} is neither a tenant nor *")
    if value is None:
        return None
    try:
        data = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"policy of {name}: no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"policy of {name}: {data!r:.64} is no mapping; write one setting a line, as `mode: warn`")
    if name != EVERYONE and "tenants" in data:
        raise ConfigError(f"policy of {name}: tenants = ... in the document of one tenant: write it into that of *")
    return data


def write_document(document: Data) -> bytes:
    """Return the value of a record that holds `document`; days become texts."""
    return msgspec.json.encode(msgspec.to_builtins(document))


def document_version(document: Data) -> str:
    """Return the version of a document: its name for itself, `@`, and a hash of 16 hex digits over all of it."""
    data = msgspec.to_builtins(document)
    return f"{document.get('version', '')}@{content_hash(data)}"


def _lay(documents: dict[str, Data], key: str, document: Data | None) -> None:
    if document is None:
        documents.pop(key, None)
    else:
        documents[key] = document


def _with_mode(policy: Policy, mode: str) -> Policy:
    return policy if mode == "policy" else msgspec.structs.replace(policy, mode=mode)
