"""What a runtime remembers so that no command is obeyed twice, late, or from a writer that was replaced."""

from __future__ import annotations

from collections import OrderedDict

OPERATOR = "operator"
DETECTOR = "detector"
WRITERS = frozenset({OPERATOR, DETECTOR})

# At least the commands of the topic's retention; 10,000 ids are about 2 MB (control-plane 4).
MAX_APPLIED = 10_000
MAX_VERSIONS = 50_000

Version = tuple[int, int]


class Fences:
    """Newest epochs, newest versions and applied ids. For one thread at a time."""

    def __init__(self, *, max_applied: int = MAX_APPLIED, max_versions: int = MAX_VERSIONS) -> None:
        self._max_applied = max_applied
        self._max_versions = max_versions
        self._epochs: dict[int, int] = {}
        self._newest: OrderedDict[tuple[str, str], Version] = OrderedDict()
        self._applied: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def announce(self, steps_partition: int, epoch: int) -> None:
        """Take note of a partition's new owner. An older announcement changes nothing."""
        self._epochs[steps_partition] = max(epoch, self._epochs.get(steps_partition, 0))

    def is_fenced(self, writer: str, steps_partition: int | None, epoch: int) -> bool:
        """Return whether a newer owner of the partition has announced itself.

        A person's command is not of any owner: operators count in epochs of their own.
        """
        if writer == OPERATOR or steps_partition is None:
            return False
        return epoch < self._epochs.get(steps_partition, 0)

    def is_old(self, run_id: str, writer: str, version: Version) -> bool:
        """Return whether this writer has said something newer about the run; else remember this as the newest.

        Equal is not older: one event may cause two commands, and a command may be sent again.
        """
        key = (run_id, writer)
        newest = self._newest.get(key)
        if newest is not None and version < newest:
            return True
        self._newest[key] = version
        self._newest.move_to_end(key)
        if len(self._newest) > self._max_versions:
            self._newest.popitem(last=False)
        return False

    def was_applied(self, command_id: str, run_id: str, incarnation: str) -> bool:
        """Return whether this incarnation of the run has had the command. A tree's command is applied once per run."""
        return (command_id, run_id, incarnation) in self._applied

    def applied(self, command_id: str, run_id: str, incarnation: str) -> None:
        """Remember that the command was applied."""
        self._applied[command_id, run_id, incarnation] = None
        if len(self._applied) > self._max_applied:
            self._applied.popitem(last=False)
