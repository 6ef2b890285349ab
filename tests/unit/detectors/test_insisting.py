"""Goals that tell the agent never to stop."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_detectors.insisting import _HINTS, _INSISTS, insists

INSISTING = [
    "Wait until the build is green",
    "Never give up.",
    "always retry on failure",
    "Don\N{RIGHT SINGLE QUOTATION MARK}t stop, no matter what",
    "Do not give up",
    "Keep\n  trying",
    "Try as many times as it takes",
    "Do it at all costs",
    "Versuche es, bis es klappt",
    "Gib niemals auf!",
    "Gib nie auf",
    "Du darfst nicht aufgeben",
    "Probiere es immer wieder",
    "um jeden Preis",
    "Riprova finché non funziona",
    "finche' non riesce",
    "Continua a provare",
    "Non arrenderti mai",
    "non fermarti",
    "fino a quando non è pronto",
    "Riprova sempre",
    "a tutti i costi",
    "Inténtalo hasta que funcione",
    "No te rindas",
    "NUNCA TE RINDAS",
    "sigue intentándolo",
    "reintenta siempre",
    "cueste lo que cueste",
]
CALM = [
    "",
    "Fix the failing test and stop",
    "Zähle von 1 bis 10",
    "Lies die Dateien 3 bis 7, nicht mehr",
    "Conta fino a 10",
    "Find the bus stop nearest to the hotel",
    "What does it cost?",
    "Always write tests",
    "Non so che dire",
    "Stop the server, then start it",
    "Haz una lista de países",
]


@pytest.mark.parametrize("goal", INSISTING)
def test_goals_that_insist(goal: str) -> None:
    """In four languages, in capitals, across lines, and with accents in either form."""
    assert insists(goal)
    assert insists(unicodedata.normalize("NFD", goal))
    assert insists(f"You are an agent. {goal} Thank you.")


@pytest.mark.parametrize("goal", CALM)
def test_goals_that_do_not(goal: str) -> None:
    """A range, a bus stop, an order to stop."""
    assert not insists(goal)


def test_the_beginning_and_the_end_of_a_long_goal_count() -> None:
    """What was pasted in between is no instruction, and reading it would cost."""
    filler = "word " * 2_000

    assert insists(f"Never give up. {filler}")
    assert insists(f"{filler} Never give up.")
    assert not insists(f"{filler} never give up {filler}")


@given(st.text(max_size=200) | st.builds(" ".join, st.lists(st.sampled_from([*INSISTING, *CALM]), max_size=3)))
def test_the_quick_look_hides_nothing(goal: str) -> None:
    """The hints are only there to be fast."""
    found = _INSISTS.search(" ".join(goal.lower().split()))

    assert found is None or any(hint in found[0] for hint in _HINTS)
