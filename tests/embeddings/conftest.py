"""Real models of texts: MiniLM out of its package, and a static model made from its word vectors. No network."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests._support.models import is_installed, make_static_model, minilm

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is here where the models are not installed; let their libraries warn as they like."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        if not is_installed():
            item.add_marker(pytest.mark.skip(reason="needs sentence-transformers and MiniLM: make test-embeddings"))


@pytest.fixture(scope="session")
def transformer() -> str:
    """Folder of the transformer."""
    return str(minilm())


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the static model."""
    return str(make_static_model(tmp_path_factory.mktemp("static")))
