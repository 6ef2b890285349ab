"""The agents of the demonstration that loop: each would go on for ever, and none crashes."""

from __future__ import annotations

from itertools import count, cycle
from random import Random
from typing import Final

from loopwarden_streams.demo_scripts import Call, Script, Talk, Turn, failing, turn

_AGAIN: Final = (
    "Let me try that once more.",
    "That was probably a hiccup, I will repeat it.",
    "I am almost there. One more attempt should do it.",
    "Interesting. Let me double-check by doing it again.",
    "I should verify this before I go on.",
)


def declined_card(rng: Random) -> Talk:
    """Another flight each time, the same wall."""
    for flight in count(rng.randrange(100, 400)):
        args = {"flight": f"LW{flight}", "passenger": "J. Moreau", "fare": "economy"}
        yield failing(rng.choice(_AGAIN), "book_flight", args, "PaymentError", "card declined by issuer", 402)


def forbidden_deploy(rng: Random) -> Talk:
    """A role that is missing does not appear by asking again."""
    for attempt in count(1):
        args = {"service": "checkout", "replicas": 3, "note": f"attempt {attempt}"}
        message = "role 'deployer' is required for namespace 'shop'"
        yield failing(rng.choice(_AGAIN), "deploy", args, "Forbidden", message, 403)


def unknown_column(rng: Random) -> Talk:
    """A query that is rewritten every time around a column that does not exist."""
    for number in count(rng.randrange(10)):
        args = {"table": "sales", "columns": ["customer", "revenue_eur"], "quarter": number % 4 + 1, "limit": number}
        yield failing(rng.choice(_AGAIN), "run_query", args, "QueryError", "no such column: revenue_eur")


def two_files(rng: Random) -> Talk:
    """Reads one file to understand the other, and the other to understand the one."""
    files = {
        "billing.py": "from invoices import total\n\ndef charge(order):\n    return total(order)\n",
        "invoices.py": "from billing import charge\n\ndef total(order):\n    return charge(order)\n",
    }
    for name in cycle(files):
        text = f"To see what this does I need {name}. {rng.choice(_AGAIN)}"
        yield turn(text, "read_file", {"path": name}, files[name], ms=220)


def three_steps(rng: Random) -> Talk:
    """Search, open, look at the schema, and from the beginning."""
    while True:
        found = {"hits": 1, "ids": ["T-2041"]}
        yield turn(rng.choice(_AGAIN), "search_tickets", {"query": "refund not received"}, found, ms=200)
        ticket = {"id": "T-2041", "status": "open", "body": "The refund of order 88 is missing."}
        yield turn("Let me look at that ticket.", "open_ticket", {"id": "T-2041"}, ticket, ms=200)
        yield turn("Which fields does a refund have?", "show_schema", {"table": "refunds"}, ["id", "order"], ms=200)


def same_search(rng: Random) -> Talk:
    """The same question, the same empty answer."""
    while True:
        args = {"query": "annual report 2025 revenue by region", "limit": 10}
        yield turn(rng.choice(_AGAIN), "search", args, {"hits": 0, "documents": []})


def same_order(rng: Random) -> Talk:
    """Looks the same order up until it says something else. It will not."""
    answer = {"order": "A-7731", "state": "shipped", "carrier": "Nordpost", "eta": None}
    while True:
        yield turn(rng.choice(_AGAIN), "find_order", {"order": "A-7731"}, answer, ms=300)


def crawl(rng: Random) -> Talk:
    """Never the same page twice, and no end of pages."""
    for page in count(1, 4):
        calls = tuple(
            Call("fetch_page", {"url": f"https://docs.example/archive?page={number}"}, f"page {number}", ms=90)
            for number in range(page, page + 4)
        )
        yield Turn("More pages to read.", calls, ms=rng.randrange(150, 210))


def webhooks(rng: Random) -> Talk:
    """Every delivery is new and every one succeeds: only the pace is wrong."""
    for event in count(rng.randrange(1_000, 9_000), 4):
        calls = tuple(
            Call("call_webhook", {"event": number, "kind": "price.changed"}, {"accepted": number}, ms=80)
            for number in range(event, event + 4)
        )
        yield Turn("Next batch of notifications.", calls, ms=rng.randrange(150, 210))


def listens(rng: Random) -> Talk:
    """Loops like the others, but reads what is put in front of it: one nudge, and it takes another way."""
    is_nudged = False
    while not is_nudged:
        args = {"query": "warranty terms model K2"}
        is_nudged = yield turn(rng.choice(_AGAIN), "search", args, {"hits": 0, "documents": []}, ms=320)
    documents = ["d-11", "d-42"]
    found = {"hits": 2, "documents": documents}
    yield turn("The note is right: other words, then.", "search", {"query": "guarantee K-series"}, found)
    for name in documents:
        yield turn(f"Reading {name}.", "open_document", {"id": name}, f"{name}: 24 months, parts and labour.", ms=700)
    yield Turn("The warranty of model K2 is 24 months, parts and labour.", ms=600)


# What it does, the name of the agent, the script, and the limit of steps that it was started with: it is what would
# end it without a detector. A crawler is given more, as people do.
LOOPS: Final[tuple[tuple[str, str, Script, int], ...]] = (
    ("books, card declined", "booker", declined_card, 120),
    ("rereads two files", "coder", two_files, 120),
    ("repeats one search", "researcher", same_search, 120),
    ("crawls without end", "crawler", crawl, 600),
    ("deploys without role", "deployer", forbidden_deploy, 120),
    ("walks in a circle", "helpdesk", three_steps, 120),
    ("asks a missing column", "analyst", unknown_column, 120),
    ("looks up one order", "support", same_order, 120),
    ("floods a webhook", "notifier", webhooks, 600),
)
RECOVERS: Final = ("loops, takes advice", "advisor", listens, 120)
