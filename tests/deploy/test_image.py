"""The image of the service, as far as can be seen without building it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.deploy.repository import DEPLOY, ROOT

from loopwarden_streams.settings import Settings

TEXT = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
# Comments may stand between continued lines, as Docker reads them.
LINES = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^#.*\n", "", TEXT)).splitlines()
INSTRUCTIONS = [tuple(line.split(maxsplit=1)) for line in LINES if line.strip()]
STAGES = [index for index, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM"]
FINAL = INSTRUCTIONS[STAGES[-1] :]


def project() -> dict[str, Any]:
    """Return `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def copied() -> list[str]:
    """Return what is copied from the repository."""
    sources = []
    for word, rest in INSTRUCTIONS:
        if word == "COPY" and not rest.startswith("--from"):
            sources += rest.split()[:-1]
    return sources


def argument(word: str) -> str:
    """Return the argument of an instruction of the final stage."""
    (found,) = [rest for name, rest in FINAL if name == word]
    return found


def test_every_instruction_is_one() -> None:
    """A misspelt instruction or a lost continuation shows here."""
    known = {"FROM", "WORKDIR", "RUN", "COPY", "LABEL", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in INSTRUCTIONS} <= known


def test_the_final_stage_holds_the_program_and_no_tools_to_build_it() -> None:
    """Two stages on one base; only the environment is taken over."""
    bases = [INSTRUCTIONS[index][1].split()[0] for index in STAGES]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert [rest for word, rest in FINAL if word == "COPY"] == ["--from=build /opt/loopwarden /opt/loopwarden"]
    version = bases[0].removeprefix("python:").removesuffix("-slim")
    assert f"Programming Language :: Python :: {version}" in project()["project"]["classifiers"]


def test_it_does_not_run_as_root() -> None:
    """By number, so that an orchestrator can check it."""
    assert argument("USER") == "10001"
    assert "--uid 10001" in TEXT
    words = [word for word, _ in FINAL]
    assert words.index("USER") < words.index("ENTRYPOINT")


def test_it_answers_where_its_health_check_asks() -> None:
    """Port, path and address."""
    values = dict(part.split("=", 1) for part in argument("ENV").split())
    settings = Settings.from_env({name: text for name, text in values.items() if name.startswith("LOOPWARDEN_")})

    assert settings.host == "0.0.0.0"  # noqa: S104 - inside the container
    assert settings.port == Settings().port == int(argument("EXPOSE"))
    assert "/livez" in argument("HEALTHCHECK")
    assert "LOOPWARDEN_PORT" in argument("HEALTHCHECK")
    assert argument("ENTRYPOINT") == '["loopwarden"]'
    assert argument("CMD") == '["worker"]'


def test_what_is_copied_exists_and_is_let_through() -> None:
    """The ignore file lets nothing pass that is not named, so a new folder must be named there, too."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    sources = {source.removeprefix("./") for source in copied()}

    assert "*" in ignored
    assert allowed == sources
    for source in sources:
        assert (ROOT / source).exists(), source


def test_every_package_of_the_wheel_is_copied() -> None:
    """Otherwise the wheel in the image lacks what the wheel elsewhere has."""
    packages = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert {package.split("/")[0] for package in packages} <= set(copied())
    assert '"loopwarden[service] @ file://' in TEXT
    assert "service" in project()["project"]["optional-dependencies"]


def test_the_image_gets_the_versions_that_the_tests_run_with() -> None:
    """The command that makes constraints of the lock file, run on the lock file."""
    command = next(line for line in TEXT.splitlines() if line.startswith("RUN sed")).split(" > ")[0]
    if shutil.which("sed") is None:
        pytest.skip("no sed")
    script = re.search(r"'(.*)'", command)
    assert script is not None
    arguments = ["sed", "-nE", script[1], "requirements/dev.txt"]
    lines = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    constraints = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}

    assert all(str(constraint.specifier).startswith("==") for constraint in constraints.values())
    needed = [*project()["project"]["dependencies"], *project()["project"]["optional-dependencies"]["service"]]
    for requirement in map(Requirement, needed):
        (pinned,) = constraints[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pinned.version), requirement
