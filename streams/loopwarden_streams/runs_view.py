"""What the topics know of the runs of a fleet: read once to the end, then followed. Joins no group, writes nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiokafka import ConsumerRecord

from loopwarden_models.codec import decode_said
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.app import changelog_name
from loopwarden_streams.run_rows import RunRow, RunTable, Sayings, rows
from loopwarden_streams.settings import Settings
from loopwarden_streams.standing_orders import StandingOrders
from loopwarden_streams.topic_tail import TopicTail, tail


class RunsView:
    """Snapshots, states and verdicts side by side. One event loop owns it."""

    def __init__(self, settings: Settings, reader: TopicTail) -> None:
        self._settings = settings
        self._reader = reader
        self.table = RunTable()
        self.standing = StandingOrders()
        self._sayings = Sayings()

    async def catch_up(self) -> None:
        """Read to where the topics end now.

        Raises:
            TransportError: The brokers cannot be reached.
        """
        self._take(await self._reader.to_end())

    async def follow(self, timeout_s: float) -> bool:
        """Take what comes within `timeout_s`; returns whether anything did.

        Raises:
            TransportError: The brokers cannot be reached.
        """
        until = time.monotonic() + timeout_s
        is_news = False
        while (left_s := until - time.monotonic()) > 0:
            records = await self._reader.next(left_s)
            self._take(records)
            is_news = is_news or bool(records)
        return is_news

    def rows(self, tenant: str = "") -> Iterator[RunRow]:
        """Yield a row for each run, of one tenant or of all."""
        for tree in self.table.trees(tenant):
            yield from rows(tree, self.standing, self._sayings)

    def _take(self, records: list[ConsumerRecord[bytes, bytes]]) -> None:
        changelog, state = changelog_name(self._settings), self._settings.topic("control.state")
        for record in records:
            if record.topic == changelog:
                self.table.put(record)
            elif record.topic == state:
                self.standing.put(record.key, record.value, record.timestamp)
            else:
                try:
                    said = decode_said(record.value)
                except InvalidEvent:
                    continue  # not ours; the snapshot still says how bad it is
                if isinstance(said, Verdict):
                    self._sayings.put(said)


@asynccontextmanager
async def runs_view(settings: Settings, *, verdicts_since_ms: int | None) -> AsyncIterator[RunsView]:
    """Open a view that has read everything.

    Args:
        settings: How to reach the brokers, and names.
        verdicts_since_ms: Where verdicts begin, Unix milliseconds; `None` = they are not read.

    Raises:
        ConfigError: A topic does not exist.
        TransportError: The brokers cannot be reached.
    """
    starts: dict[str, int | str] = {changelog_name(settings): "beginning", settings.topic("control.state"): "beginning"}
    if verdicts_since_ms is not None:
        starts[settings.topic("verdicts")] = verdicts_since_ms
    async with tail(settings, starts) as reader:  # type: ignore[arg-type]  # mypy widens the literals of the dict
        view = RunsView(settings, reader)
        await view.catch_up()
        yield view
