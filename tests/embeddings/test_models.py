"""The two models by themselves: vectors, versions, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="needs sentence-transformers and MiniLM: make test-embeddings")

from loopwarden_detectors.meaning import DIMENSIONS, cosine_percent
from loopwarden_models.errors import ConfigError
from loopwarden_streams import static_meaning
from loopwarden_streams.meaning import TwoModels, at_hand, waited_for
from loopwarden_streams.model_files import load_model
from loopwarden_streams.static_meaning import StaticMeaning

SAME = ("The button stays grey and nothing happens.", "Clicking has no effect, the button is still disabled.")
OTHER = "The deployment finished and all instances are healthy."


def test_rewordings_are_nearer_than_other_texts(static: str, transformer: str) -> None:
    """In both models, and the same each time."""
    meaning = waited_for(static, transformer)
    assert isinstance(meaning, TwoModels)
    one, same, other = (meaning.vector(text) for text in (*SAME, OTHER))
    for key, text in enumerate((*SAME, OTHER)):
        meaning.ask(key, text)

    assert len(one) == DIMENSIONS
    assert meaning.vector(SAME[0]) == one
    assert cosine_percent(one, same) > cosine_percent(one, other) + 10
    assert (meaning.confirmed_percent(0, 1) or 0) > (meaning.confirmed_percent(0, 2) or 0) + 10
    assert meaning.confirmed_percent(0, 7) is None


@pytest.mark.parametrize("text", [*SAME, OTHER, "Città, l'ora è 10:33! (src/app.py) don't—stop", "Straße über Köln"])
def test_a_vector_is_that_of_the_library(text: str, static: str) -> None:
    """Word by word is a short cut, and no other model."""
    meaning = waited_for(static, "")
    assert meaning is not None
    [whole] = load_model("semantic_model", static).encode([text])
    cut = whole[:DIMENSIONS] / np.linalg.norm(whole[:DIMENSIONS])
    own = np.frombuffer(meaning.vector(text), dtype=np.int8) / 127

    assert float(np.abs(own - cut).max()) < 0.01


def test_words_that_are_forgotten_change_nothing(static: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memo of words is bounded, and only a memo."""
    monkeypatch.setattr(static_meaning, "MAX_WORDS", 12)
    small, large = StaticMeaning(static), waited_for(static, "")
    assert large is not None
    for text in (*SAME, OTHER, *SAME):
        small._known.clear()

        assert small.vector(text) == large.vector(text)
    assert len(small._rows) <= 12


@pytest.mark.parametrize("text", ["", " ", "\ud800", "\x00", "a" * 100_000, "請繼續", "🔧" * 50])
def test_any_text_has_a_vector(text: str, static: str, transformer: str) -> None:
    """Tenants send what they like."""
    meaning = waited_for(static, transformer)
    assert isinstance(meaning, TwoModels)
    meaning.ask(99, text)

    assert len(meaning.vector(text)) == DIMENSIONS
    assert meaning.confirmed_percent(99, 99) == 100


def test_the_name_says_which_models_and_which_versions(static: str, transformer: str) -> None:
    """Thresholds hold for a model: a verdict must say for which."""
    meaning = waited_for(static, transformer)
    assert isinstance(meaning, TwoModels)
    first, second = meaning.name.split("+")

    assert first.startswith(f"{Path(static).name}@")
    assert second.startswith("model-int8@")
    assert all(len(name.split("@")[1]) == 8 for name in (first, second))


@pytest.mark.parametrize("confirm", ["", "default"])
def test_a_model_that_is_not_there_is_named_with_a_remedy(
    confirm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A replay that was told to use it must not go on without; a worker does, and says so once."""
    missing = str(tmp_path / "nowhere")

    with pytest.raises(ConfigError, match=r"semantic_model = .*nowhere.*could not be loaded.*path of a folder"):
        waited_for(missing, confirm)
    assert at_hand(missing, confirm) is None
    [said] = [record.message for record in caplog.records if "rules over meaning are off" in record.message]
    assert "nowhere" in said


def test_a_transformer_is_refused_as_the_first_model(transformer: str) -> None:
    """It would be asked of each event, and take ten milliseconds."""
    with pytest.raises(ConfigError, match=r"not with a StaticEmbedding.*semantic_confirm_model"):
        waited_for(transformer, "")


def test_one_model_is_enough(static: str) -> None:
    """Without the second one nothing is confirmed."""
    meaning = waited_for(static, "")
    assert meaning is not None
    meaning.ask(1, SAME[0])

    assert not meaning.confirms
    assert meaning.confirmed_percent(1, 1) is None


def test_no_name_is_no_model() -> None:
    """Empty switches the tier off."""
    assert waited_for("", "default") is None
    assert at_hand("", "default") is None
