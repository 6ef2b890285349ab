"""What is wrong with a file of cases, labels or recorded steps: said with file, place and remedy, and passed over."""

from __future__ import annotations

from msgspec import Struct

from loopwarden_models.errors import ConfigError


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an input file.

    Attributes:
        file: Path as it was found.
        place: Line, event or field; empty if it is the file as a whole.
        text: What is wrong, and what to do about it.
        is_unreadable: Nothing of the file could be used.
    """

    file: str
    place: str
    text: str
    is_unreadable: bool = False

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.place, self.text) if part)


class BadFileError(ConfigError):
    """A file that cannot be used. Does not pass between processes: `problem` does."""

    def __init__(self, file: object, place: str, text: str, *, is_unreadable: bool = False) -> None:
        self.problem = Problem(file=str(file), place=place, text=text, is_unreadable=is_unreadable)
        super().__init__(str(self.problem))
