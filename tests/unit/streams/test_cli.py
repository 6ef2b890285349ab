"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_streams import cli
from loopwarden_streams.policy_file import load_policy


def test_help_lists_every_command_and_loads_none_of_them() -> None:
    """`--help` must answer at once, on a machine where the service is not installed, too."""
    script = (
        "import sys\nfrom loopwarden_streams import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in ('faust', 'aiokafka', 'rich', 'yaml') if name in sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert all(name in told for name, *_ in cli.COMMANDS)
    assert told.splitlines()[-1] == "[]"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback about a module tells nobody what to install."""
    monkeypatch.setattr(cli, "COMMANDS", (("worker", "a_module_that_is_not_there", "service", "run it"),))

    status = cli.main(["worker"])

    assert status == cli.EXIT_USAGE
    assert "pip install 'loopwarden[service]'" in capsys.readouterr().err


def test_a_wrong_policy_file_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path inside the file is what its author needs."""
    file = tmp_path / "policy.yaml"
    file.write_text("exact_repeat: {nudge: 9}\n")

    status = cli.main(["policy", "validate", str(file)])

    assert status == cli.EXIT_USAGE
    assert "exact_repeat.observe, nudge, break_at, kill" in capsys.readouterr().err


def test_the_default_policy_reads_back_as_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is the file that users start from."""
    assert cli.main(["policy", "show"]) == 0
    file = tmp_path / "default.yaml"
    file.write_text(capsys.readouterr().out)

    assert load_policy(file) == DEFAULT_POLICY


def test_off_is_a_mode_and_no_falsehood(tmp_path: Path) -> None:
    """YAML 1.1 reads a bare `off` as false; a policy file that says it means the mode."""
    file = tmp_path / "policy.yaml"
    file.write_text("mode: off\ncycle: {mode: off}\n")

    policy = load_policy(file)

    assert (policy.mode, policy.cycle.mode) == ("off", "off")


def test_the_policy_of_one_place_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which threshold holds for this tool of that agent? One command answers, and its answer is a policy file."""
    file = tmp_path / "policy.yaml"
    file.write_text(
        "tenants:\n  acme:\n    cycle: {mode: off, until: 2030-01-31}\ntools:\n  job:\n    exact_repeat: {kill: 30}\n"
    )

    assert cli.main(["policy", "show", str(file), "--tenant", "acme", "--agent", "coder", "--tool", "job"]) == 0
    file.write_text(capsys.readouterr().out)
    shown = load_policy(file)
    assert shown.exact_repeat.kill == 30
    assert shown.mode_of("cycle") == "off"
