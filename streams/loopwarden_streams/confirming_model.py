"""The second model of texts, a transformer: better than a table of words, and a thousand times slower."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from loopwarden_streams.model_files import load_model, version_of

MAX_BATCH: Final = 16


class ConfirmingModel:
    """Unit vectors of texts by a sentence-transformers model, on one core.

    Attributes:
        name: Name of the model, `-int8` where it computes with bytes, and its version.
    """

    def __init__(self, model: str) -> None:
        """Load the model and warm it up.

        Its linear layers compute with bytes where torch can do that: twice as many texts a second, and the cosine of
        two texts moves by 2 points (benchmarks/semantic.py).

        Args:
            model: A folder, or the name of a model that is in the local cache or can be fetched.

        Raises:
            ConfigError: There is no such model, or sentence-transformers is not installed.

        Cost: 5 s, and 0.5 GB.
        """
        loaded = load_model("semantic_confirm_model", model)
        import torch  # noqa: PLC0415 - as sentence-transformers in `load_model`

        torch.set_num_threads(1)
        weights = next(iter(loaded.parameters())).detach().numpy()
        self.name = f"{Path(model).name}@{version_of(weights)}"
        self._model: Any = loaded
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # announced to move to another package; until then it is the fast way
            try:
                quantised: Any = torch.ao.quantization
                self._model = quantised.quantize_dynamic(loaded, {torch.nn.Linear}, dtype=torch.qint8)
                self.name = f"{Path(model).name}-int8@{version_of(weights)}"
            except (AttributeError, RuntimeError):
                self._model = loaded
        self.vectors(["warm up"])

    def vectors(self, texts: Sequence[str]) -> list[Any]:
        """Return one unit vector (float32) a text. Cost: about 3 ms a text in batches of `MAX_BATCH`, 7 ms alone."""
        told = [text.encode("utf-8", "replace").decode() for text in texts]
        found = self._model.encode(told, batch_size=MAX_BATCH, normalize_embeddings=True, show_progress_bar=False)
        return [np.asarray(one, dtype=np.float32) for one in found]


def percent(one: Any, other: Any) -> int:
    """Return the cosine of two unit vectors, 0 to 100. Cost: 2 µs."""
    return max(0, min(100, round(100 * float(one @ other))))


class AtOnce:
    """A second model that is waited for: in replay and evaluation the same events give the same verdicts."""

    def __init__(self, model: str) -> None:
        """Load it. Raises and costs as `ConfirmingModel`."""
        self._model = ConfirmingModel(model)
        self.name = self._model.name
        self._texts: dict[int, str] = {}
        self._vectors: dict[int, Any] = {}

    def ask(self, key: int, text: str) -> None:
        """Keep a text until it is asked about."""
        self._texts.setdefault(key, text)

    def confirmed_percent(self, one: int, other: int) -> int | None:
        """See `Meaning`. Cost: 7 ms for each text that is new."""
        vectors = [self._vector(key) for key in (one, other)]
        return None if any(vector is None for vector in vectors) else percent(*vectors)

    def _vector(self, key: int) -> Any:
        if key not in self._vectors:
            text = self._texts.get(key)
            if text is None:
                return None
            [self._vectors[key]] = self._model.vectors([text])
        return self._vectors[key]
