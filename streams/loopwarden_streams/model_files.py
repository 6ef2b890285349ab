"""Models of texts by name: found, told apart by their versions, and explained where they are missing."""

from __future__ import annotations

import importlib.util
from hashlib import blake2b
from typing import Any, Final

from loopwarden_models.errors import ConfigError

# What `default` stands for.
STATIC_MODEL: Final = "sentence-transformers/static-similarity-mrl-multilingual-v1"
CONFIRM_MODEL: Final = "sentence-transformers/all-MiniLM-L6-v2"
_VERSION_BYTES: Final = 4
_ERROR_CHARS: Final = 160


def is_installed() -> bool:
    """Return whether sentence-transformers can be imported. Cost: 1 ms; nothing is imported."""
    return importlib.util.find_spec("sentence_transformers") is not None


def require_installed(setting: str, model: str) -> None:
    """Raise `ConfigError` unless sentence-transformers can be imported."""
    if not is_installed():
        raise ConfigError(
            f"{setting} = {model!r} needs sentence-transformers, which is not installed: "
            f"pip install 'loopwarden[embeddings]'"
        )


def load_model(setting: str, model: str) -> Any:
    """Return a `SentenceTransformer`, from a folder, from the local cache, or fetched.

    Args:
        setting: Who asks, for the error.
        model: Folder or name.

    Raises:
        ConfigError: There is no such model, here or where models are fetched from; or sentence-transformers is missing.
    """
    require_installed(setting, model)
    # Imported here: torch takes seconds and hundreds of megabytes, and most installations have no use for it.
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    try:
        try:
            # What is here is taken as it is: no start of a worker waits for a network.
            return SentenceTransformer(model, device="cpu", local_files_only=True)
        except OSError:
            return SentenceTransformer(model, device="cpu")
    except (OSError, ValueError, RuntimeError) as error:
        first = next(iter(str(error).splitlines()), "").strip()
        raise ConfigError(
            f"{setting} = {model!r} could not be loaded: it is no folder with a model, is not in the local cache, and "
            f"could not be fetched ({first[:_ERROR_CHARS]}). Give the path of a folder, or fetch it once where there "
            f"is a network (docs/semantic.md)"
        ) from error


def version_of(weights: Any) -> str:
    """Return eight hex digits of a hash of an array: the same numbers, the same version. Cost: 2 ms a megabyte."""
    return blake2b(memoryview(weights).cast("B"), digest_size=_VERSION_BYTES).hexdigest()
