"""The embedded broker of the product behind the interface of the test brokers, for machines without Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests._support.broker import Broker

from loopwarden_streams.embedded_broker import EmbeddedBroker

if TYPE_CHECKING:
    from pathlib import Path


class EmbeddedKafka(Broker):
    """See `EmbeddedBroker` for what must not be concluded from it: durability and fail-over, above all."""

    def __init__(self, data_dir: Path | None = None) -> None:
        super().__init__(data_dir)
        self._broker = EmbeddedBroker(data_dir=self.data_dir)

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def pid(self) -> int:
        return self._broker.pid

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.kill()
