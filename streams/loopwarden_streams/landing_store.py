"""Where recovery lands: the newest snapshot of each run tree, by partition.

The table that uses this store is a changelog with a landing place. Checkpoints write the changelog with producer
batches and never touch the store; recovery fills it, and it is never cleared by us: for a partition that a worker
keeps, recovery reads only the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import faust
from faust.stores import STORES
from faust.stores.memory import Store
from faust.types import TP, EventT

from loopwarden_streams.snapshots import epoch_of
from loopwarden_streams.transport import Batch, Record

# Not without a host: a URL of a scheme alone is false, and Faust would take the default store.
STORE_URL = "loopwarden-memory://runs"


class LandingStore(Store[bytes, bytes]):
    """Snapshots by partition and key, filled from batches of changelog records.

    A record of a lower epoch than the highest seen in its partition is ignored: it was written by a former owner
    that did not know yet.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.by_partition: dict[int, dict[bytes, bytes]] = {}
        self.epochs: dict[int, int] = {}
        self.ignored = 0

    def apply_changelog_batch(
        self,
        batch: Iterable[EventT[Any]],
        to_key: Callable[[Any], Any],  # noqa: ARG002 - keys and values are our own bytes
        to_value: Callable[[Any], Any],  # noqa: ARG002
    ) -> None:
        """Apply recovery's events, each of them a `Batch` of changelog records."""
        for event in batch:
            records = event.message.value
            if not isinstance(records, Batch):
                raise TypeError(f"the snapshot changelog was delivered record by record, not in batches: {records!r}")
            self._apply(event.message.partition, records)

    def _apply(self, partition: int, records: Iterable[Record]) -> None:
        snapshots = self.by_partition.setdefault(partition, {})
        newest = self.epochs.get(partition, -1)
        for record in records:
            key, value = record.key, record.value
            if key is None:
                continue
            if value is None:
                snapshots.pop(key, None)
                continue
            epoch = epoch_of(value)
            if epoch < newest:
                self.ignored += 1
                continue
            newest = epoch
            snapshots[key] = value
        self.epochs[partition] = newest

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:  # noqa: ARG002 - there are no standbys
        """Forget the partitions that this worker does not own any more."""
        owned = {tp.partition for tp in active_tps}
        for partition in [number for number in self.by_partition if number not in owned]:
            del self.by_partition[partition]
            self.epochs.pop(partition, None)


def register() -> None:
    """Make the store known to Faust; stores have no setter."""
    STORES.aliases["loopwarden-memory"] = f"{LandingStore.__module__}:{LandingStore.__qualname__}"


def store_of(table: faust.Table[bytes, bytes]) -> LandingStore:
    """Return the landing store of `table`.

    Raises:
        TypeError: The table was declared with another store.
    """
    store = table.data
    if not isinstance(store, LandingStore):
        raise TypeError(f"table {table.name!r} uses {type(store).__name__}, not {LandingStore.__name__}")
    return store
