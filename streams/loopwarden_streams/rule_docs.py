"""The pages about rules and patterns: `docs/patterns.md`, `docs/detectors/*.md`, and the table in `docs/detectors.md`.

All are generated: from the rules themselves (`rule_catalogue`), the tables of patterns, recoveries and causes, the
hand-written part of each page in `docs/detectors/_notes`, and the measured figures in `docs/detectors/_figures.json`.
`python -m loopwarden_streams.rule_docs --write` brings them up to date, `--check` says whether they are, and `--figures
FILE` takes over the figures of `loopwarden eval --json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loopwarden_streams.rule_catalogue import Rule, rules
from loopwarden_streams.rule_pages import Note, detector_page, patterns_page, rules_table

COMMAND: Final = "python -m loopwarden_streams.rule_docs --write"
_NOTES: Final = "detectors/_notes"
_FIGURES: Final = "detectors/_figures.json"
_OVERVIEW: Final = "detectors.md"
_TABLE: Final = ("<!-- rules -->", "<!-- /rules -->")
# Of the figures nothing but counts is kept: no name of a run, a case or a data set.
_KEPT: Final = ("first", "loop", "healthy", "other", "precision")


def generated(docs: Path) -> dict[str, str]:
    """Return the text of every generated file, by its path below `docs`.

    Raises:
        ValueError: A note is about no rule, or has no title, or the overview has no place for the table.
    """
    known = rules()
    notes = _read_notes(docs, known)
    figures = _read_figures(docs)
    titled = [(rule, notes[rule.name]) for rule in known]
    texts = {f"detectors/{rule.name}.md": detector_page(rule, note, figures, command=COMMAND) for rule, note in titled}
    texts["patterns.md"] = patterns_page(titled, command=COMMAND)
    texts[_OVERVIEW] = _with_table((docs / _OVERVIEW).read_text(encoding="utf-8"), rules_table(titled))
    return texts


def stale(docs: Path) -> list[str]:
    """Return what below `docs` differs from what would be written: changed, missing, or left over."""
    texts = generated(docs)
    changed = {name for name, text in texts.items() if not _holds(docs / name, text)}
    left_over = {f"detectors/{path.name}" for path in (docs / "detectors").glob("*.md")} - texts.keys()
    return sorted(changed | left_over)


def write(docs: Path) -> list[str]:
    """Bring `docs` up to date and return what was changed."""
    texts = generated(docs)
    changed = stale(docs)
    for name in changed:
        if name in texts:
            (docs / name).write_text(texts[name], encoding="utf-8")
        else:
            (docs / name).unlink()
    return changed


def take_figures(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the pages show of the figures that `loopwarden eval --json` printed.

    Raises:
        KeyError: It printed something else.
    """
    traces = evaluation["traces"].values()
    return {
        "policy": evaluation["policy"],
        "cases": len(evaluation["cases"]),
        "runs": sum(folder["runs"] for folder in traces),
        "events": sum(folder["events"] for folder in traces),
        "detectors": {
            name: {key: score[key] for key in _KEPT} for name, score in sorted(evaluation["detectors"].items())
        },
    }


def _read_notes(docs: Path, known: Sequence[Rule]) -> dict[str, Note]:
    names = {rule.name for rule in known}
    found = {path.stem: path for path in (docs / _NOTES).glob("*.md")}
    if found.keys() - names:
        raise ValueError(
            f"{docs / _NOTES}: {', '.join(sorted(found.keys() - names))}: there is no such rule; remove it"
        )
    return {
        rule.name: Note.parse(found[rule.name].read_text(encoding="utf-8"), str(found[rule.name]))
        if rule.name in found
        else Note(title=rule.name.replace("_", " ").capitalize(), intro=f"`{rule.name}`: {rule.text}", points=[])
        for rule in known
    }


def _read_figures(docs: Path) -> dict[str, Any]:
    path = docs / _FIGURES
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _with_table(text: str, table: str) -> str:
    begin, end = _TABLE
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{_OVERVIEW}: the table of rules stands between {begin} and {end}; put them back")
    return f"{before}{begin}\n\n{table}\n{end}{after}"


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if `--check` found something stale."""
    parser = argparse.ArgumentParser(prog="python -m loopwarden_streams.rule_docs", description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the documents (default: docs)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write what is stale")
    what.add_argument("--check", action="store_true", help="name what is stale")
    what.add_argument("--figures", metavar="FILE", help="take over what `loopwarden eval --json` printed; - is stdin")
    options = parser.parse_args(arguments)
    if options.figures:
        text = sys.stdin.read() if options.figures == "-" else Path(options.figures).read_text(encoding="utf-8")
        path = options.docs / _FIGURES
        path.write_text(json.dumps(take_figures(json.loads(text)), indent=1) + "\n", encoding="utf-8")
        print(f"written: {path}")
    if options.check:
        names = stale(options.docs)
        for name in names:
            print(f"stale: {options.docs / name}", file=sys.stderr)
        if names:
            print(f"run: {COMMAND}", file=sys.stderr)
        return 1 if names else 0
    for name in write(options.docs):
        print(f"written: {options.docs / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
