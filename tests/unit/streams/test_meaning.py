"""Models of texts where there are none: this tier is off, says so, and nothing else changes."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from pathlib import Path

import pytest
from tests._support.models import is_installed

from loopwarden_models.errors import ConfigError
from loopwarden_streams import meaning
from loopwarden_streams.cli import main
from loopwarden_streams.meaning import at_hand, chosen_models, waited_for
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.model_watch import ModelWatch
from loopwarden_streams.settings import Settings

pytestmark = pytest.mark.skipif(is_installed(), reason="here are models: tests/embeddings looks at them")
CASES = Path(__file__).parents[2] / "cases"


@pytest.mark.parametrize(("model", "level"), [("default", logging.INFO), ("some/model", logging.WARNING)])
def test_a_worker_without_the_library_says_so_once_and_goes_on(
    model: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever named a model is warned; whoever did not only reads it."""
    with caplog.at_level(logging.INFO):
        assert at_hand(model, "default") is None
    [said] = caplog.records

    assert said.levelno == level
    assert "rules over meaning are off" in said.message
    assert "loopwarden[embeddings]" in said.message


def test_switched_off_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Empty is a wish, and no fault."""
    with caplog.at_level(logging.INFO):
        assert at_hand("", "default") is None

    assert caplog.records == []


def test_a_replay_that_was_told_to_use_a_model_does_not_go_on_without() -> None:
    """It would print other verdicts than were asked for. By default it goes on as a worker does."""
    with pytest.raises(ConfigError, match=r"semantic_model = 'some/model' needs sentence-transformers"):
        waited_for("some/model", "")
    assert chosen_models(Settings()) == ("", "")


@pytest.mark.parametrize("command", [["eval", "--cases", str(CASES)], ["replay", "docs/examples/loops.jsonl"]])
def test_commands_name_the_setting_and_the_remedy(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, as for every wrong setting."""
    assert main([*command, "--semantic-model", "some/model"]) == 2
    assert "pip install 'loopwarden[embeddings]'" in capsys.readouterr().err


def test_a_library_that_breaks_ends_this_tier_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch raises what it likes while it is loaded into a process that guards a fleet."""

    def broken(_static: str) -> None:
        raise RuntimeError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(meaning, "_first", broken)
    watch = ModelWatch(Settings(semantic_model="x"), Metrics())
    asyncio.run(watch.load())
    asyncio.run(watch.look())
    watch.close()

    assert watch.meaning is None
    assert any("could not be loaded" in record.message for record in caplog.records)


def test_the_metric_says_that_no_model_is_up() -> None:
    """0, and not missing: an alert can ask for it."""
    metrics = Metrics()
    watch = ModelWatch(Settings(), metrics)
    asyncio.run(watch.load())
    asyncio.run(watch.look())
    body = metrics.render()[0].decode()

    assert 'loopwarden_embedding_up{kind="static"} 0.0' in body
    assert 'loopwarden_embedding_up{kind="confirm"} 0.0' in body
    assert importlib.util.find_spec("sentence_transformers") is None
