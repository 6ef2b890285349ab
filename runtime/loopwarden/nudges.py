"""Nudges: short texts that are put in front of the model, chosen by id and filled with counted evidence.

Nothing of a command is copied into a text but a tool's name and two numbers, cleaned and bounded: whoever may write
commands must not be able to write prompts.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from loopwarden.nudge_texts import TEMPLATES
from loopwarden_models.commands import Command

_MAX_TOOL_CHARS = 64
_MAX_FREE_CHARS = 2_000
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.:/-]+")


def render(command: Command, *, allow_free_text: bool = False) -> str | None:
    """Return the text of a nudge, or `None` if this release has no text for its `message_id`.

    Args:
        command: The nudge; `reason.tool`, `reason.count` and `reason.window_ms` are used.
        allow_free_text: Use `command.message`, cut to 2,000 characters, instead of a template. Whoever can write to
            the command topic can then write into prompts.
    """
    if allow_free_text and command.message:
        return command.message[:_MAX_FREE_CHARS]
    template = TEMPLATES.get(command.message_id or "")
    if template is None:
        return None
    reason = command.reason
    tool = _NOT_A_NAME.sub("?", (reason.tool or "") if reason is not None else "")[:_MAX_TOOL_CHARS]
    count = reason.count if reason is not None else 0
    window_s = (reason.window_ms or 0) / 1_000 if reason is not None else 0.0
    return template.format(
        Tool=f"The tool `{tool}`" if tool else "The same tool",
        tool=f"the tool `{tool}`" if tool else "the same tool",
        named=f", last `{tool}`" if tool else "",
        with_tool=f", `{tool}` among them," if tool else "",
        times=f"{count} times" if count > 1 else "several times",
        times_other=f"{count}" if count > 1 else "several",
        Count=f"{count}" if count > 1 else "Some",
        at_count=f" (the count stands at {count})" if count else "",
        in_window=f" ({count} in {window_s:g} s)" if count and window_s else f" ({count})" if count else "",
    )


class Nudge:
    """One message for the model. Thread-safe.

    Attributes:
        text: What the model should read, as a message of the system or the user.
        message_id: Which template it was made from; `None` for free text.
        command_id: The command that asked for it.
    """

    __slots__ = ("_lock", "_on_end", "_open", "command_id", "expires_ms", "message_id", "text")

    def __init__(
        self, text: str, command_id: str, message_id: str | None, expires_ms: float, on_end: Callable[[str, str], None]
    ) -> None:
        self.text = text
        self.message_id = message_id
        self.command_id = command_id
        self.expires_ms = expires_ms
        self._on_end = on_end
        self._open = True
        self._lock = threading.Lock()

    def delivered(self) -> None:
        """Say that the text is in the prompt of the model's next call. Only this makes it count as given.

        The detector holds back its next step until then, so call it when the prompt is built and not before. Later
        calls do nothing. Never raises.
        """
        self.settle("applied")

    @property
    def is_settled(self) -> bool:
        """True once the nudge was delivered, or its life is over."""
        return not self._open

    def settle(self, status: str, detail: str = "") -> bool:
        """End the nudge's life with an acknowledgement; return False if it has ended already. Not for agents."""
        with self._lock:
            if not self._open:
                return False
            self._open = False
        self._on_end(status, detail)
        return True

    def __repr__(self) -> str:
        return f"Nudge({self.message_id!r}, {self.command_id!r})"
