"""Calls that could do nothing, whatever the tool: nobody understood them, they say "do nothing", or they only echo.

An error is usually news: a compiler that finds the next fault says how far the work has come. These say nothing about
the task at all, and an agent that makes one after another is talking to its tool in the wrong language.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

if TYPE_CHECKING:
    from loopwarden_models.events import ToolEnd

# How shells, interpreters and schemas say that they did not understand, in the languages that bash speaks to the people
# whose words this field sees. measured: 5 such among the last 6 steps hit 8 of 23 labelled loops and no healthy run.
# Searched for as they are, in lower case: one expression of them all takes ten times as long.
_NOT_UNDERSTOOD: Final = (
    *("syntax error", "syntaxerror", "indentationerror", "unexpected eof", "unexpected end of file"),
    *("unterminated string", "unterminated quoted", "command not found"),
    *("is not recognized as an internal", "is not recognized as the name", "is not recognized as a name"),
    *("errore di sintassi", "comando non trovato", "syntaxfehler", "kommando nicht gefunden", "befehl nicht gefunden"),
    *("error de sintaxis", "error sintáctico", "orden no encontrada", "no se encontró la orden"),
    *("erreur de syntaxe", "commande introuvable", "inputvalidationerror", "invalid url", "malformed"),
)
_SAID_CHARS: Final = 240

# `:` is the null command of every shell: what follows it is not run.
_NULL_COMMAND = re.compile(rb'":\s{0,4}"\s{0,8}:(?=[\s"\\;])')
_COMMAND_BYTES: Final = 4_096

# What `echo` and its kin put out was in the question. A longer answer is no announcement.
ECHO_BYTES: Final = 120
_MEMO: Final = 2_048


def is_misunderstood(step: ToolEnd, outcome: str) -> bool:
    """Return whether a call that did not succeed was one that nobody could have carried out.

    Cost: 0.2 µs for a message that was seen lately, 2 µs for another one.
    """
    if outcome in ("invalid_args", "unknown_tool"):
        return True
    if outcome != "error":
        return False
    error = step.error
    text = error.message if error is not None else None
    if not text:
        if step.result is UNSET:
            return False
        text = bytes(step.result)[: 2 * _SAID_CHARS].decode("utf-8", "replace")
    return _says_misunderstood(text[:_SAID_CHARS])


def is_null_command(step: ToolEnd) -> bool:
    """Return whether an argument of a call that was answered by silence is a shell's null command. Cost: 0.3 µs."""
    if step.args is UNSET:
        return False
    return _NULL_COMMAND.search(bytes(step.args)[:_COMMAND_BYTES]) is not None


def is_echo(step: ToolEnd) -> bool:
    """Return whether a command put out nothing but words of its own: it announces, and does not act.

    Only worth asking of an answer of at most `ECHO_BYTES`.

    Cost: 0.2 µs; 1 µs for a short answer to a command that echoes.
    """
    result, args = step.result, step.args
    if result is UNSET or args is UNSET or len(result) >= len(args):
        return False
    asked = bytes(args)
    if b"echo" not in asked and b"printf" not in asked:
        return False
    lines = [line.strip() for line in bytes(result).strip(b'"').split(b"\\n")]
    return any(lines) and all(line in asked for line in lines)


@lru_cache(_MEMO)
def _says_misunderstood(text: str) -> bool:
    said = text.lower()
    # "sh: 1: grpe: not found" is how a small shell says it; without the shell it may be a customer who was not found.
    return any(words in said for words in _NOT_UNDERSTOOD) or (": not found" in said and "sh: " in said)
