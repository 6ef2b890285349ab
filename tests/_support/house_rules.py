"""Rules of this repository that no linter knows. `make lint` runs it.

* a module of the product has at most 400 lines; the three largest are printed;
* the folders at the root are never imported by their bare names;
* no file names a path of somebody's machine or the host of a package registry;
* nothing that is left undone is called done: no TODO, FIXME or stub in the product;
* every test asserts something.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("models", "detectors", "streams", "runtime")
MAX_LINES = 400

_BARE_IMPORT = re.compile(r"^\s*(from|import) (models|detectors|streams|runtime)\b")
_UNDONE = re.compile(r"\b(TODO|FIXME|XXX|placeholder)\b")
_MACHINE = re.compile(r"(?<![\w.])/(home|root|Users|work)/\w")
_REGISTRY = re.compile(
    r"\b(pypi\.org|pythonhosted\.org|registry\.npmjs\.org|repo1?\.maven\.org|repo\.maven\.apache\.org"
    r"|deb\.debian\.org)\b"
)
_ASSERTS = re.compile(r"\bassert|raises\(|warns\(|\bfail\(|check\w*\(|verify\w*\(|expect\w*\(")


def tracked() -> list[Path]:
    """Return the files of the repository, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).is_file()]


def problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with one file."""
    name = path.relative_to(ROOT)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    in_product = name.parts[0] in PRODUCT and path.suffix == ".py"
    for number, line in enumerate(text.splitlines(), 1):
        if path.suffix == ".py" and _BARE_IMPORT.match(line):
            yield f"{name}:{number}: import the package (loopwarden_models, ...), not the folder"
        if in_product and _UNDONE.search(line):
            yield f"{name}:{number}: left undone: {line.strip()}"
        is_story = name.parts[:2] == ("tests", "cases")  # of somebody's agent, on a machine that does not exist
        if name.parts[0] != "LICENSE" and path != Path(__file__) and not is_story and _MACHINE.search(line):
            yield f"{name}:{number}: a path of a machine: {line.strip()[:80]}"
        if path != Path(__file__) and _REGISTRY.search(line):
            yield f"{name}:{number}: the host of a registry: {line.strip()[:80]}"
    if in_product and text.count("\n") > MAX_LINES:
        yield f"{name}: {text.count(chr(10))} lines, {MAX_LINES} are the limit: split it by concept"
    if name.parts[0] == "tests" and path.name.startswith("test_"):
        yield from _hollow_tests(name, text)


def _hollow_tests(name: Path, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test") and not _ASSERTS.search(ast.unparse(node)):
            yield f"{name}:{node.lineno}: {node.name} asserts nothing"


def main() -> int:
    """Print what is wrong and the three largest modules; return 1 if anything is wrong."""
    files = tracked()
    found = [problem for path in files for problem in problems(path)]
    sizes = sorted(
        (path.read_text(encoding="utf-8").count("\n"), str(path.relative_to(ROOT)))
        for path in files
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PRODUCT
    )
    print("largest modules: " + ", ".join(f"{name} ({lines})" for lines, name in reversed(sizes[-3:])))
    print("\n".join(found) if found else f"house rules hold in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
