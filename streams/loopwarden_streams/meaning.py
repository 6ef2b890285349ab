"""The models of texts of a process: loaded once, or not there; what a rule asks of both."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from loopwarden_models.errors import ConfigError
from loopwarden_streams.model_files import CONFIRM_MODEL, STATIC_MODEL, is_installed, require_installed
from loopwarden_streams.settings import Settings

if TYPE_CHECKING:  # numpy comes with the models: without them neither is there
    from loopwarden_streams.static_meaning import StaticMeaning

log = logging.getLogger(__name__)

DEFAULT = "default"


class Second(Protocol):
    """What confirms."""

    @property
    def name(self) -> str:
        """Name and version."""
        ...

    def ask(self, key: int, text: str) -> None:
        """See `Meaning`."""
        ...

    def confirmed_percent(self, one: int, other: int) -> int | None:
        """See `Meaning`."""
        ...


class TwoModels:
    """A static model and one that confirms, as one `Meaning`. Not thread-safe."""

    confirms = True

    def __init__(self, first: StaticMeaning, second: Second) -> None:
        """Ask both."""
        self.first = first
        self.second = second
        self.vector = first.vector
        self.ask = second.ask
        self.confirmed_percent = second.confirmed_percent

    @property
    def name(self) -> str:
        """Names and versions of both."""
        return f"{self.first.name}+{self.second.name}"


def chosen_models(settings: Settings) -> tuple[str, str]:
    """Return the models that `waited_for` is to load; none if the default ones cannot be, which is said once.

    Raises:
        ConfigError: A model that is named cannot be loaded.
    """
    models = (settings.semantic_model, settings.semantic_confirm_model)
    return models if waited_for(*models) is not None else ("", "")


@lru_cache(maxsize=1)
def waited_for(static: str, confirm: str) -> StaticMeaning | TwoModels | None:
    """Return the models of a replay: those of `at_hand`, but the second one is waited for.

    Raises:
        ConfigError: A model that is named cannot be loaded. For `default` that is a warning.
    """
    try:
        first = _first(static)
        if first is None or not confirm:
            return first
        from loopwarden_streams.confirming_model import AtOnce  # noqa: PLC0415 - as above

        return TwoModels(first, AtOnce(CONFIRM_MODEL if confirm == DEFAULT else confirm))
    except ConfigError as error:
        if static != DEFAULT:
            raise
        log.warning("rules over meaning are off: %s", error)
        return None


def at_hand(static: str, confirm: str) -> StaticMeaning | TwoModels | None:
    """Return the models of a worker, the second one in a process of its own; `None`, said once, if there are none.

    Whatever is missing (the library, a model, a network) switches this tier off and nothing else. Cost: seconds.

    Args:
        static: Folder or name of the first model; `default`, or `""` for none.
        confirm: The same of the second.
    """
    try:
        first = _first(static)
    except ConfigError as error:
        log.warning("rules over meaning are off: %s", error)
        return None
    except Exception:
        # torch is a large thing to load into a process that guards a fleet: whatever it raises ends this tier alone.
        log.exception("rules over meaning are off: the model %s could not be loaded", static)
        return None
    if first is None:
        return None
    log.info("rules over meaning are on: %s", first.name)
    if not confirm:
        return first
    from loopwarden_streams.confirmer import Confirmer  # noqa: PLC0415 - as above

    return TwoModels(first, Confirmer(CONFIRM_MODEL if confirm == DEFAULT else confirm))


def _first(static: str) -> StaticMeaning | None:
    if static == DEFAULT and not is_installed():
        log.info("rules over meaning are off: no sentence-transformers (pip install 'loopwarden[embeddings]')")
        return None
    if not static:
        return None
    require_installed("semantic_model", static)
    from loopwarden_streams.static_meaning import StaticMeaning  # noqa: PLC0415 - as above

    return StaticMeaning(STATIC_MODEL if static == DEFAULT else static)
