"""The agents of the demonstration that are well, many of them look-alikes of a loop: none may be touched."""

from __future__ import annotations

from random import Random
from typing import Final

from loopwarden_streams.demo_scripts import Call, Script, Talk, Turn, failing, turn


def polls_a_build(rng: Random) -> Talk:
    """The same question many times, the same answer many times: a declared poller may."""
    build = rng.randrange(400, 900)
    for state in ["queued"] * 5 + ["running"] * 9 + ["passed"]:
        yield turn("Is the build done?", "build_status", {"build": build}, {"state": state}, ms=420)
    yield turn("It is. What did it say?", "read_file", {"path": f"build/{build}.log"}, "214 tests passed")
    yield Turn(f"Build {build} is green.")


def watches_a_queue(rng: Random) -> Talk:
    """A poller that nobody declared; what it sees is new each time."""
    depth = rng.randrange(900, 1_400)
    for _ in range(13):
        depth -= rng.randrange(35, 65)
        yield turn("How many jobs are left?", "queue_depth", {"queue": "mail"}, {"waiting": depth}, ms=550)
    yield Turn("The queue drains as it should.")


def waits_for_an_export(rng: Random) -> Talk:
    """Asks, sleeps, asks: equal answers with a wait in between are patience, not a loop."""
    export = f"e-{rng.randrange(100, 999)}"
    yield turn("I start the export.", "create_export", {"table": "orders"}, {"export": export})
    for _ in range(7):
        yield turn("Is it there?", "export_state", {"export": export}, {"state": "preparing"}, ms=200)
        yield Turn("Not yet. I wait a little.", (Call("sleep", {"seconds": 1}, ms=900),), ms=150)
    yield turn("Once more.", "export_state", {"export": export}, {"state": "ready", "rows": 18_204})
    yield Turn("The export has 18,204 rows.")


def reads_every_page(rng: Random) -> Talk:
    """The same tool eighteen times, another page each time."""
    for page in range(1, 19):
        rows = [{"invoice": rng.randrange(10_000, 99_999), "eur": rng.randrange(20, 900)} for _ in range(4)]
        yield turn(f"Page {page} of 18.", "list_invoices", {"month": "2026-10", "page": page}, rows, ms=330)
    yield Turn("All 18 pages are added up.")


def fixes_tests(rng: Random) -> Talk:
    """Test, edit, test: the same command fails again and again, with fewer failures each time."""
    failed = 6
    while failed:
        message = f"{failed} failed, {58 - failed} passed"
        yield failing("Run the tests.", "run_tests", {"path": "tests/"}, "TestsFailed", message, 1, ms=380)
        edit = {"path": "cart.py", "line": 30 + 7 * failed, "with": f"return total - {failed}"}
        yield turn("That one I see.", "edit_file", edit, {"saved": True, "line": 30 + 7 * failed}, ms=480)
        failed -= rng.choice((1, 1, 2)) if failed > 1 else 1
    yield turn("And once more.", "run_tests", {"path": "tests/"}, "58 passed")
    yield Turn("All tests pass.")


def chats(rng: Random) -> Talk:
    """A person asks the same thing again, so the same search is right."""
    questions = ["opening hours", "opening hours", "return policy", "opening hours", "gift cards", "opening hours"]
    for topic in questions:
        found = {"hits": 1, "text": f"{topic}: see section {len(topic)}"}
        asked = Call("search", {"query": topic}, found)
        yield Turn("Let me look that up.", (asked,), ms=400, asked=True)
        yield Turn(f"Here is what I found about {topic}.", ms=rng.randrange(500, 900))


def reads_side_by_side(rng: Random) -> Talk:
    """Four reads at once, some of them of the same file: one round is one attempt."""
    for part in ("api", "models", "views", "jobs", "tests"):
        names = [f"{part}/__init__.py", f"{part}/base.py", f"{part}/base.py", f"{part}/errors.py"]
        calls = tuple(Call("read_file", {"path": name}, f"# {name}", ms=rng.randrange(80, 240)) for name in names)
        yield Turn(f"I need an overview of {part}.", calls, ms=900)
    yield Turn("The service has five parts.")


