"""The models of texts in a worker: loaded beside its start, looked after, told of in metrics."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

from loopwarden_streams.meaning import TwoModels, at_hand
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.settings import Settings

if TYPE_CHECKING:
    from loopwarden_streams.confirmer import Confirmer
    from loopwarden_streams.static_meaning import StaticMeaning


class ModelWatch:
    """Loads the models of a worker, and keeps the second one's process alive.

    Attributes:
        meaning: What the rules ask; `None` while nothing is loaded, or where there is nothing to load.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Prepare; nothing is loaded yet."""
        self.meaning: StaticMeaning | TwoModels | None = None
        self._settings = settings
        self._metrics = metrics
        self._texts = 0
        metrics.set_model("static", False)
        metrics.set_model("confirm", False)

    async def load(self) -> None:
        """Load the models in a thread: a worker judges by all other rules meanwhile. Raises nothing."""
        settings = self._settings
        if settings.semantic_model:
            loaded = await asyncio.to_thread(at_hand, settings.semantic_model, settings.semantic_confirm_model)
            # A library of half a million objects that live as long as the process: no collection need look at them.
            gc.collect()
            gc.freeze()
            self.meaning = loaded

    async def look(self) -> None:
        """Look after the second model, and tell what both did since the last time. Called once a second."""
        meaning, metrics = self.meaning, self._metrics
        if meaning is None:
            return
        first = meaning.first if isinstance(meaning, TwoModels) else meaning
        metrics.set_model("static", True)
        metrics.count_texts("static", first.texts - self._texts)
        self._texts = first.texts
        confirmer = self._confirmer()
        if confirmer is None:
            return
        confirmer.look()
        metrics.set_model("confirm", confirmer.is_up)
        metrics.count_texts("confirm", len(confirmer.waits_s))
        for seconds in confirmer.waits_s:
            metrics.observe_confirmation(seconds)
        for kind, n in confirmer.missed.items():
            metrics.count_unconfirmed(kind, n)
        confirmer.waits_s.clear()
        confirmer.missed.clear()

    def close(self) -> None:
        """End the second model's process."""
        confirmer = self._confirmer()
        if confirmer is not None:
            confirmer.close()

    def _confirmer(self) -> Confirmer | None:
        if not isinstance(self.meaning, TwoModels):
            return None
        from loopwarden_streams.confirmer import Confirmer  # noqa: PLC0415 - where there are models there is numpy

        return self.meaning.second if isinstance(self.meaning.second, Confirmer) else None
