"""A static model of texts: a table of word vectors, the mean of which is the vector of a text. Microseconds, no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from loopwarden_detectors.meaning import DIMENSIONS, MAX_CHARS
from loopwarden_models.errors import ConfigError
from loopwarden_models.hashes import stable_key
from loopwarden_streams.model_files import load_model, version_of

# Texts whose vectors are kept: those of some thousand runs, about 300 bytes each.
MEMO: Final = 8_192
# Words whose vectors are kept, 256 bytes each; when there are so many they are forgotten and looked up again.
MAX_WORDS: Final = 65_536
_SCALE: Final = 127


class StaticMeaning:
    """Vectors of texts, with a memo. Not thread-safe.

    Attributes:
        name: Name of the model and its version: eight hex digits of a hash of its vectors.
        texts: How many texts were put into vectors.
    """

    confirms = False

    def __init__(self, model: str) -> None:
        """Load a sentence-transformers model whose one module is a `StaticEmbedding`, and warm it up.

        Args:
            model: A folder, or the name of a model that is in the local cache or can be fetched.

        Raises:
            ConfigError: There is no such model, or it is of another kind, or sentence-transformers is not installed.

        Cost: seconds, most of them torch's; then the memory of 64 numbers a word: 8 MB for 30,000 words.
        """
        loaded = load_model("semantic_model", model)
        first: Any = loaded[0]
        table = getattr(first, "embedding", None)
        if table is None or not hasattr(first, "tokenizer"):
            raise ConfigError(
                f"semantic_model = {model!r} begins with a {type(first).__name__}, not with a StaticEmbedding: it is "
                f"too slow to be asked of each event; name it as semantic_confirm_model, and a static one here"
            )
        weights = table.weight.detach().numpy()
        self.name = f"{Path(model).name}@{version_of(weights)}"
        self.texts = 0
        self._tokenizer = first.tokenizer
        self._tokenizer.no_padding()
        self._weights = np.array(weights[:, :DIMENSIONS], dtype=np.float32)
        self._known: dict[int, bytes] = {}
        self._rows: dict[str, int] = {}
        self._words = np.zeros((MAX_WORDS, self._weights.shape[1]), dtype=np.float32)
        self.vector("warm up")

    def vector(self, text: str) -> bytes:
        """See `Meaning`. Cost: 20 µs for 100 characters, 35 µs for 400; 1 µs if it was seen lately."""
        text = text[:MAX_CHARS]
        key = stable_key(text)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MEMO:
                del self._known[next(iter(self._known))]
            known = self._known[key] = self._vector(text)
        return known

    def _vector(self, text: str) -> bytes:
        """Return the mean of the vectors of the text's words, as `encode` of sentence-transformers has it.

        Tokenizers of such models split at white space first, so the pieces of a word do not hang on its neighbours: a
        word is put into pieces once. That is ten times as fast as to do it for each text (benchmarks/semantic.py).
        """
        self.texts += 1
        rows = self._rows
        words = text.split()
        if len(rows) + len(words) > MAX_WORDS:
            rows.clear()
        found = [rows[word] if word in rows else self._add(word) for word in words]
        whole = np.zeros(DIMENSIONS, dtype=np.int8)
        if found:
            total = self._words[found].sum(axis=0)
            length = float(np.sqrt(total @ total))
            if length > 0:
                whole[: len(total)] = np.rint(total * (_SCALE / length))
        data: bytes = whole.tobytes()
        return data

    def _add(self, word: str) -> int:
        # A lone surrogate is no text to a tokenizer.
        ids = self._tokenizer.encode(word.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        row = self._rows[word] = len(self._rows)
        self._words[row] = self._weights[ids].sum(axis=0) if ids else 0
        return row

    def ask(self, key: int, text: str) -> None:
        """Do nothing: there is no second model."""

    def confirmed_percent(self, one: int, other: int) -> int | None:  # noqa: ARG002 - as `Meaning` has it
        """Return `None`: there is no second model."""
        return None