def retries_and_succeeds(rng: Random) -> Talk:
    """A failure or two in between, and it works the next time."""
    for currency in ("CHF", "SEK", "JPY", "USD", "GBP", "CAD", "NOK"):
        args = {"pair": f"EUR/{currency}"}
        for _ in range(rng.choice((0, 1, 2))):
            yield failing(f"Rate of {currency}.", "get_rate", args, "Unavailable", "upstream timed out", 503)
        rate = round(rng.uniform(0.8, 1.6), 4)
        yield turn(f"Rate of {currency}.", "get_rate", args, {"rate": rate})
        yield turn("I note it down.", "save_rate", {**args, "rate": rate}, {"saved": True, "pair": f"EUR/{currency}"})


def researches(rng: Random) -> Talk:
    """Search, open, search, open: the shape of an oscillation, and something new each time."""
    for topic in ("heat pumps", "grid fees", "subsidies", "payback time", "noise limits", "refrigerants", "installers"):
        document = f"d-{rng.randrange(100, 999)}"
        yield turn(f"What is there on {topic}?", "search", {"query": topic}, {"hits": 9, "best": document})
        text = f"{topic}: {rng.randrange(3, 40)} pages"
        yield turn("The first looks right.", "open_document", {"id": document}, text, ms=520)
    yield Turn("Seven sources, one summary.", ms=700)


def sorts_tickets(rng: Random) -> Talk:
    """One label after the other: each write is new."""
    for number in range(11):
        ticket = f"T-{3_000 + number}"
        yield turn(f"Ticket {ticket}.", "open_ticket", {"id": ticket}, {"id": ticket, "words": rng.randrange(20, 300)})
        label = rng.choice(("billing", "shipping", "praise"))
        yield turn(f"That is {label}.", "label_ticket", {"id": ticket, "label": label}, {"id": ticket, "label": label})


def migrates(rng: Random) -> Talk:
    """Look, change, look: the same read before and after a write."""
    for table in ("users", "orders", "items", "refunds", "carts", "coupons"):
        before = ["id", "created", f"old_{rng.randrange(9)}"]
        yield turn(f"Columns of {table}?", "show_schema", {"table": table}, before)
        yield turn("I rename one.", "migrate_table", {"table": table, "to": "new"}, {"migrated": table}, ms=420)
        yield turn("Did it work?", "show_schema", {"table": table}, ["id", "created", "new"])


def reviews(rng: Random) -> Talk:
    """Comes back to a file after each comment."""
    for number in range(1, 9):
        path = rng.choice(("cart.py", "tax.py"))
        yield turn(f"Back to {path}.", "read_file", {"path": path}, f"# {path}\nprice = net * 1.19\n", ms=360)
        note = {"path": path, "line": 12 * number, "text": f"remark {number}"}
        yield turn("This deserves a remark.", "comment", note, {"comment": 500 + number}, ms=420)


def restocks(rng: Random) -> Talk:
    """Orders until the shelf is full; the runtime says that it moves on."""
    level = rng.randrange(8, 16)
    while level < 60:  # noqa: PLR2004 - a full shelf
        yield turn("What is on the shelf?", "stock_level", {"item": "K2-filter"}, {"pieces": level}, ms=380)
        level += rng.randrange(6, 11)
        order = Call("reorder", {"item": "K2-filter", "upto": level}, {"expected": level})
        yield Turn("I order some more.", (order,), ms=300, progress=f"{level} pieces on the shelf")


HEALTHY: Final[tuple[tuple[str, str, Script, int], ...]] = (
    ("polls a build", "builder", polls_a_build, 200),
    ("edits and tests", "fixer", fixes_tests, 200),
    ("reads page after page", "accountant", reads_every_page, 200),
    ("chats with a person", "concierge", chats, 200),
    ("polls and sleeps", "exporter", waits_for_an_export, 200),
    ("reads side by side", "surveyor", reads_side_by_side, 200),
    ("retries and succeeds", "treasurer", retries_and_succeeds, 200),
    ("watches a queue", "watcher", watches_a_queue, 200),
    ("searches and opens", "scholar", researches, 200),
    ("labels tickets", "sorter", sorts_tickets, 200),
    ("migrates tables", "migrator", migrates, 200),
    ("reviews a change", "reviewer", reviews, 200),
    ("fills a shelf", "stocker", restocks, 200),
)
